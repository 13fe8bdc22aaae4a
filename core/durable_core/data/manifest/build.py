"""L3. Building a manifest: every object read once, in parallel; or only those that may have changed."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from durable_core.clock import Clock, SystemClock
from durable_core.data.files import File, LocalFile, Location, Stat, open_location
from durable_core.data.manifest.describe import Description, Lengths, SampleIds
from durable_core.data.manifest.model import DataObject, DatasetManifest
from durable_core.data.manifest.sources import Found, gather
from durable_core.data.manifest.store import Previous
from durable_core.data.manifest.threads import in_threads
from durable_core.data.physical.retry import Retries
from durable_core.data.readers import (
    ObjectIndex,
    check_unique,
    companion_of,
    index_object,
    open_object,
    parse,
)
from durable_core.errors import FormatError, UsageError

LengthArray = NDArray[np.uint32]
_LONGEST = 2**32 - 1


@dataclass(frozen=True)
class How:
    """How records are counted and measured. ``count``: of an object's whole content; without it the format
    says. ``key``: the column that names a record. ``tokens``: the column whose length is the record's number
    of tokens; ``measure``: that number for a record; ``lengths``: keep those that the format knows."""

    format: str | None = None
    count: Callable[[bytes], int] | None = None
    key: str | None = None
    tokens: str | None = None
    measure: Callable[[Any], int] | None = None
    lengths: bool = False

    @property
    def lengths_from(self) -> str | None:
        """What ``Lengths.source`` says; None: no lengths are kept."""
        if self.measure is not None:
            return "measure"
        if self.tokens is not None:
            return f"column {self.tokens}"
        return "format" if self.lengths else None


@dataclass(frozen=True)
class Facts:
    """What reading one object said."""

    name: str
    digest: str
    stat: Stat
    records: int
    schema: str = ""
    keys: Sequence[str] | None = None
    lengths: LengthArray | None = None


@dataclass(frozen=True)
class Built:
    """A manifest, and what was found while it was built.

    ``root``: where the objects were, an absolute path or a URL; their names are relative to it.
    ``lengths``: uint32 [records]. ``stats``: what each object's store said, so that a later build need not
    read it again. ``read`` and ``reused`` objects; ``left_out``: files of the directories given that are no
    objects of this format; ``twins``: objects with the content of another, (name, first name): allowed, and
    records of both count; ``empty``: objects without a record, allowed beside others. ``notes``: what is
    as it was asked for, and hardly meant.
    """

    manifest: DatasetManifest
    stats: Mapping[str, Stat]
    root: str
    lengths: LengthArray | None = None
    read: int = 0
    reused: int = 0
    left_out: tuple[str, ...] = ()
    twins: tuple[tuple[str, str], ...] = ()
    empty: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def build(
    sources: Iterable[str | os.PathLike[str]],
    *,
    root: str | os.PathLike[str] | None = None,
    format: str | None = None,
    count: Callable[[bytes], int] | None = None,
    key: str | None = None,
    tokens: str | None = None,
    measure: Callable[[Any], int] | None = None,
    lengths: bool = False,
    allow_empty: bool = False,
    update: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    retries: Retries | None = None,
    options: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
    **described: Any,
) -> Built:
    """Read and digest the objects at ``sources``, in order of their names relative to ``root``.

    ``sources``: files, directories and URLs (see ``gather``). ``format`` to ``lengths``: see ``How``; without
    a format the names say it. ``described``: the fields of ``Description`` that are not found by reading.
    ``update``: an earlier manifest; objects whose size and stamp are as they were then are not read again
    (with a ``key`` or a ``count`` all are). ``jobs``: threads, in which ``count`` and ``measure`` run too;
    hashing, reading and the formats' libraries run outside the interpreter's lock.

    Raises ``UsageError`` (sources, aliases, a dataset without records unless ``allow_empty``, an object that
    changes while it is read), ``ObjectNotFoundError``, ``DataUnavailableError``, ``FormatError`` or
    ``RecordError`` naming object and record.
    """
    if jobs < 1:
        raise UsageError(f"jobs must be 1 or more, not {jobs}")
    clock = clock or SystemClock()
    began = clock.now()  # what changes later may do so in the tick in which it was looked at
    opener = partial(open_location, retries=retries, options=options, clock=clock)
    found = gather(sources, root, opener=opener, format=format, needs_format=count is None)
    how = How(found.format, count, key, tokens, measure, lengths)
    about = _about(how, described)
    previous = None if update is None else Previous.load(update)
    known = {} if previous is None else _reusable(previous, about, how)
    work = partial(_facts, location=found.location, how=how, known=known)
    groups = in_threads(work, found.names, jobs=jobs, name="durable-build")
    facts = [each for group in groups for each in group]
    facts.sort(key=lambda each: each.name)
    return _merged(facts, about, found, how, known, allow_empty=allow_empty, now=began)


def _about(how: How, described: Mapping[str, Any]) -> Description:
    for name in ("format", "schema", "lengths", "sample_ids"):
        if name in described:
            raise UsageError(f"{name} is found by reading and not described")
    said = dict(described)
    if how.format is not None:
        said.setdefault("compression", parse(how.format).compression or None)
    ids = SampleIds("key", how.key) if how.key is not None else SampleIds()
    return Description(**said, format=how.format, sample_ids=ids)


# --- one object ----------------------------------------------------------------------------------


def _facts(name: str, *, location: Location, how: How, known: Mapping[str, Facts]) -> list[Facts]:
    """Of the object, and of its companion, which holds no records of its own."""
    file = location.file(name)
    companion = companion_of(how.format, name) if how.format is not None else None
    other = None if companion is None else location.file(companion)
    stats = {each.name: each.stat() for each in (file, other) if each is not None}
    if all(_same(stats[each], known.get(each)) for each in stats):
        return [known[each] for each in stats]
    digest, index = _read(file, other, stats[name], how)
    lengths = _lengths(index, name) if how.lengths_from else None
    facts = [Facts(name, digest, stats[name], index.records, index.schema, index.keys, lengths)]
    if other is not None:
        nothing = np.empty(0, np.uint32) if how.lengths_from else None
        with _local(other) as (_, digest):
            facts.append(Facts(other.name, digest, stats[other.name], 0, index.schema, (), nothing))
    for each in (file, other):
        if each is not None and each.stat() != stats[each.name]:
            raise _changed(each)
    return facts


def _same(stat: Stat, fact: Facts | None) -> bool:
    if fact is None or stat.stamp is None:
        return False
    return (stat.nbytes, stat.stamp) == (fact.stat.nbytes, fact.stat.stamp)


def _read(file: File, companion: File | None, stat: Stat, how: How) -> tuple[str, ObjectIndex]:
    with _local(file) as (local, digest):
        if local.size() != stat.nbytes:
            raise _changed(file)
        if how.count is not None:
            return digest, ObjectIndex(how.count(local.read_range(0, stat.nbytes)))
        assert how.format is not None  # gather() found it, or refused
        index = index_object(
            how.format, local, file.name, companion=companion, tokens=how.tokens, key=how.key
        )
        if how.measure is None:
            return digest, index
        return digest, dataclasses.replace(index, lengths=_measured(local, companion, index, how))


@contextmanager
def _local(file: File) -> Iterator[tuple[File, str]]:
    """The object on a local disk, and its digest: what is remote comes over the network once."""
    digest = hashlib.sha256()
    if file.path is not None:
        for chunk in file.chunks():
            digest.update(chunk)
        yield file, "sha256:" + digest.hexdigest()
        return
    with tempfile.TemporaryDirectory(prefix="durable-build-") as directory:
        try:
            with Path(directory, "object").open("wb") as stream:
                for chunk in file.chunks():
                    digest.update(chunk)
                    stream.write(chunk)
        except OSError as error:
            raise UsageError(
                f"{file.name} cannot be kept in {tempfile.gettempdir()} for a while: {error.strerror}",
                hint="set TMPDIR to where there is room for the largest object",
            ) from error
        yield LocalFile(Path(directory), "object"), "sha256:" + digest.hexdigest()


def _measured(file: File, companion: File | None, index: ObjectIndex, how: How) -> NDArray[np.int64]:
    assert how.format is not None and how.measure is not None
    reader = open_object(how.format, file, index, companion=companion)
    try:
        return np.array([how.measure(reader.read([at])[0]) for at in range(index.records)], dtype=np.int64)
    finally:
        reader.close()


def _lengths(index: ObjectIndex, name: str) -> LengthArray:
    if index.lengths is None:
        raise UsageError(
            f"{name}: its format does not know how many tokens a record has",
            hint="name the column of tokens (--tokens COLUMN), give numbers a block (--format npy:BLOCK), or "
            "call manifest.build(measure=) in Python",
        )
    values = np.asarray(index.lengths, dtype=np.int64)
    wrong = np.flatnonzero((values < 0) | (values > _LONGEST))
    if len(wrong):
        raise FormatError(
            name, f"record {wrong[0]} has {values[wrong[0]]} tokens: 0 to 2**32 - 1 can be kept"
        )
    return values.astype(np.uint32)


def _changed(file: File) -> UsageError:
    return UsageError(
        f"{file.name} changed while it was read: a manifest is of objects that stay as they are",
        hint="build it when nobody writes there",
    )


# --- all of them ---------------------------------------------------------------------------------


def _reusable(previous: Previous, about: Description, how: How) -> dict[str, Facts]:
    """The facts of an earlier build that this one would find again where stamps say that nothing changed."""
    old = previous.manifest.about
    source = None if old.lengths is None else old.lengths.source
    before = (old.format, old.sample_ids, old.tokenizer, source)
    if before != (about.format, about.sample_ids, about.tokenizer, how.lengths_from):
        return {}
    if how.key is not None or how.count is not None:
        return {}  # keys are not kept, and nobody knows whether `count` is the same
    if how.measure is not None and about.tokenizer.digest is None:
        return {}  # nor whether `measure` is: a tokenizer's digest says it
    return {
        item.name: Facts(
            item.name, item.digest, previous.stats[item.name], item.records, old.schema or "", None,
            None if previous.lengths is None else previous.lengths[item.start : item.stop],
        )
        for item in previous.manifest.objects
        if item.name in previous.stats
    }  # fmt: skip


def _merged(
    facts: Sequence[Facts], about: Description, found: Found, how: How, known: Mapping[str, Facts], *,
    allow_empty: bool, now: float,
) -> Built:  # fmt: skip
    objects: list[DataObject] = []
    position = 0
    for each in facts:
        if each.schema != facts[0].schema:
            raise FormatError(
                each.name, f"has the schema {each.schema!r} where {facts[0].name} has {facts[0].schema!r}"
            )
        objects.append(DataObject(each.name, each.digest, each.stat.nbytes, position, each.records))
        position += each.records
    if position == 0 and not allow_empty:
        raise UsageError(
            f"the dataset at {found.location.url} has no records", hint="allow_empty, if that is what it is"
        )
    if how.key is not None:
        check_unique((each.name, each.keys or ()) for each in facts)
    lengths = _joined(facts) if how.lengths_from else None
    if lengths is not None:
        about = dataclasses.replace(about, lengths=Lengths.of(lengths, how.lengths_from or ""))
    if facts and facts[0].schema:
        about = dataclasses.replace(about, schema=facts[0].schema)
    first: dict[str, str] = {}
    twins = [(each.name, first.setdefault(each.digest, each.name)) for each in facts if each.stat.nbytes]
    reused = sum(known.get(each.name) is each for each in facts)
    companions = {companion_of(how.format, name) for name in found.names} if how.format else set()
    return Built(
        DatasetManifest(tuple(objects), about),
        {each.name: each.stat for each in facts if each.stat.settled(now)},
        found.root,
        lengths,
        read=len(facts) - reused,
        reused=reused,
        left_out=found.left_out,
        twins=tuple((name, other) for name, other in twins if name != other),
        empty=tuple(each.name for each in facts if not each.records and each.name not in companions),
        notes=_notes(about),
    )


def _notes(about: Description) -> tuple[str, ...]:
    if about.format == "npy" and (about.schema or "").endswith("[]"):
        return ("each number is a record of its own: --format npy:BLOCK makes records of BLOCK numbers",)
    return ()


def _joined(facts: Sequence[Facts]) -> LengthArray:
    parts = [each.lengths for each in facts if each.lengths is not None]
    return np.concatenate(parts) if parts else np.empty(0, np.uint32)
