"""L4. The owner's heartbeat: a hint that a run is live. Advisory; fencing is what protects.

It also carries the last metric rows, the reference against which the next generation compares the
steps it replays (VERIF-01).
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from durable_core.clock import Clock
from durable_core.errors import CorruptError, ObjectNotFoundError, TierError
from durable_core.format import canonical, layout
from durable_core.tier.base import Tier

INTERVAL_S = 5.0
#: Seconds after which the owner of another host, which is not heard of again, is taken for gone.
PATIENCE_S = 3 * INTERVAL_S + 1
_POLL_S = 0.1


@dataclass(frozen=True)
class Owner:
    launch_id: str
    generation: int
    host: str
    boot: str
    pid: int
    started: int  # clock ticks since boot: tells a reused pid from the same process
    time: float
    rows: list[Any]  # JSON; what a row means is known to the session

    def alive(self, now: float) -> tuple[bool, str]:
        """Whether the owner still lives as far as can be told from here, and why."""
        if (self.host, self.boot) == (socket.gethostname(), boot_id()):
            if process_start(self.pid) == self.started:
                return True, f"process {self.pid} on this host owns the run"
            return False, f"process {self.pid} on this host is gone"
        age = now - self.time
        if age < 3 * INTERVAL_S:
            return True, f"{self.host} wrote a heartbeat {age:.0f} s ago"
        return False, f"last heartbeat {age:.0f} s ago"


_KINDS: dict[str, type | tuple[type, ...]] = {
    "launch_id": str, "generation": int, "host": str, "boot": str, "pid": int, "started": int,
    "time": (int, float), "rows": list,
}  # fmt: skip


def boot_id() -> str:
    try:
        with Path("/proc/sys/kernel/random/boot_id").open(encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def process_start(pid: int) -> int | None:
    """Start time of a live process in clock ticks (field 22 of /proc/PID/stat); None if gone."""
    try:
        with Path(f"/proc/{pid}/stat").open("rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def read(tier: Tier) -> Owner | None:
    """The last heartbeat, or None when there is none that can be read: it is only a hint."""
    try:
        doc = canonical.loads(tier.get(layout.OWNER_HINT), key=layout.OWNER_HINT)
        owner = Owner(**doc)
    except (ObjectNotFoundError, CorruptError, TypeError):
        return None
    whole = all(isinstance(getattr(owner, name), kind) for name, kind in _KINDS.items())
    return owner if whole else None


def contender(
    look: Callable[[], Owner | None], clock: Clock, launch_id: str, kin: Collection[int], patience_s: float
) -> tuple[Owner, str] | None:
    """The owner that a start of ``launch_id`` has to leave the run to, and why; ``None`` once there is none.

    Another launch's that beats while it is watched is alive, and so is one that after ``patience_s`` is
    neither gone nor heard of. One of the same launch may be what a dead agent of it has left, and will be
    ended: it is another start of the same name when it beats again and again.
    """
    begun, seen = clock.monotonic(), set[float]()
    while (owner := look()) is not None:
        namesake = owner.launch_id == launch_id
        alive, why = owner.alive(clock.now())
        if not alive or (namesake and not lives_beside(owner, kin)):
            return None
        seen.add(owner.time)
        late = clock.monotonic() - begun > patience_s
        if late and namesake and len(seen) == 1:
            return None
        if late or len(seen) > (2 if namesake else 1):
            return owner, why
        clock.sleep(_POLL_S)
    return None


def lives_beside(owner: Owner, kin: Collection[int]) -> bool:
    """Whether ``owner`` is a live process of this host that neither is one of ``kin`` nor descends from one:
    of a launcher that does not know of us."""
    if (owner.host, owner.boot) != (socket.gethostname(), boot_id()):
        return False
    if process_start(owner.pid) != owner.started:
        return False
    return not any(pid in kin for pid in ancestry(owner.pid))


def ancestry(pid: int) -> Iterator[int]:
    """``pid``, its parent, and so on, as far as this host knows."""
    while pid:
        yield pid
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except OSError:
            return


class Heartbeat:
    """Writes the hint every few seconds from a daemon thread until stopped."""

    def __init__(
        self,
        tier: Tier,
        clock: Clock,
        launch_id: str,
        generation: int,
        rows: Callable[[], list[Any]],
    ) -> None:
        self._tier, self._clock = tier, clock
        self._launch_id, self._generation, self._rows = launch_id, generation, rows
        self._stop = threading.Event()
        self.missed = 0
        self._thread = threading.Thread(target=self._loop, name="durable-heartbeat", daemon=True)

    def start(self) -> None:
        self.beat()
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and removes the hint, so that the next start need not ask."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=INTERVAL_S)
        try:
            owner = read(self._tier)
            mine = (self._launch_id, self._generation)
            if owner is not None and (owner.launch_id, owner.generation) == mine:
                self._tier.delete(layout.OWNER_HINT)
        except TierError:
            self.missed += 1  # the hint is found stale by whoever reads it

    def beat(self) -> None:
        pid = os.getpid()
        owner = Owner(
            self._launch_id, self._generation, socket.gethostname(), boot_id(), pid,
            process_start(pid) or 0, self._clock.now(), self._rows(),
        )  # fmt: skip
        try:
            self._tier.put(layout.OWNER_HINT, canonical.dumps(vars(owner)))
        except TierError:
            self.missed += 1  # storage trouble is reported by the saves themselves

    def _loop(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self.beat()
