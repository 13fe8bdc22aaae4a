"""L4. What one writer remembers of its last committed save, so that the next one writes only what changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from durable_core.commit.request import Known, SaveOutcome
from durable_core.engine.staged import StagedShard


class Lineage:
    """``known``: the manifest of the last commit, where this process made it.

    The slot of the last commit is held for comparison until the next save has compared, unless it is needed
    (``spare``): then that save writes changed slices whole. Saves run one after the other, on one thread.
    """

    def __init__(self) -> None:
        self.known: Known | None = None
        self._lock = threading.Lock()
        self._shard: StagedShard | None = None
        self._release: Callable[[], None] = lambda: None
        self._comparing = False

    @contextmanager
    def following(self, shard: StagedShard) -> Iterator[None]:
        """Around the program of a save: ``shard`` may compare itself with the last one."""
        with self._lock:
            self._comparing = self._shard is not None
            previous = self._shard
        shard.follow(previous, self._compared)
        try:
            yield
        finally:
            shard.follow(None, lambda: None)
            with self._lock:
                self._comparing = False

    def committed(self, outcome: SaveOutcome, shard: StagedShard, release: Callable[[], None]) -> None:
        """``shard`` is the last one now; ``release`` ends the use of its slot, and is called once."""
        self._let_go()
        self.known = outcome.known
        with self._lock:
            self._shard, self._release = shard, release

    def spare(self) -> bool:
        """Give the slot back if it is only being held, from any thread; whether there was one to give."""
        return self._let_go(comparing=False)

    def close(self) -> None:
        self._let_go()

    def _compared(self) -> None:
        self._let_go()
        with self._lock:
            self._comparing = False

    def _let_go(self, *, comparing: bool = True) -> bool:
        """Whether there was a slot to give back; one that is being compared with only if ``comparing``."""
        with self._lock:
            if self._shard is None or (self._comparing and not comparing):
                return False
            release = self._release
            self._shard, self._release = None, lambda: None
        release()
        return True
