"""L3. How much memory may still be taken, asked before it is: running out of shared memory is a SIGBUS,
and running out of a control group's is a SIGKILL.

The limits are those of the tmpfs, of the machine, and of every control group around this process (v2:
``memory.max`` of each ancestor, see https://docs.kernel.org/admin-guide/cgroup-v2.html#memory; v1:
``memory.limit_in_bytes``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from durable_core.errors import MemoryShortageError

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")
#: v1 says "no limit" with a number close to 2**63, in pages.
_NO_LIMIT = 1 << 62


@dataclass(frozen=True)
class Room:
    """``free`` bytes left below one limit; ``what`` names it for a person."""

    what: str
    free: int


def rooms(directory: Path | None, *, proc: Path = _PROC, cgroup: Path = _CGROUP) -> list[Room]:
    """Every limit that memory in ``directory`` (a tmpfs; ``None``: anonymous memory) counts against."""
    found = [*_machine(proc), *_groups(proc, cgroup)]
    if directory is not None:
        found.append(Room(f"the file system at {directory}", _statvfs_free(directory)))
    return sorted(found, key=lambda room: room.free)


def require(nbytes: int, among: list[Room], *, what: str) -> None:
    """``UsageError`` with the numbers when ``nbytes`` more bytes do not fit below every limit."""
    for room in among:
        if nbytes > room.free:
            raise MemoryShortageError(
                f"{what} needs {nbytes} more bytes of memory, and {room.what} has {room.free} left",
                hint="use fewer slots, free what earlier runs left (durable gc --memory), or raise the limit",
            )


def _statvfs_free(directory: Path) -> int:
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


def _machine(proc: Path) -> Iterator[Room]:
    for line in _lines(proc / "meminfo"):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            yield Room("this machine", int(value.split()[0]) * 1024)


def _groups(proc: Path, cgroup: Path) -> Iterator[Room]:
    """Lines of /proc/self/cgroup: ``0::/path`` (v2) and ``7:memory:/path`` (v1)."""
    for line in _lines(proc / "self/cgroup"):
        number, controllers, path = line.rstrip("\n").split(":", 2)
        if number == "0" and not controllers:
            yield from _ancestors(
                cgroup, path, "memory.max", "memory.current", ("inactive_file", "active_file")
            )
        elif "memory" in controllers.split(","):
            yield from _ancestors(
                cgroup / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes",
                ("total_inactive_file", "total_active_file"),
            )  # fmt: skip


def _ancestors(root: Path, path: str, limit: str, used: str, cached: tuple[str, ...]) -> Iterator[Room]:
    group = PurePosixPath(path)
    for ancestor in (group, *group.parents):
        # Inside a container the path may be the host's: what is not there does not limit what can be seen.
        place = root / ancestor.relative_to("/")
        most, now = _number(place / limit), _number(place / used)
        if most is not None and now is not None and most < _NO_LIMIT:
            yield Room(f"the control group {ancestor}", max(0, most - now + _cache(place, cached)))


def _cache(group: Path, names: tuple[str, ...]) -> int:
    """Bytes of page cache, which the kernel drops before it kills."""
    pairs = (line.split() for line in _lines(group / "memory.stat"))
    return sum(int(value) for name, value in pairs if name in names)


def _number(path: Path) -> int | None:
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].strip().isdigit() else None  # "max": no limit


def _lines(path: Path) -> list[str]:
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            return file.readlines()
    except OSError:  # not this kind of system: that limit does not exist here
        return []
