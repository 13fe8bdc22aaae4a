"""L5. The controller's last report: a hint beside the run, for ``durable status``. Nothing rests on it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from durable_core.clock import Clock
from durable_core.errors import CorruptError, ObjectNotFoundError, TierError
from durable_core.format import canonical, layout
from durable_core.tier.base import Tier

#: Seconds between two reports while nothing changes.
INTERVAL_S = 5.0
#: After so many the report is stale: whatever it says may have changed.
STALE_S = 3 * INTERVAL_S
VERSION = 1


@dataclass(frozen=True)
class Report:
    """``document``: as ``compose`` made it; ``time``: wall clock of its writer."""

    document: Mapping[str, Any]
    time: float

    def age_s(self, now: float) -> float:
        return max(0.0, now - self.time)

    def stale(self, now: float) -> bool:
        return self.age_s(now) > STALE_S

    def about(self, generation: int) -> bool:
        return bool(self.document.get("generation") == generation)

    def rows(self, name: str) -> list[Mapping[str, Any]]:
        found = self.document.get(name)
        return [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []


def read(tier: Tier) -> Report | None:
    """The last one; ``None`` when there is none that can be read: it is only a hint."""
    try:
        document = canonical.loads(tier.get(layout.CONTROLLER_HINT), key=layout.CONTROLLER_HINT)
    except (ObjectNotFoundError, CorruptError):
        return None
    if not isinstance(document, dict) or document.get("v") != VERSION:
        return None
    time = document.get("time")
    return Report(document, float(time)) if isinstance(time, (int, float)) else None


class Teller:
    """Writes the newest document from a thread of its own: a store that hangs holds nothing else up.
    ``missed``: reports that could not be written."""

    def __init__(self, tier: Tier, clock: Clock) -> None:
        self._tier, self._clock = tier, clock
        self._newest: Mapping[str, Any] | None = None
        self._wake = threading.Condition()
        self._ended = False
        self._told_at = -INTERVAL_S
        self._told: Mapping[str, Any] = {}
        self.missed = 0
        self._thread = threading.Thread(target=self._loop, name="durable-report", daemon=True)
        self._thread.start()

    def tell(self, document: Mapping[str, Any], *, changing: tuple[str, ...]) -> None:
        """Write it, if it differs from the last one in what is ``changing``, or that one is old."""
        now = self._clock.monotonic()
        same = all(document.get(name) == self._told.get(name) for name in changing)
        if same and now - self._told_at < INTERVAL_S:
            return
        self._told, self._told_at = document, now
        with self._wake:
            self._newest = {"v": VERSION, "time": self._clock.now(), **document}
            self._wake.notify()

    def close(self, seconds: float) -> None:
        """The last one is written, if the store takes it within ``seconds``."""
        with self._wake:
            self._ended = True
            self._wake.notify()
        self._thread.join(seconds)

    def _loop(self) -> None:
        while True:
            with self._wake:
                while self._newest is None and not self._ended:
                    self._wake.wait()
                document, self._newest = self._newest, None
            if document is None:
                return
            try:
                self._tier.put(layout.CONTROLLER_HINT, canonical.dumps(document))
            except TierError:
                self.missed += 1
