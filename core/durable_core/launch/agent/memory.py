"""L5. Whether the kernel has killed for memory here: the control group tells, and nothing else for sure."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_GROUP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def kills(group: Path = _GROUP, groups: Path = _GROUPS) -> int | None:
    """How many processes of this one's control group (version 2), and of those below it, the kernel has
    killed for memory so far, for a shortage of the whole machine too; ``None``: not known."""
    with suppress(OSError, ValueError):
        lines = group.read_text().splitlines()
        (own,) = (line.removeprefix("0::") for line in lines if line.startswith("0::"))
        events = (groups / own.lstrip("/") / "memory.events").read_text().split()
        return int(events[events.index("oom_kill") + 1])
    return None


def killed(before: int | None, after: int | None) -> bool:
    """Whether it did between two counts; what is not known is not claimed."""
    return before is not None and after is not None and after > before
