"""L5. Who is there while a node waits for the others, told every few seconds."""

from __future__ import annotations

import logging
import threading

from torch.distributed import DistError
from torch.distributed.distributed_c10d import Store

from durable_core.clock import Clock

log = logging.getLogger(__name__)

#: Seconds between two looks, and before the first word of it.
LOOK_S, QUIET_S = 2.0, 4.0
_SIZE, _SIGN = "durable/roster/size", "durable/roster"


class Roster:
    """A thread that signs for this node and counts whose signature changes. ``least``: nodes needed."""

    def __init__(self, store: Store, name: str, clock: Clock, *, least: int, seconds: float) -> None:
        self._store, self._name, self._clock, self._least, self._seconds = store, name, clock, least, seconds
        self.seen: tuple[str, ...] = (name,)
        self._signs: dict[int, bytes] = {}
        self._end = threading.Event()
        self._begun = clock.monotonic()
        self._thread = threading.Thread(target=self._loop, name="durable-roster", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join()

    def _loop(self) -> None:
        try:
            mine = self._store.add(_SIZE, 1)
            looks = 0
            while not self._end.wait(LOOK_S):
                looks += 1
                self._store.set(f"{_SIGN}/{mine}", f"{looks} {self._name}")
                self._look(mine)
                waited = self._clock.monotonic() - self._begun
                if waited >= QUIET_S:
                    self._tell(waited)
        except DistError as error:
            log.debug("roster: %s", error)  # the one who joins meets the same, and handles it

    def _look(self, mine: int) -> None:
        """Present is whose signature is another than at the last look: clocks are not compared."""
        seen = [self._name]
        for other in range(1, self._store.add(_SIZE, 0) + 1):
            key = f"{_SIGN}/{other}"
            if other == mine or not self._store.check([key]):
                continue
            sign = self._store.get(key)
            if self._signs.get(other) not in (None, sign):
                seen.append(sign.decode().partition(" ")[2])
            self._signs[other] = sign
        self.seen = tuple(seen)

    def _tell(self, waited: float) -> None:
        log.warning(
            "waiting for nodes: %d of %d are here (%s) after %.0f s; giving up in %.0f s",
            len(self.seen), self._least, ", ".join(self.seen), waited, max(0.0, self._seconds - waited),
        )  # fmt: skip
