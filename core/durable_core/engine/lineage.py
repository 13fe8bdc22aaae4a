"""L4. What one writer remembers of its last committed save, so that the next one writes only what changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from durable_core.commit.request import Known, SaveOutcome
from durable_core.engine.staged import Earlier, StagedShard


class Lineage:
    """``known``: the manifest of the last commit, where this process made it.

    The slot of the last commit is held for comparison until the next save has compared, unless it is needed
    (``spare``): then that save writes changed slices whole. Saves run one after the other, on one thread.
    """

    def __init__(self) -> None:
        self.known: Known | None = None
        self._earlier: Earlier | None = None

    @contextmanager
    def following(self, shard: StagedShard) -> Iterator[None]:
        """Around the program of a save: ``shard`` may compare itself with the last one."""
        shard.follow(self._earlier)
        try:
            yield
        finally:
            shard.follow(None)

    def committed(self, outcome: SaveOutcome, shard: StagedShard, release: Callable[[], None]) -> None:
        """``shard`` is the last one now; ``release`` ends the use of its slot, and is called once."""
        self.spare()
        self.known, self._earlier = outcome.known, Earlier(shard, release)

    def spare(self) -> bool:
        """Give the slot back, from any thread; whether there was one to give.

        Also while a save compares itself with it, which could go on for as long as a store takes to answer: a
        snapshot that has no slot costs more than slices that are written whole.
        """
        return self._earlier is not None and self._earlier.let_go()
