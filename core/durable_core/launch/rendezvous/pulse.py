"""L5. Signs of life of the agents of one round, in its store: which of them is gone when a group has ended.

The errors of workers that survive say that a peer is gone, and not whether its process crashed or its host is
lost. So every agent signs each second, and once more when it has seen the end of the attempt itself; one that
does neither is lost.
"""

from __future__ import annotations

import logging
import socket
import threading

from torch.distributed import DistError
from torch.distributed.distributed_c10d import Store

from durable_core.clock import Clock
from durable_core.launch.evidence import Lost

log = logging.getLogger(__name__)

#: Seconds without a sign of an agent that has not said that it saw the end, after which its node is lost:
#: more than the three signs that torch's rendezvous waits for.
LOST_S = 5.0
_POLL_S = 0.1
_KEY = "durable/pulse"
_END = " end"


class Pulse:
    """``node``: of ``nodes``, this one's number in the round."""

    def __init__(self, store: Store, node: int, nodes: int, clock: Clock) -> None:
        self._store, self._clock, self._mine = store, clock, f"{_KEY}/{node}"
        self._others = [f"{_KEY}/{other}" for other in range(nodes) if other != node]
        self._signed, self._end = 0, ""
        self._lock = threading.Lock()

    def sign(self, end: str = "") -> None:
        """Every second, from whatever thread. ``DistError``: the store is lost."""
        with self._lock:
            self._signed += 1
            self._end = self._end or end
            self._store.set(self._mine, f"{socket.gethostname()} {self._signed}{self._end}")

    def end(self) -> None:
        """This agent has seen that the attempt ended: it lives, whatever it does next."""
        self.sign(_END)

    def lost(self) -> tuple[Lost, ...]:
        """The nodes whose agents do not sign. Waits until every other one has signed or ended, at most
        ``LOST_S``. One on this host is lost without its host; of a store that is lost it is the host."""
        try:
            hosts = self._silent()
        except DistError as error:
            log.warning("the store of the rendezvous is lost: %s", str(error).split("\n", 1)[0])
            return (Lost(""),)
        return tuple(Lost("" if host == socket.gethostname() else host) for host in hosts)

    def _silent(self) -> list[str]:
        known = {key: self._read(key) for key in self._others}
        silent = {key for key, sign in known.items() if not sign.endswith(_END)}
        until = self._clock.monotonic() + LOST_S
        while silent and self._clock.monotonic() < until:
            self._clock.sleep(_POLL_S)
            silent = {key for key in silent if self._read(key) == known[key]}
        return [known[key].partition(" ")[0] for key in sorted(silent)]

    def _read(self, key: str) -> str:
        return self._store.get(key).decode() if self._store.check([key]) else ""
