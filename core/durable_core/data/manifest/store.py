"""L3. A manifest on disk, and what lies beside it: lengths, what stores said of the objects, and where.

Everything is written to a private file and renamed; the manifest last. The sidecar of lengths is named by
its digest, so that whoever has a manifest, old or new, finds the lengths that belong to it: killed at any
instant, a build leaves the manifest before it, or the new one, whole.
"""

from __future__ import annotations

import glob
import io
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from durable_core.clock import SystemClock
from durable_core.data.files import Stat, open_file
from durable_core.data.manifest.model import DatasetManifest
from durable_core.data.scratch import exclusive, write_whole
from durable_core.errors import (
    CorruptError,
    DigestMismatchError,
    FormatError,
    ObjectNotFoundError,
    UsageError,
)
from durable_core.format import canonical, digests
from durable_core.format.fields import Fields, versioned

if TYPE_CHECKING:
    from durable_core.data.manifest.build import Built

_STATS_VERSION = 1
#: What names beside a manifest end with.
STATS = ".stat.json"
LENGTHS = re.compile(r"(.*)\.[0-9a-f]{16}\.lengths\.npy")
_AGAIN = "build the manifest again"


@dataclass(frozen=True)
class Previous:
    """An earlier build: its manifest, lengths if it has any, and the stamps of the objects it read."""

    manifest: DatasetManifest
    stats: Mapping[str, Stat]
    lengths: NDArray[np.uint32] | None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Previous:
        """Raises as ``load`` and ``load_lengths`` do. Without stamps that belong to it, nothing is known."""
        manifest = load(path)
        lengths = None if manifest.about.lengths is None else load_lengths(path, manifest)
        return cls(manifest, _load_stats(stats_path(path), manifest), lengths)


def save(built: Built, path: str | os.PathLike[str]) -> None:
    """Write the manifest and what belongs beside it. Raises ``UsageError`` when it cannot be written."""
    if "://" in os.fspath(path):
        raise UsageError(f"{path}: a manifest is written to a directory", hint="copy it to the store")
    target = Path(path)
    lock = target.with_name(f".{target.name}.lock")
    try:
        with exclusive(lock, clock=SystemClock()):
            _save(built, target)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error


def _save(built: Built, target: Path) -> None:
    manifest = built.manifest
    if built.lengths is not None:
        write_whole(Path(lengths_path(target, manifest)), _npy(built.lengths))
    write_whole(stats_path(target), _stats_json(manifest, built.stats, _seen_from(target, built.root)))
    write_whole(target, manifest.to_json().encode())
    _forget_lengths(target, manifest)


def load(path: str | os.PathLike[str]) -> DatasetManifest:
    """The manifest in a file or at a URL.

    Raises ``ObjectNotFoundError``, ``DataUnavailableError``, and what ``DatasetManifest.from_json`` does.
    """
    file = open_file(path)
    return DatasetManifest.from_json(file.read_range(0, file.size()), key=str(path))


def load_lengths(path: str | os.PathLike[str], manifest: DatasetManifest | None = None) -> NDArray[np.uint32]:
    """The lengths beside a manifest, uint32 [records], checked against it; mapped, and so read-only.

    Raises ``UsageError`` when the manifest has none, ``CorruptError`` naming the sidecar when that is
    missing, ``FormatError`` or ``DigestMismatchError`` when it is not what the manifest says.
    """
    manifest = manifest or load(path)
    about = manifest.about.lengths
    if about is None:
        raise UsageError(f"{path} has no lengths", hint="build it with lengths")
    where = lengths_path(path, manifest)
    try:
        values = _array(where)
    except ObjectNotFoundError as error:
        raise CorruptError(where, "the lengths of the manifest are missing", hint=_AGAIN) from error
    except (ValueError, OSError, EOFError) as error:
        raise FormatError(where, f"no array of lengths: {error}", hint=_AGAIN) from error
    if values.dtype != np.dtype("<u4") or values.shape != (manifest.records,):
        raise FormatError(
            str(where),
            f"{values.dtype} {values.shape} where uint32 ({manifest.records},) was due",
            hint=_AGAIN,
        )
    if digests.sha256(values.tobytes()) != about.digest:
        raise DigestMismatchError(where, f"lengths are not {about.digest}", hint=_AGAIN)
    return values


def root_of(path: str | os.PathLike[str], manifest: DatasetManifest | None = None) -> str:
    """Where the objects of the manifest at ``path`` are, unless somebody says otherwise.

    Where they were when it was built, if its stamps lie beside it and a directory is (still) there; else
    beside the manifest. Raises what ``load`` does; ``FormatError`` for stamps that are none.
    """
    text = os.fspath(path)
    if "://" in text:
        return text.partition("?")[0].rpartition("/")[0]
    beside = Path(text).parent
    stats = _stats(stats_path(text), manifest or load(text))
    said = stats.text("root") if stats is not None and stats.has("root") else ""
    if "://" in said:
        return said
    return str(beside / said if (beside / said).is_dir() else beside)


def lengths_path(path: str | os.PathLike[str], manifest: DatasetManifest) -> str:
    """Where the lengths lie: ``<manifest>.<16 hex digits of their digest>.lengths.npy``, a path or a URL."""
    about = manifest.about.lengths
    if about is None:
        raise UsageError(f"{path} has no lengths", hint="build it with lengths")
    text, mark, query = os.fspath(path), "", ""
    if "://" in text:
        text, mark, query = text.partition("?")
    return f"{text}.{about.digest.partition(':')[2][:16]}.lengths.npy{mark}{query}"


def stats_path(path: str | os.PathLike[str]) -> Path:
    """Where the stamps lie: ``<manifest>.stat.json``. Not part of the identity, and never needed to read."""
    return Path(path).with_name(Path(path).name + STATS)


def _array(where: str) -> NDArray[np.uint32]:
    """Mapped when it is a file."""
    file = open_file(where)
    size = file.size()
    if file.path is None:
        values: NDArray[np.uint32] = np.load(io.BytesIO(file.read_range(0, size)))
    else:
        values = np.load(file.path, mmap_mode="r")
    return values


def _forget_lengths(path: Path, manifest: DatasetManifest) -> None:
    """Of the manifest that stood here before. Somebody who has it open keeps it."""
    keep = None if manifest.about.lengths is None else Path(lengths_path(path, manifest)).name
    for old in path.parent.glob(f"{glob.escape(path.name)}.*.lengths.npy"):
        if LENGTHS.fullmatch(old.name) and old.name != keep:
            old.unlink(missing_ok=True)


def _npy(values: NDArray[np.uint32]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values.astype("<u4"))
    return stream.getvalue()


def _seen_from(target: Path, root: str) -> str:
    """Below the manifest's directory, relative to it: the two may be moved or copied together."""
    if "://" in root:
        return root
    beside = Path(os.path.abspath(target.parent))  # noqa: PTH100  # resolves no links
    return Path(root).relative_to(beside).as_posix() if Path(root).is_relative_to(beside) else root


def _stats_json(manifest: DatasetManifest, stats: Mapping[str, Stat], root: str) -> bytes:
    return canonical.dumps(
        {
            "v": _STATS_VERSION,
            "dataset_id": manifest.dataset_id,
            "root": root,
            "objects": {name: [stat.nbytes, stat.stamp] for name, stat in stats.items()},
        }
    )


def _load_stats(path: Path, manifest: DatasetManifest) -> dict[str, Stat]:
    fields = _stats(path, manifest)
    if fields is None:
        return {}
    found = {}
    for name, value in fields.mapping("objects").items():
        if not (isinstance(value, list) and [type(each) for each in value] == [int, str]):
            fields.fail(f"has {value!r} for {name}")
        found[name] = Stat(value[0], value[1])
    return found


def _stats(path: Path, manifest: DatasetManifest) -> Fields | None:
    """None when they are of another manifest, as after a build that was killed between two files."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    fields = versioned(data, key=str(path), version=_STATS_VERSION, limit=1 << 30)
    return fields if fields.digest("dataset_id") == manifest.dataset_id else None
