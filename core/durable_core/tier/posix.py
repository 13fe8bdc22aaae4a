"""L3. A tier in a directory: local disk, NFS, Lustre.

Publishing is: write a temporary, fsync it, ``link()`` it to its name (which fails if the name is
taken), fsync the directory. A reader therefore sees a whole object or none, whenever the writer
dies; and what was acknowledged survives the loss of power. Temporaries lie in ``tmp/`` under the
root, locked by their writer, so that those of the dead can be told and removed.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from durable_core.errors import (
    FormatError,
    InDoubt,
    ObjectNotFoundError,
    TierUnavailable,
    UnsupportedError,
    UsageError,
)
from durable_core.format import layout
from durable_core.tier.base import DEFAULT_LIMIT, Buffer, Tier, byte_view
from durable_core.tier.direct import BufferedFile, DirectFile, on_a_block_device
from durable_core.tier.syscalls import NO_LINKS, NOT_APPLIED, lock, mapped, read_all, scan, tier_error
from durable_core.types import CrashPoint

#: Bytes read at a time where they are digested as they come: few enough to be in the cache still.
STREAM = 1 << 19


def _nothing(point: CrashPoint) -> None:
    """Crash points are for tests."""


class PosixTier(Tier):
    """Objects under ``path``, which is created by the first write.

    ``reached`` is called at the crash points K6 (part of a large object written) and K7 (all of it
    written, not yet fsynced). ``direct``: large objects go past the page cache where the disk allows.
    """

    replaces_atomically = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        reached: Callable[[CrashPoint], None] = _nothing,
        direct: bool = True,
    ) -> None:
        self.root = Path(path).absolute()
        self.location = str(self.root)
        self._tmp = self.root / "tmp"
        self._reached = reached
        self._direct = direct
        self._counter = itertools.count()
        self._durable: set[Path] = set()  # directories whose own names this process has made durable

    def before(self, action: str, path: Path) -> None:
        """Called before each step of a write, for tests to observe, fail or stop at.

        ``action`` is one of ``create``, ``write``, ``fsync``, ``mkdir``, ``link``, ``rename``, ``fsync-dir``
        and ``unlink``.
        """

    # --- reading ---------------------------------------------------------------------------

    def get(self, key: str, *, limit: int = DEFAULT_LIMIT) -> bytes:
        with self._open(key) as (fd, size):
            if size > limit:
                raise FormatError(key, f"{size} bytes, more than the limit of {limit}")
            out = bytearray(size)
            self._fill(key, fd, 0, memoryview(out))
            return bytes(out)

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        if offset < 0:
            raise UsageError(f"{key}: read at negative offset {offset}")
        with self._open(key) as (fd, _):
            self._fill(key, fd, offset, byte_view(out))

    def stream_into(
        self, key: str, offset: int, out: memoryview, seen: Callable[[memoryview], object]
    ) -> None:
        if offset < 0:
            raise UsageError(f"{key}: read at negative offset {offset}")
        view = byte_view(out)
        with self._open(key) as (fd, _):
            for begin in range(0, len(view), STREAM):
                part = view[begin : begin + STREAM]
                self._fill(key, fd, offset + begin, part)
                seen(part)

    def size(self, key: str) -> int:
        with self._open(key) as (_, size):
            return size

    def list(self, prefix: str) -> Iterator[str]:
        layout.check_prefix(prefix)
        todo = [self.root / prefix.rpartition("/")[0]]
        while todo:
            for path, is_directory in scan(todo.pop()):
                key = path.relative_to(self.root).as_posix()
                if is_directory:
                    if path != self._tmp and (key.startswith(prefix) or prefix.startswith(f"{key}/")):
                        todo.append(path)
                elif key.startswith(prefix) and not layout.key_fault(key):
                    yield key

    # --- writing ---------------------------------------------------------------------------

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        created, _ = self._publish(self._path(key), [data])
        return created

    def write_object(self, key: str, parts: Iterable[Buffer]) -> int:
        created, nbytes = self._publish(self._path(key), parts, large=True)
        if not created:
            raise UsageError(f"{key} is already there, and objects are immutable")
        return nbytes

    def put(self, key: str, data: Buffer) -> None:
        self._replace(self._path(key), [data])

    def replace_object(self, key: str, parts: Iterable[Buffer]) -> int:
        path = self._path(key)
        nbytes = self._replace(path, parts, large=True)
        self._sync_name(path)
        return nbytes

    def delete(self, key: str) -> None:
        # Not made durable: an object that reappears after a loss of power is collected again.
        path = self._path(key)
        with mapped(f"delete {path}"), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self.before("unlink", path)
            path.unlink()
        if path.parent.parent != self.root:
            # The last object of a prefix takes its directory along. Whoever creates in it at this very
            # moment finds it missing and makes it again (_name).
            with contextlib.suppress(OSError):
                path.parent.rmdir()

    def sync_tail(self, prefix: str) -> None:
        layout.check_prefix(prefix)
        directory = self.root / prefix.rpartition("/")[0]
        with mapped(f"sync {directory}"):
            if directory.is_dir():
                self._prepare(directory)  # its maker may have died before it was durable
                self._sync_directory(directory)

    def collect_residue(self, *, limit: int = 1000) -> int:
        removed = 0
        for path, _ in scan(self._tmp):
            if removed == limit:
                break
            with mapped(f"remove {path}"), contextlib.suppress(FileNotFoundError):
                removed += self._remove_if_dead(path)
        return removed

    # --- proving ---------------------------------------------------------------------------

    def probe(self) -> None:
        with self._temporary() as (fd, first), self._temporary() as (_, second):
            name = self._tmp / f"probe-{os.urandom(8).hex()}"
            try:
                self._write(fd, first, [b"first"])
                self._probe_link(fd, first, second, name)
                self._probe_sync()
            finally:
                name.unlink(missing_ok=True)

    def _probe_link(self, fd: int, first: Path, second: Path, name: Path) -> None:
        hint = "keep the run on a local disk, NFS or another file system with hard links"
        with mapped(f"probe {self._tmp}"):
            try:
                self.before("link", name)
                name.hardlink_to(first)
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                raise UnsupportedError(f"{self.root}: no hard links ({error.strerror})", hint=hint) from error
            if os.fstat(fd).st_nlink != 2 or name.read_bytes() != b"first":
                raise UnsupportedError(f"{self.root}: a hard link is not the file it was made of", hint=hint)
            try:
                name.hardlink_to(second)
            except FileExistsError:
                return
        raise UnsupportedError(f"{self.root}: creating a name twice succeeded twice", hint=hint)

    def _probe_sync(self) -> None:
        with mapped(f"probe {self._tmp}"):
            try:
                self._sync_directory(self._tmp)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
                    raise
                hint = "what is acknowledged here could be lost with the power; use another file system"
                raise UnsupportedError(f"{self.root}: a directory cannot be fsynced", hint=hint) from error

    # --- publishing ------------------------------------------------------------------------

    def _publish(self, path: Path, parts: Iterable[Buffer], *, large: bool = False) -> tuple[bool, int]:
        """Whether this call created ``path``, and the bytes written. Durable when it returns."""
        with self._temporary() as (fd, tmp):
            nbytes = self._write(fd, tmp, parts, large=large)
            created = self._name(path, fd, lambda: self._link(fd, tmp, path))
        if created:
            self._sync_name(path)
        return created, nbytes

    def _replace(self, path: Path, parts: Iterable[Buffer], *, large: bool = False) -> int:
        with self._temporary() as (fd, tmp):
            nbytes = self._write(fd, tmp, parts, large=large)
            self._name(path, fd, lambda: self._rename(tmp, path))
        return nbytes

    def _sync_name(self, path: Path) -> None:
        try:
            self._sync_directory(path.parent)
        except OSError as error:
            raise InDoubt(f"{path} is visible, but its directory was not synced: {error}") from error

    def _write(self, fd: int, tmp: Path, parts: Iterable[Buffer], *, large: bool = False) -> int:
        file = DirectFile(fd) if large and self._direct and on_a_block_device(fd) else BufferedFile(fd)
        reached = self._reached if large else _nothing
        written = 0
        for index, part in enumerate(parts):  # what producing a part raises is the caller's own
            view = byte_view(part)
            if index == 1:  # the first part is a header; stop in the middle of the data
                written += self._append(file, tmp, view[: len(view) // 2])
                reached(CrashPoint.K6)
                view = view[len(view) // 2 :]
            written += self._append(file, tmp, view)
        with mapped(f"write {tmp}"):
            file.flush()
        reached(CrashPoint.K7)
        with mapped(f"fsync {tmp}"):
            self.before("fsync", tmp)
            os.fsync(fd)
        return written

    def _append(self, file: BufferedFile | DirectFile, tmp: Path, view: memoryview) -> int:
        with mapped(f"write {tmp}"):
            self.before("write", tmp)
            return file.append(view)

    def _name(self, path: Path, fd: int, give: Callable[[], bool]) -> bool:
        """``give`` the complete, durable temporary its name, in a directory that is there and durable."""
        retried = False
        while True:
            try:
                with mapped(f"create {path.parent}", passing=FileNotFoundError):
                    self._prepare(path.parent)
                return give()
            except FileNotFoundError as error:
                if retried or not os.fstat(fd).st_nlink:  # it is the temporary that is gone
                    raise TierUnavailable(f"cannot create {path}: {error}") from error
                self._durable.clear()  # somebody removed the directory since it was prepared
                retried = True
            except OSError as error:
                if error.errno in NOT_APPLIED:
                    raise tier_error(error, f"create {path}") from error
                raise InDoubt(f"{path} may or may not have been created: {error}") from error

    def _link(self, fd: int, tmp: Path, path: Path) -> bool:
        self.before("link", path)
        try:
            path.hardlink_to(tmp)
        except OSError as error:
            # A file server whose reply was lost answers the repetition with EEXIST, or with an error,
            # for what it has done; the number of links tells.
            if os.fstat(fd).st_nlink > 1:
                return True
            if isinstance(error, FileExistsError):
                return False
            raise
        return True

    def _rename(self, tmp: Path, path: Path) -> bool:
        self.before("rename", path)
        tmp.replace(path)
        return True

    def _prepare(self, directory: Path) -> None:
        """Make ``directory`` exist and its name durable, up to the root of its file system."""
        if directory in self._durable:
            return
        if directory == self.root:
            self.before("mkdir", directory)
            directory.mkdir(parents=True, exist_ok=True)
            self._sync_ancestors()
        else:
            self._prepare(directory.parent)
            self.before("mkdir", directory)
            directory.mkdir(exist_ok=True)
            self._sync_directory(directory.parent)  # also when another process made it: it may not have yet
        self._durable.add(directory)

    def _sync_ancestors(self) -> None:
        device = self.root.stat().st_dev
        for ancestor in self.root.parents:
            if ancestor.stat().st_dev != device:
                break
            # A directory that may not be opened was there before: this user cannot have made it.
            with contextlib.suppress(PermissionError):
                self._sync_directory(ancestor)

    def _sync_directory(self, directory: Path) -> None:
        self.before("fsync-dir", directory)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    # --- temporaries -----------------------------------------------------------------------

    @contextlib.contextmanager
    def _temporary(self) -> Iterator[tuple[int, Path]]:
        with mapped(f"create a temporary in {self._tmp}"):
            fd, path = self._create_temporary()
        try:
            yield fd, path
        finally:
            # What was asked for is done or not by now; a name that cannot be removed is residue.
            with contextlib.suppress(OSError):
                self.before("unlink", path)
                path.unlink()
            with contextlib.suppress(OSError):
                os.close(fd)

    def _create_temporary(self) -> tuple[int, Path]:
        """A file of a unique name, locked for as long as it is open."""
        while True:
            path = self._tmp / f"{os.getpid()}-{next(self._counter)}-{os.urandom(8).hex()}"
            self.before("create", path)
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            except FileNotFoundError:
                self._tmp.mkdir(parents=True, exist_ok=True)
                continue
            # Only a collector can hold the lock of a name this new, and then it removes the file.
            if lock(fd) is not False and os.fstat(fd).st_nlink == 1:
                return fd, path
            os.close(fd)

    def _remove_if_dead(self, path: Path) -> bool:
        """Remove a temporary that no living process has locked."""
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        try:
            if lock(fd) is not True:
                return False
            self.before("unlink", path)
            path.unlink()
            return True
        finally:
            os.close(fd)

    # --- reading ---------------------------------------------------------------------------

    def _path(self, key: str) -> Path:
        return self.root / layout.check_key(key)

    @contextlib.contextmanager
    def _open(self, key: str) -> Iterator[tuple[int, int]]:
        """Descriptor and size. A planted link or pipe is no object: neither followed nor waited for."""
        path = f"{self.location}/{layout.check_key(key)}"  # asked for every slice: no Path
        with mapped(f"open {path}"):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except (FileNotFoundError, NotADirectoryError):
                raise ObjectNotFoundError(key, self.location) from None
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise ObjectNotFoundError(key, self.location)
            yield fd, status.st_size
        finally:
            os.close(fd)

    def _fill(self, key: str, fd: int, offset: int, out: memoryview) -> None:
        with mapped(f"read {self.location}/{key}"):
            got = read_all(fd, offset, out)
        if got < len(out):
            raise FormatError(key, f"ends at byte {offset + got}, {len(out) - got} bytes short")
