"""SIGTERM comes to each rank at another moment: all leave at one step, or one waits for a gradient that
never comes."""

from __future__ import annotations

import threading

from durable_core.session.poll import Poll, Wish
from durable_core.session.world import World


class Group:
    """Members that gather as ranks do: each waits for all."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size, timeout=60)
        self._values: dict[int, object] = {}
        self._roles = tuple(f"dp{rank}" for rank in range(size))

    def world(self, rank: int) -> World:
        def all_gather(value: object) -> list[object]:
            self._values[rank] = value
            self._barrier.wait()
            found = [self._values[each] for each in range(len(self._roles))]
            self._barrier.wait()
            return found

        return World(self._roles[rank], self._roles, lambda value: value, all_gather)


def test_whoever_hears_of_it_first_all_leave_at_the_same_step() -> None:
    group, left = Group(3), {}

    def train(rank: int, heard_at: int) -> None:
        poll = Poll(group.world(rank).greatest)
        for step in range(1, 100):
            wish = Wish.DRAIN if step >= heard_at else Wish.NOTHING
            if poll.at(wish, 0.1 * step) is Wish.DRAIN:
                left[rank] = step
                return

    threads = [threading.Thread(target=train, args=(rank, at)) for rank, at in enumerate((12, 13, 90))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(left) == 3 and len(set(left.values())) == 1
    assert 12 <= left[0] <= 12 + 8
