"""L3. A dataset read by its manifest: any record by its id, from a directory, a store or a cache.

What the manifest says is checked before a record is given; what is not so is an error that names object
and record, or what the declared policy makes of it. Nothing is left out in silence.
"""

from __future__ import annotations

import bisect
import operator
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from durable_core.clock import SystemClock, computed
from durable_core.data.bad_input import BAD, POLICIES, OnBad, left_out, placed, root_is_gone
from durable_core.data.cache import DataCache
from durable_core.data.files import LocalLocation, Location, open_location
from durable_core.data.manifest.model import DatasetManifest
from durable_core.data.manifest.store import load, load_lengths, root_of
from durable_core.data.physical.metrics import Metrics, PerProcess
from durable_core.data.physical.readahead import ReadAhead
from durable_core.data.physical.retry import Retries
from durable_core.data.readers.base import DEFAULT_HELD, Held, Record
from durable_core.data.readers.opened import Objects, Verify
from durable_core.data.readers.registry import format_of
from durable_core.errors import (
    CorruptError,
    DataUnavailableError,
    FormatError,
    ObjectNotFoundError,
    SkippedRecord,
    SpecMismatchError,
    UsageError,
)

SAMPLED = 16
"""Of records read where they are asked for, one in so many has its decoding measured, and stands for all:
asking for CPU seconds costs as much as all other measuring."""
_NOTED = 1 << 10
_now = SystemClock().monotonic


class RecordDataset:
    """Map-style: ``dataset[i]`` is record i of the manifest, transformed.

    Picklable, and safe to fork: files, threads and decoded data belong to the process that opened them.

    Args:
        manifest: says which objects, in which order, with what content.
        where: a directory, a URL, or a ``Location``.
        format: of the objects (see ``readers.registry``); default: the manifest's, or what names tell.
        cache: verified local copies by digest; without one, objects are read where they are.
        columns: only these of each record.
        transform: what ``dataset[i]`` makes of a record. It runs in the thread that asks, under the
            randomness of the sample. Its own errors are not bad input (``SkippedRecord`` is).
        lengths, loss_lengths: int64 [records], tokens and loss tokens of each record, for packing and
            mixtures by tokens (``manifest.load_lengths``).
        verify: ``open`` digests each object, or the copy of it in the cache, once a process before it is
            read (a pass over it); ``size`` compares sizes only. What is fetched into a cache always is.
        on_bad: what becomes of bad input: an object that is missing, truncated or has another content, a
            record that does not decode. ``fail`` raises. ``refetch`` drops every copy and reads again from
            the origin, ``refetches`` times, then raises. ``skip`` leaves a record out; ``quarantine`` does,
            and does not look at an object again that was missing or not as the manifest says. (Of an object
            that can be opened a record is left out alone under both: which others would follow it would
            depend on who read it first.) Left out means ``SkippedRecord``, of which a ``DurableLoader`` makes
            a row of the ledger.
        quarantined: names of objects to leave out from the start; as ``quarantined`` of an earlier run said.
        index_dir: where tables of offsets are kept, by digest; default: in the cache. Without either, each
            process makes them when it opens an object of a format without an index (JSON lines, tar, zstd).
        read_ahead: threads behind ``prefetch``. Default: 8, and 0 where everything is on a local disk.
        ahead_items, ahead_bytes: bounds of what ``prefetch`` holds (bytes as stored).
        timeout_s: how long a record read ahead is waited for; with a cache, while its object is filled.
        held_bytes: bound of decoded row groups and frames.
        max_open: objects open at once.

    Raises:
        UsageError: an argument makes no sense.
    """

    def __init__(
        self,
        manifest: DatasetManifest,
        where: str | os.PathLike[str] | Location,
        *,
        format: str | None = None,
        cache: DataCache | None = None,
        columns: Sequence[str] | None = None,
        transform: Callable[[Record], Any] | None = None,
        lengths: ArrayLike | None = None,
        loss_lengths: ArrayLike | None = None,
        verify: Verify = "open",
        on_bad: OnBad = "fail",
        refetches: int = 2,
        quarantined: Sequence[str] = (),
        index_dir: str | os.PathLike[str] | None = None,
        read_ahead: int | None = None,
        ahead_items: int = 256,
        ahead_bytes: int = 64 << 20,
        timeout_s: float = 600.0,
        held_bytes: int = DEFAULT_HELD,
        max_open: int = 64,
    ) -> None:
        _check_kinds(manifest, cache)
        if on_bad not in POLICIES or verify not in ("open", "size"):
            raise UsageError(
                f"on_bad {on_bad!r}, verify {verify!r}", hint=f"on_bad is one of {', '.join(POLICIES)}"
            )
        if min(ahead_items, ahead_bytes, max_open) < 1 or min(read_ahead or 0, refetches) < 0:
            raise UsageError(
                "ahead_items, ahead_bytes and max_open must be 1 or more, the others not negative"
            )
        if unknown := sorted(set(quarantined) - {item.name for item in manifest.objects}):
            raise UsageError(f"quarantined: no object {unknown[0]!r} in the manifest")
        self.manifest = manifest
        self.dataset_id = manifest.dataset_id
        names = (item.name for item in manifest.objects if item.records)
        self.format = format or manifest.about.format or format_of(names)
        self.transform = transform
        self.on_bad: OnBad = on_bad
        self.blocks = np.array([item.records for item in manifest.objects if item.records], dtype=np.int64)
        self.lengths = _per_record("lengths", lengths, manifest)
        self.loss_lengths = _per_record("loss_lengths", loss_lengths, manifest)
        self._location = where if isinstance(where, Location) else open_location(where)
        self._columns = None if columns is None else tuple(columns)
        self._cache, self._verify, self._refetches = cache, verify, refetches
        self._quarantined = dict.fromkeys(quarantined, "declared")
        kept = cache.directory / "tables" if index_dir is None and cache is not None else index_dir
        self._index_dir = None if kept is None else Path(kept).expanduser()
        local = isinstance(self._location, LocalLocation) and cache is None
        self._threads = (0 if local else 8) if read_ahead is None else read_ahead
        self._bounds: dict[str, Any] = {
            "max_items": ahead_items,
            "max_bytes": ahead_bytes,
            "timeout_s": timeout_s,
        }
        self._held_bytes, self._max_open = held_bytes, max_open
        self._starts = [item.start for item in manifest.objects]
        self._stored_in = [item.nbytes // max(item.records, 1) for item in manifest.objects]  # of a record
        self._processes: dict[int, _Process] = {}
        self._measured = PerProcess()

    @classmethod
    def open(
        cls,
        manifest: str | os.PathLike[str],
        where: str | os.PathLike[str] | Location | None = None,
        **more: Any,
    ) -> RecordDataset:
        """The dataset of the manifest in a file, with the lengths beside it if it has any.

        ``where``: default, where they were when it was built, or else beside the manifest (``root_of``).
        ``more``: as for the class.
        """
        if "://" not in os.fspath(manifest):
            manifest = Path(manifest).expanduser()
        elif where is None:
            raise UsageError(f"{manifest} does not say where its objects are", hint="pass where=")
        loaded = load(manifest)
        if loaded.about.lengths is not None:
            more.setdefault("lengths", load_lengths(manifest, loaded))
        return cls(loaded, root_of(manifest, loaded) if where is None else where, **more)

    def __len__(self) -> int:
        return self.manifest.records

    def __getitem__(self, id: int) -> Any:
        """Record ``id``, transformed.

        Raises ``RecordError``, ``FormatError``, ``DigestMismatchError`` or ``ObjectNotFoundError`` naming the
        object (and record), ``SkippedRecord`` where the policy leaves the record out,
        ``DataUnavailableError`` when the store does not answer, ``IndexError`` outside [0, len).
        """
        id = operator.index(id)
        if not 0 <= id < len(self):
            raise IndexError(f"record {id} of {len(self)}")
        here = self._here()
        record = self._timed(id, here.reads) if here.ahead is None else here.ahead.take(id).record
        return record if self.transform is None else self.transform(record)

    def prefetch(self, ids: Sequence[int]) -> None:
        """Begin to read these, best in the order they are then asked for; does not wait.

        What goes wrong is raised for its own id. What was begun before and not asked for is given up.
        """
        ahead = self._here().ahead
        if ahead is not None:
            ahead.prefetch(operator.index(id) for id in ids if 0 <= id < len(self))

    def locate(self, id: int) -> tuple[str, int]:
        """The object that record ``id`` is in, and its ordinal there."""
        item = self.manifest.objects[self._number(id)]
        return item.name, id - item.start

    @property
    def quarantined(self) -> dict[str, str]:
        """Objects left out in this process, and why; give the names to the next run to leave them out."""
        return dict(self._quarantined)

    @property
    def metrics(self) -> Metrics:
        """What reading has cost this process; a ``DurableLoader`` takes it from here with each batch.

        ``read``: seconds for each record; ``decode``: of those, seconds of a CPU (see ``SAMPLED``);
        ``nbytes`` as stored. ``hits``/``misses``: of the cache, each time an object is opened; ``retries``:
        of the store; ``held``, ``depth``, ``age_s``: of reading ahead.
        """
        metrics = self._measured.here()
        retries = self._location.counts.news()
        if retries:
            metrics.count(retries=retries)
        self._account(self._here().reads)
        return metrics

    def check_tokenizer(self, digest: str) -> None:
        """Raises ``SpecMismatchError`` unless the manifest was built with the tokenizer of this digest."""
        built = self.manifest.about.tokenizer.digest
        if digest != built:
            raise SpecMismatchError(
                f"the tokenizer is {digest}, and the dataset was made with {built or 'none that it names'}",
                fields=("tokenizer",),
                hint="use that tokenizer, or build a manifest with this one",
            )

    def close(self) -> None:
        """Let go of files, threads and what was read ahead, in this process. It can be used again."""
        process = self._processes.get(os.getpid())
        if process is not None:
            process.close()
            del self._processes[os.getpid()]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_processes": {}}

    # --- this process ------------------------------------------------------------------------------

    def _here(self) -> _Process:
        """What this process has open; after a fork, nothing: threads and locks stayed in the parent."""
        pid = os.getpid()
        return self._processes.get(pid) or self._processes.setdefault(pid, self._afresh())

    def _afresh(self) -> _Process:
        """Nothing is open in it yet, so that of two threads that make one the second's is only dropped."""
        metrics = self._measured.here()
        objects = Objects(
            self.manifest.objects,
            self._location,
            self.format,
            columns=self._columns,
            verify=self._verify,
            cache=self._cache,
            index_dir=self._index_dir,
            held=Held(self._held_bytes),
            most=self._max_open,
            metrics=metrics,
        )
        ahead = None
        if self._threads:
            # A file repeats its own reads, and bad input is for the policy: nothing is tried again here.
            once, threads = Retries(attempts=1), self._threads
            ahead = ReadAhead(
                self._sized, threads=threads, retries=once, size_of=self._stored, metrics=metrics,
                **self._bounds,
            )  # fmt: skip
        return _Process(objects, ahead)

    def _number(self, id: int) -> int:
        """The object of a record. Of objects that begin at one id only the last has records."""
        return bisect.bisect_right(self._starts, id) - 1

    def _stored(self, id: int) -> int:
        return self._stored_in[self._number(id)]

    # --- reading, by policy ------------------------------------------------------------------------

    def _sized(self, id: int) -> _Sized:
        """In a thread of the read-ahead, which measures what its reads take."""
        busy = computed()
        record = self._record(id)
        self._measured.here().measure("decode", computed() - busy)
        return _Sized(record, self._stored(id))

    def _timed(self, id: int, reads: list[tuple[int, float]]) -> Record:
        """Here and now. What it took is only noted: it is added up for many records together."""
        sampled = not len(reads) % SAMPLED
        busy = computed() if sampled else 0.0
        begun = _now()
        record = self._record(id)
        seconds = _now() - begun
        reads.append((id, seconds))
        if sampled:
            self._measured.here().measure("decode", min(computed() - busy, seconds), SAMPLED)
            if len(reads) > _NOTED:
                self._account(reads)
        return record

    def _account(self, reads: list[tuple[int, float]]) -> None:
        noted = reads[:]
        del reads[: len(noted)]  # another thread may have added to it
        if noted:
            metrics = self._measured.here()
            metrics.measure_all("read", [seconds for _, seconds in noted])
            metrics.count(records=len(noted), nbytes=sum([self._stored(id) for id, _ in noted]))

    def _record(self, id: int) -> Record:
        number = self._number(id)
        item = self.manifest.objects[number]
        if item.name in self._quarantined:
            raise self._left_out(id, number, self._quarantined[item.name])
        try:
            return self._read(id, number)
        except BAD as error:
            return self._mended(id, number, error)

    def _read(self, id: int, number: int) -> Record:
        item = self.manifest.objects[number]
        try:
            with self._here().objects.use(number) as reader:
                return reader.read([id - item.start])[0]
        except OSError as error:  # of a disk: what comes through files.py is typed there
            said = f"cannot be read: {error.strerror or error}"
            raise DataUnavailableError(item.name, said) from error

    def _opens(self, number: int) -> bool:
        """Whether any record of the object can be asked for. If so, it depends on the record alone whether
        it is left out, and not on who read which others before."""
        try:
            with self._here().objects.use(number):
                return True
        except BAD:
            return False

    def _mended(self, id: int, number: int, error: CorruptError | ObjectNotFoundError) -> Record:
        """What the policy makes of a record that could not be read: it, or the error to raise."""
        item = self.manifest.objects[number]
        for _ in range(self._refetches if self.on_bad == "refetch" else 0):
            self._here().objects.again(number)
            try:
                return self._read(id, number)
            except BAD as another:
                error = another
        if self.on_bad in ("fail", "refetch"):
            raise placed(error, self._location, self.dataset_id) from error
        if root_is_gone(error, self._location):
            raise DataUnavailableError(item.name, f"nothing is at {self._location.url}") from error
        if self.on_bad == "quarantine" and not self._opens(number):
            self._quarantined[item.name] = error.message
        raise self._left_out(id, number, error.message) from error

    def _left_out(self, id: int, number: int, reason: str) -> SkippedRecord:
        item = self.manifest.objects[number]
        return left_out(item.name, id, id - item.start, self.on_bad, reason)


class _Sized(NamedTuple):
    """A record that was read ahead, and what it counts for: its share of the object's bytes."""

    record: Record
    nbytes: int


@dataclass(frozen=True)
class _Process:
    """What one process has open."""

    objects: Objects
    ahead: ReadAhead[int, _Sized] | None
    reads: list[tuple[int, float]] = field(default_factory=list)
    """(id, seconds) of records read where they were asked for, and not yet added to the metrics."""

    def close(self) -> None:
        if self.ahead is not None:
            self.ahead.close()
        self.objects.close()


def _check_kinds(manifest: Any, cache: Any) -> None:
    if not isinstance(manifest, DatasetManifest):
        raise UsageError(
            f"the manifest is {manifest!r:.80}, not a DatasetManifest",
            hint="RecordDataset.open(path) reads it from its file; so does durable_core.data.manifest.load",
        )
    if not (cache is None or isinstance(cache, DataCache)):
        raise UsageError(f"cache is {cache!r:.80}", hint="pass DataCache(directory, max_bytes)")


def _per_record(what: str, values: ArrayLike | None, manifest: DatasetManifest) -> NDArray[np.int64] | None:
    if values is None:
        return None
    array = np.asarray(values, dtype=np.int64)
    if array.shape != (manifest.records,):
        raise FormatError(what, f"shape {array.shape} for {manifest.records} records")
    return array
