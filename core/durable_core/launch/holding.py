"""L5. The owner's hint in an agent's hands: a launch owns its run also while no worker of it beats.

Between the end of one group and the first beat of the next (the stop, the back-off, imports, a restore)
another launch would find the run without an owner, and fence a healthy one.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from durable_core.clock import Clock
from durable_core.engine import heartbeat
from durable_core.engine.heartbeat import Owner
from durable_core.errors import TierError
from durable_core.format import canonical, layout
from durable_core.tier.base import Tier

#: Seconds to take the hint back at the end. Left behind, it names a process that is gone.
_WITHDRAW_S = 2.0


class Holding:
    """From ``begin`` to ``end``, on a thread of its own: a store that hangs holds up nothing but the hint.
    ``launch``: as in records."""

    def __init__(self, root: str, open_tier: Callable[[str], Tier], clock: Clock, launch: str) -> None:
        self.root, self._open, self._clock, self._launch = root, open_tier, clock, launch
        self._generation = 0
        self._wake, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._loop, name="durable-holding", daemon=True)

    def begin(self, generation: int) -> None:
        """Of workers that are to come, or have just ended. Harmless when repeated."""
        self._generation = generation
        if self._thread.ident is None:
            self._thread.start()
        self._wake.set()

    def end(self) -> None:
        """The run is nobody's. Harmless when repeated."""
        if self._ended.is_set() or self._thread.ident is None:
            return
        self._ended.set()
        self._wake.set()
        self._thread.join(_WITHDRAW_S)

    def hold(self, tier: Tier) -> None:
        """Write the hint, unless a process that lives has it. The rows in it are kept: the next workers
        compare the steps that they replay with them."""
        owner = heartbeat.read(tier)
        now = self._clock.now()
        if owner is not None and not _is_me(owner) and owner.alive(now)[0]:
            return
        me = os.getpid()
        held = Owner(
            self._launch, self._generation, socket.gethostname(), heartbeat.boot_id(), me,
            heartbeat.process_start(me) or 0, now, [] if owner is None else owner.rows,
        )  # fmt: skip
        tier.put(layout.OWNER_HINT, canonical.dumps(vars(held)))

    def _loop(self) -> None:
        while not self._ended.is_set():
            self._try(self.hold)
            self._wake.wait(heartbeat.INTERVAL_S)
            self._wake.clear()
        self._try(_withdraw)

    def _try(self, do: Callable[[Tier], None]) -> None:
        with suppress(TierError):  # a hint: claims and workers meet the same trouble, and say so
            do(self._open(self.root))


def _withdraw(tier: Tier) -> None:
    owner = heartbeat.read(tier)
    if owner is not None and _is_me(owner):
        tier.delete(layout.OWNER_HINT)


def _is_me(owner: Owner) -> bool:
    here = (socket.gethostname(), heartbeat.boot_id(), os.getpid())
    return (owner.host, owner.boot, owner.pid) == here and owner.started == heartbeat.process_start(owner.pid)
