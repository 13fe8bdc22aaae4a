"""L5. Saves that one writer has given up, told to the others when they next agree on a slot."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

#: Rounds that are remembered: more than saves can be under way.
_KEPT = 64


class GivenUp:
    """A save of several writers ends in the journal; when that cannot be written, whoever waits for the
    others would wait until the deadline, and no save could begin meanwhile. ``round``: how often the writers
    have agreed, which is the same for all of them and names a save.
    """

    def __init__(self) -> None:
        self.round = 0
        self._own: deque[int] = deque()
        self._known: frozenset[int] = frozenset()

    def add(self, round_: int) -> None:
        """This writer has given that save up. On the writer's thread; all else is on the training thread."""
        self._own.append(round_)

    def told(self) -> list[int]:
        """What the others have not heard yet."""
        return [self._own.popleft() for _ in range(len(self._own))]

    def heard(self, rounds: Iterable[int]) -> None:
        """All writers have told, and agree once more."""
        self.round += 1
        self._known = frozenset(one for one in (*self._known, *rounds) if one > self.round - _KEPT)

    def why(self, round_: int) -> str:
        """``""``: as far as is known, all go on with it. On any thread."""
        return "another writer has given it up" if round_ in self._known else ""
