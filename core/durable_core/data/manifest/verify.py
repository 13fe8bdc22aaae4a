"""L3. Whether objects are still what a manifest says: each kind of harm by its own name."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from durable_core.clock import Clock
from durable_core.data.files import File, Location, open_file, open_location
from durable_core.data.manifest.model import DataObject, DatasetManifest
from durable_core.data.manifest.threads import in_threads
from durable_core.data.physical.retry import Retries
from durable_core.errors import (
    CorruptError,
    DataUnavailableError,
    DigestMismatchError,
    ObjectNotFoundError,
    UsageError,
)

KINDS = ("missing", "renamed", "swapped", "truncated", "longer", "changed", "unreadable")


@dataclass(frozen=True)
class Fault:
    """What is wrong with object ``name``. ``kind`` is one of ``KINDS``; ``other``: the object or file that a
    renamed or swapped one is found at, or holds the bytes of."""

    name: str
    kind: str
    reason: str
    start: int
    stop: int
    other: str | None = None

    def error(self) -> CorruptError | DataUnavailableError:
        reason = f"{self.reason}; records {self.start} to {self.stop} of the dataset are in it"
        if self.kind == "unreadable":
            return DataUnavailableError(self.name, reason)
        gone = self.kind in ("missing", "renamed")
        return (CorruptError if gone else DigestMismatchError)(
            self.name, f"{self.kind}: {reason}", hint=_HINT
        )


_HINT = "put the object back, or build the manifest of what is there: that is another dataset"


@dataclass(frozen=True)
class Verified:
    """``looked_at``: objects whose size was asked for, which is all; ``read``: those read to the end.
    ``moved``: the directory or URL under which all of them are, by their own names, and none here."""

    looked_at: int
    read: int
    nbytes: int
    faults: tuple[Fault, ...]
    moved: str | None = None

    def require(self) -> Verified:
        """Raises the error of the first fault: ``CorruptError``, or ``DataUnavailableError``."""
        if self.faults:
            raise self.faults[0].error()
        return self


def verify(
    manifest: DatasetManifest,
    root: str | os.PathLike[str],
    *,
    sample: int | float | None = None,
    jobs: int = 1,
    retries: Retries | None = None,
    options: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
) -> Verified:
    """Compare the objects under ``root`` with the manifest.

    Of all of them the size; the content of all, or of ``sample`` of them (a number, or a fraction in (0, 1)),
    evenly spread, the first and the last among them. ``jobs``: threads. Files that the manifest does not
    name are none of its business.
    """
    if jobs < 1:
        raise UsageError(f"jobs must be 1 or more, not {jobs}")
    location = open_location(root, retries=retries, options=options, clock=clock)
    count = len(manifest.objects)
    chosen = set(range(count)) if sample is None else set(spread(count, sample))
    look = partial(_look, location=location, known=_by_digest(manifest))
    work = [(item, at in chosen) for at, item in enumerate(manifest.objects)]
    found = in_threads(look, work, jobs=jobs, name="durable-verify")
    faults = [fault for _, fault in found if fault is not None]
    read = [nbytes for nbytes, _ in found if nbytes is not None]
    faults = _renamed(faults, manifest, location)
    return Verified(count, len(read), sum(read), tuple(faults), _moved(faults, count, os.fspath(root)))


def spread(total: int, wanted: int | float) -> list[int]:
    """``wanted`` of ``total`` indices, evenly; a fraction is rounded up. Raises ``UsageError``."""
    if isinstance(wanted, float):
        if not 0 < wanted <= 1:
            raise UsageError(f"a sampled fraction lies in (0, 1], not {wanted}")
        wanted = math.ceil(wanted * total)
    elif wanted < 1:
        raise UsageError(f"sample must be at least 1, not {wanted}")
    if wanted >= total:
        return list(range(total))
    return sorted({round(k * (total - 1) / max(wanted - 1, 1)) for k in range(wanted)})


def _by_digest(manifest: DatasetManifest) -> dict[str, str]:
    """digest -> the first object that has it."""
    return {item.digest: item.name for item in reversed(manifest.objects)}


def _look(
    work: tuple[DataObject, bool], location: Location, known: Mapping[str, str]
) -> tuple[int | None, Fault | None]:
    """Bytes, if it was read, and what is wrong."""
    item, wanted = work
    file = location.file(item.name)

    def fault(kind: str, reason: str, other: str | None = None) -> Fault:
        return Fault(item.name, kind, reason, item.start, item.stop, other)

    try:
        nbytes = file.size()
        # What has another size can only be another object of the manifest, if it is any.
        digest = _digest(location, item.name) if wanted or nbytes != item.nbytes else item.digest
    except ObjectNotFoundError:
        return None, fault("missing", f"no such object at {location.url}")
    except DataUnavailableError as error:
        return None, fault("unreadable", error.reason)
    if digest == item.digest:
        return nbytes if wanted else None, None
    if (other := known.get(digest)) is not None:
        return nbytes, fault("swapped", f"{item.name} holds the bytes of {other}", other)
    if nbytes != item.nbytes:
        kind = "truncated" if nbytes < item.nbytes else "longer"
        return nbytes, fault(kind, f"{nbytes} bytes where the manifest says {item.nbytes}")
    return nbytes, fault("changed", f"its content is {digest} and not {item.digest}")


def _renamed(faults: list[Fault], manifest: DatasetManifest, location: Location) -> list[Fault]:
    """Missing objects whose bytes lie there under a name that the manifest does not know."""
    missing = {fault.name for fault in faults if fault.kind == "missing"}
    if not missing:
        return faults
    items = {item.name: item for item in manifest.objects}
    sizes = {items[name].nbytes for name in missing}
    where: dict[str, list[str]] = {}
    for name in _listed(location):
        # What cannot be read is not known to be one of them, and is nobody's fault here.
        with suppress(ObjectNotFoundError, DataUnavailableError):
            if name not in items and location.file(name).size() in sizes:
                where.setdefault(_digest(location, name), []).append(name)
    return [
        fault if fault.name not in missing or not (found := where.get(items[fault.name].digest))
        else _found_at(fault, found)
        for fault in faults
    ]  # fmt: skip


def _found_at(fault: Fault, names: list[str]) -> Fault:
    """``names``: of all files with the bytes; one in another directory is likelier it than one of another
    name."""
    other = next((name for name in names if name.endswith(f"/{fault.name}")), names[0])
    return Fault(fault.name, "renamed", f"found under the name {other}", fault.start, fault.stop, other)


def _moved(faults: list[Fault], count: int, root: str) -> str | None:
    """The one directory below the root in which all ``count`` objects have their names."""
    if not faults or len(faults) != count:
        return None
    below = (faults[0].other or "").removesuffix(f"/{faults[0].name}")
    if any(fault.other != f"{below}/{fault.name}" for fault in faults):
        return None
    text, mark, query = root.partition("?") if "://" in root else (root, "", "")
    return f"{text.rstrip('/')}/{below}{mark}{query}" if "://" in root else str(Path(root, below))


def _listed(location: Location) -> list[str]:
    try:
        return location.names()
    except ObjectNotFoundError:
        return []  # there is not even a directory


def digest_file(where: str | os.PathLike[str]) -> str:
    """``sha256:<hex>`` of the file or object at a path or URL: a tokenizer, a vocabulary, a filter."""
    return _digested(open_file(where))


def _digest(location: Location, name: str) -> str:
    return _digested(location.file(name))


def _digested(file: File) -> str:
    digest = hashlib.sha256()
    for chunk in file.chunks():
        digest.update(chunk)
    return "sha256:" + digest.hexdigest()
