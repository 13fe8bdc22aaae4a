"""Ranks that wish different things at different times act alike, and seldom talk."""

from __future__ import annotations

import contextlib

import pytest

from durable_core.session.poll import MAX_STEPS, Poll, Wish


class Ranks:
    """Lock-step ranks with clocks of their own; a poll in which not all take part would be seen here."""

    def __init__(self, rates: list[float]) -> None:
        self.rates = rates
        self.meetings = 0
        self.waiting: list[tuple[int, int]] = []
        self.polls = [Poll(self.meet) for _ in rates]

    def meet(self, values: tuple[int, int]) -> tuple[int, int]:
        raise AssertionError("replaced below")

    def boundary(self, step: int, wishes: list[Wish]) -> list[Wish]:
        """Two passes: the first gathers what every rank would send, the second answers them."""
        sent: list[tuple[int, int]] = []

        class Asked(Exception):
            pass

        def gather(values: tuple[int, int]) -> tuple[int, int]:
            sent.append(values)
            raise Asked

        states = [vars(poll).copy() for poll in self.polls]
        for poll, wish, rate in zip(self.polls, wishes, self.rates, strict=True):
            poll._reduce_max = gather
            with contextlib.suppress(Asked):
                poll.at(wish, step * rate)
        assert len(sent) in (0, len(self.polls)), "some ranks polled and some did not: a hang"
        self.meetings += bool(sent)
        answer = tuple(max(column) for column in zip(*sent, strict=True)) if sent else (0, 0)
        results = []
        for poll, state, wish, rate in zip(self.polls, states, wishes, self.rates, strict=True):
            vars(poll).update(state)
            poll._reduce_max = lambda values: answer  # type: ignore[assignment,return-value]
            results.append(poll.at(wish, step * rate))
        return results


@pytest.mark.parametrize("rates", [[0.001, 0.001], [0.001, 0.3], [5.0, 5.0, 4.0], [0.1, 0.2, 0.05]])
@pytest.mark.parametrize("wishing", [0, 1])
def test_a_wish_of_one_rank_is_granted_to_all_at_one_step(rates: list[float], wishing: int) -> None:
    ranks = Ranks(rates)
    for step in range(1, 200):
        wishes = [Wish.NOTHING] * len(rates)
        if step >= 150:
            wishes[wishing] = Wish.DRAIN
        granted = ranks.boundary(step, wishes)
        assert len(set(granted)) == 1
        if granted[0] is Wish.DRAIN:
            assert step - 150 < MAX_STEPS
            return
    raise AssertionError("never granted")


def test_quick_steps_poll_seldom_and_slow_steps_at_once() -> None:
    quick, slow = Ranks([0.001, 0.001]), Ranks([2.0, 2.0])
    for step in range(1, 101):
        quick.boundary(step, [Wish.NOTHING] * 2)
        slow.boundary(step, [Wish.NOTHING] * 2)
    assert quick.meetings <= 100 / MAX_STEPS + 3
    assert slow.meetings == 100


def test_the_greatest_wish_wins_and_a_process_alone_asks_nobody() -> None:
    ranks = Ranks([1.0, 1.0])
    assert ranks.boundary(1, [Wish.DRAIN, Wish.FENCED]) == [Wish.FENCED, Wish.FENCED]
    assert Poll(None).at(Wish.DRAIN, 0.0) is Wish.DRAIN
