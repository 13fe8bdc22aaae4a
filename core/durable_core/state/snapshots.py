"""L3. Finding, reading and freeing the sealed slots that a run has in this host's memory.

Whoever reads a snapshot may find its owner writing into it: a worker that was thought dead. So nothing
is believed but digests, of bytes that were copied out before they were hashed; and nothing is mapped,
so that no owner can turn a read into a signal.
"""

from __future__ import annotations

import contextlib
import functools
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from durable_core.errors import CorruptError, DigestMismatchError, FormatError, TierUnavailable, UsageError
from durable_core.format import digests, layout
from durable_core.format.seal import HEADER_BYTES, Seal, SlotState, decode_header, decode_seal, seal_begin
from durable_core.state import budget, slotfile
from durable_core.types import SliceInfo

SHARED_MEMORY = Path("/dev/shm")


class Snapshot:
    """A sealed slot, open for reading until ``close``; removing the file meanwhile does no harm.

    ``seal`` was whole when it was read. The tensors' bytes are checked by whoever copies them: ``view``
    does, ``read`` leaves it to the caller.
    """

    def __init__(self, path: Path, descriptor: int, seal: Seal) -> None:
        self.path, self.seal = path, seal
        self._descriptor = descriptor
        self._begins = {info.slice: begin for info, begin in seal.begins()}
        self._nbytes = seal.nbytes

    def read(self, offset: int, out: memoryview) -> None:
        """Fill ``out`` (writable bytes) from ``offset``, counted from the first tensor's first byte.

        ``CorruptError`` when there are not that many bytes, ``TierUnavailable`` when the read fails.
        """
        out = out.cast("B")
        end = offset + len(out)
        if offset < 0 or end > self._nbytes:
            raise CorruptError(str(self.path), f"no bytes {offset} to {end} in {self._nbytes}")
        done = 0
        while done < len(out):
            try:
                count = os.preadv(self._descriptor, [out[done:]], HEADER_BYTES + offset + done)
            except OSError as error:
                raise TierUnavailable(f"cannot read {self.path}: {error}") from error
            if count == 0:
                raise CorruptError(str(self.path), f"ends at byte {offset + done} of its tensors")
            done += count

    def view(self, info: SliceInfo) -> memoryview:
        """A verified copy of one slice of ``seal.infos``; ``DigestMismatchError`` when its bytes differ."""
        out = memoryview(bytearray(info.nbytes))
        self.read(self._begins[info.slice], out)
        if digests.xxh3(out) != info.xxh3:
            raise DigestMismatchError(str(self.path), f"the bytes of {info.slice} are not those sealed")
        return out.toreadonly()

    def close(self) -> None:
        """Harmless when repeated."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


@dataclass(frozen=True)
class Survey:
    """The whole snapshots of a run, and why the other slots are none (by file name)."""

    snapshots: tuple[Snapshot, ...]
    refused: dict[str, str]


class SlotMemory:
    """The slots of one run in this host's shared memory, whoever made them.

    ``directory`` is a tmpfs; files lie in ``<directory>/durable-<uid>/<run_id>``, readable by this user only.
    ``role``: whose snapshots this process may seal (``None``: any).
    """

    def __init__(self, run_id: str, *, directory: Path = SHARED_MEMORY, role: str | None = None) -> None:
        if layout.key_fault(run_id) or "/" in run_id:
            raise UsageError(f"{run_id!r} is no run id")
        self.run_id, self.directory, self.role = run_id, directory, role

    @property
    def path(self) -> Path:
        return slotfile.user_directory(self.directory) / self.run_id

    def require(self, nbytes: int) -> None:
        """``UsageError`` with the numbers when ``nbytes`` more bytes do not fit into this host's memory."""
        budget.require(nbytes, budget.rooms(self.directory), what=f"run {self.run_id}")

    def create(self) -> slotfile.SlotFile:
        """A new slot file, owned by this process. ``UsageError`` when the directory is not to be trusted."""
        return slotfile.SlotFile(self.directory, self.run_id)

    def sealed(self) -> list[Snapshot]:
        """Every whole snapshot of this run, of any generation and role, newest last. Close them."""
        return list(self.survey().snapshots)

    def survey(self) -> Survey:
        """As ``sealed``, with the reasons why other slots were left out."""
        found: list[Snapshot] = []
        refused: dict[str, str] = {}
        for path in _slots(self.path):
            try:
                snapshot = _open(path, self.run_id)
            except FileNotFoundError:
                continue  # freed meanwhile
            except (CorruptError, OSError) as error:
                refused[path.name] = str(error)
                continue
            if isinstance(snapshot, str):
                refused[path.name] = snapshot
            else:
                found.append(snapshot)
        found.sort(key=lambda snapshot: (snapshot.seal.generation, snapshot.seal.step))
        return Survey(tuple(found), refused)

    def free(self, *, older_than: int | None = None) -> int:
        """Remove slots whose owner is dead, and return the bytes of memory given back.

        ``older_than``: keep snapshots sealed under this generation or a later one (what is not a whole
        snapshot goes all the same). A slot whose owner lives is left alone, whatever it holds: a
        worker that was stopped rather than killed may still write into its memory.
        """
        freed = 0
        for path in _slots(self.path):
            if older_than is None or not self._is_kept(path, older_than):
                freed += _remove_dead(path)
        with contextlib.suppress(OSError):  # not empty: a live owner's slots are in it
            self.path.rmdir()
        return freed

    def _is_kept(self, path: Path, older_than: int) -> bool:
        try:
            snapshot = _open(path, self.run_id)
        except (FileNotFoundError, CorruptError):
            return False
        if isinstance(snapshot, str):
            return False
        with snapshot:
            return snapshot.seal.generation >= older_than


@dataclass(frozen=True)
class Leftover:
    """What one run has in this host's memory: ``live`` when a process still owns a slot of it."""

    run_id: str
    nbytes: int
    live: bool


def leftovers(directory: Path = SHARED_MEMORY) -> list[Leftover]:
    """Every run of this user with slots in ``directory``; ``SlotMemory.free`` removes the dead ones."""
    root = slotfile.user_directory(directory)
    found = []
    for path in sorted(root.iterdir()) if root.exists() else ():
        if not path.is_dir():
            continue
        nbytes, live = 0, False
        for slot in _slots(path):
            with contextlib.suppress(FileNotFoundError):
                nbytes += _memory(slot.stat())
                live |= is_live(slot)
        found.append(Leftover(path.name, nbytes, live))
    return found


def _slots(directory: Path) -> list[Path]:
    """None when there is no such directory, or another writer of this host has just removed it, empty."""
    try:
        slotfile.check_private(directory.parent)
        slotfile.check_private(directory)
        return sorted(path for path in directory.iterdir() if path.suffix == slotfile.SUFFIX)
    except FileNotFoundError:
        return []


def _open(path: Path, run_id: str) -> Snapshot | str:
    """The snapshot in a slot file, or why there is none; ``CorruptError`` when what is there is torn."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        seal = _read_seal(path, descriptor)
        if isinstance(seal, str):
            return seal
        if seal.run_id != run_id:
            return f"sealed by run {seal.run_id}"
        snapshot = Snapshot(path, descriptor, seal)
        descriptor = -1
        return snapshot
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _read_seal(path: Path, descriptor: int) -> Seal | str:
    key = str(path)
    header = decode_header(os.pread(descriptor, HEADER_BYTES, 0), key=key)
    if header.state is not SlotState.SEALED:
        return f"{header.state.name.lower()}, not sealed"
    if header.seal_begin + header.seal_nbytes > os.fstat(descriptor).st_size:
        raise FormatError(key, "the seal lies beyond the end of the slot")
    data = os.pread(descriptor, header.seal_nbytes, header.seal_begin)
    if digests.xxh3(data) != header.seal_xxh3:
        raise DigestMismatchError(key, "the seal is not the one that the header names")
    seal = _decoded(data, key)
    if header.seal_begin != seal_begin(seal.nbytes):
        raise FormatError(key, f"a seal at {header.seal_begin} behind {seal.nbytes} bytes of tensors")
    return seal


def _decoded(data: bytes, key: str) -> Seal:
    """A start looks at each slot several times, and decoding a seal is most of a look."""
    try:
        return _decoded_before(data)
    except CorruptError:
        return decode_seal(data, key=key)  # again, for an error that names the slot


@functools.lru_cache(maxsize=32)
def _decoded_before(data: bytes) -> Seal:
    return decode_seal(data, key="")


def is_live(path: Path) -> bool:
    """Whether a process owns this slot file. ``FileNotFoundError`` when it is gone."""
    lock = slotfile.lock_dead(path)
    if lock is not None:
        os.close(lock)
    return lock is None


def _remove_dead(path: Path) -> int:
    """Bytes given back; 0 when the owner lives or the file is gone."""
    try:
        lock = slotfile.lock_dead(path)
    except FileNotFoundError:
        return 0
    if lock is None:
        return 0
    try:  # with the lock held, so that whoever has just made this file sees that it is gone
        nbytes = _memory(os.fstat(lock))
        path.unlink(missing_ok=True)
        return nbytes
    finally:
        os.close(lock)


def _memory(status: os.stat_result) -> int:
    return status.st_blocks * 512
