"""The ledger: batches handed over, batches acknowledged, and nothing between lost or doubled."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
import torch

from durable_core.data import DurableLoader
from durable_core.data import ledger as module
from durable_core.data.cursor import Cursor
from durable_core.data.ledger import Ledger, Tag
from durable_core.errors import OrderError, UsageError
from durable_core.format.ledger import RowFlag


def make(epoch: int = 0, batch: int = 0) -> Ledger:
    return Ledger(Cursor("d", "full_prp_v1", 1, epoch, batch, 12, 4, "drop"))


def tag(epoch: int, batch: int, *, last: bool = False, state: object = None) -> Tag:
    return Tag(epoch, batch, np.arange(2) + 4 * batch, 4, last, state)


def places(ledger: Ledger) -> list[tuple[int, int, int]]:
    return [(row.step, row.epoch, row.batch) for row in ledger.rows_since(0)]


def test_only_what_is_acknowledged_counts() -> None:
    ledger = make()
    for k in range(3):
        ledger.hand_over(tag(0, k, last=k == 2, state=f"after {k}"))
    assert (ledger.cursor.epoch, ledger.cursor.batch, ledger.outstanding) == (0, 0, 3)
    ledger.acknowledge(2, step=1, no_update=True)
    assert (ledger.cursor.batch, ledger.cursor.consumed_samples, ledger.state) == (2, 8, "after 1")
    row = ledger.rows_since(0)[1]
    assert (row.step, row.batch, row.ids.tolist(), row.no_update) == (1, 1, [4, 5], True)
    ledger.acknowledge(1, step=2, no_update=False)
    assert (ledger.cursor.epoch, ledger.cursor.batch, ledger.state) == (1, 0, None)
    assert places(ledger) == [(1, 0, 0), (1, 0, 1), (2, 0, 2)]


@pytest.mark.parametrize("wrong", [(0, 0), (0, 2), (1, 0), (1, 1)])
def test_a_gap_or_repeat_in_the_delivery_raises(wrong: tuple[int, int]) -> None:
    ledger = make()
    ledger.hand_over(tag(0, 0))
    with pytest.raises(OrderError, match="lost or repeated"):
        ledger.hand_over(tag(*wrong))


def test_more_than_handed_over_raises_and_records_nothing() -> None:
    ledger = make()
    ledger.hand_over(tag(0, 0))
    with pytest.raises(OrderError, match="of 1 handed over"):
        ledger.acknowledge(2, step=1, no_update=False)
    assert (ledger.outstanding, places(ledger)) == (1, [])
    for n, step in ((0, 1), (1, -1)):
        with pytest.raises(UsageError):
            ledger.acknowledge(n, step=step, no_update=False)


def test_accumulation_may_straddle_epochs_that_ended() -> None:
    ledger = make()
    ledger.hand_over(tag(0, 0, last=True))
    ledger.follow(1)
    assert ledger.position == (0, 0)
    ledger.hand_over(tag(1, 0))
    ledger.acknowledge(2, step=1, no_update=False)
    assert places(ledger) == [(1, 0, 0), (1, 1, 0)] and ledger.position == (1, 1)


def test_an_epoch_left_early_at_the_end_of_a_run_is_declared_with_the_last_rows() -> None:
    ledger = make()
    ledger.hand_over(tag(0, 0))
    ledger.acknowledge(1, step=1, no_update=False)
    ledger.leave(1)
    assert [(row.step, row.batch, row.abandoned) for row in ledger.drain_rows()] == [
        (1, 0, False),
        (1, 1, True),
    ]
    assert ledger.drain_rows() == ()
    ledger.hand_over(tag(1, 0))
    ledger.acknowledge(1, step=2, no_update=False)
    assert [(row.epoch, row.abandoned) for row in ledger.drain_rows()] == [(1, False)]


def test_an_epoch_left_early_is_declared_with_the_next_batch() -> None:
    ledger = make()
    for k in range(2):
        ledger.hand_over(tag(0, k, state=k))
    ledger.acknowledge(1, step=1, no_update=False)
    ledger.leave(1)
    assert ledger.position == (1, 0) and ledger.state is None  # what a save in between would store
    ledger.acknowledge(1, step=2, no_update=False)  # late, but its pass has not been replaced yet
    assert ledger.position == (1, 0) and ledger.cursor.consumed_samples == 8
    ledger.hand_over(tag(1, 0, state="new"))
    ledger.acknowledge(1, step=3, no_update=False)
    assert places(ledger) == [(1, 0, 0), (2, 0, 1), (3, 0, 2), (3, 1, 0)]
    assert [row.abandoned for row in ledger.rows_since(0)] == [False, False, True, False]
    assert ledger.state == "new"


def test_a_look_ahead_batch_of_a_left_epoch_is_never_counted() -> None:
    ledger = make()
    for k in range(2):
        ledger.hand_over(tag(0, k))
    ledger.acknowledge(1, step=1, no_update=False)
    ledger.leave(1)
    ledger.hand_over(tag(1, 0))
    assert ledger.outstanding == 1
    ledger.acknowledge(1, step=2, no_update=False)
    assert places(ledger) == [(1, 0, 0), (2, 0, 1), (2, 1, 0)] and ledger.cursor.consumed_samples == 8


def test_a_pass_that_begins_again_forgets_what_it_handed_over() -> None:
    ledger = make(2, 1)
    ledger.hand_over(tag(2, 1))
    ledger.rewind(2, 1)
    assert ledger.outstanding == 0
    ledger.hand_over(tag(2, 1))


def test_an_end_nobody_knew_before() -> None:
    ledger = make()
    ledger.hand_over(tag(0, 0, state="s"))
    ledger.end_pass()
    assert ledger.position == (0, 0)
    ledger.acknowledge(1, step=1, no_update=False)
    assert (ledger.position, ledger.state) == ((1, 0), None)

    already = make()
    already.hand_over(tag(0, 0, state="s"))
    already.acknowledge(1, step=1, no_update=False)
    assert (already.position, already.state) == ((0, 1), "s")
    already.end_pass()
    assert (already.position, already.state) == ((1, 0), None)


def test_an_epoch_without_a_batch_after_one_that_was_left_early() -> None:
    ledger = make()
    for k in range(2):
        ledger.hand_over(tag(0, k))
    ledger.acknowledge(1, step=1, no_update=False)
    ledger.leave(1)
    ledger.end_pass()
    assert (ledger.position, ledger.outstanding) == ((2, 0), 0)
    ledger.follow(2)
    ledger.hand_over(tag(2, 0))
    ledger.acknowledge(1, step=2, no_update=False)
    assert places(ledger) == [(1, 0, 0), (2, 0, 1), (2, 2, 0)]
    assert [row.abandoned for row in ledger.rows_since(0)] == [False, True, False]


@pytest.mark.parametrize("trained", [True, False])
def test_an_epoch_without_a_batch_is_declared_too(trained: bool) -> None:
    ledger = make()
    ledger.hand_over(tag(0, 0, last=True))
    if trained:
        ledger.acknowledge(1, step=1, no_update=False)
    for epoch in (1, 2):
        ledger.follow(epoch)
        ledger.end_pass()
    ledger.follow(3)
    ledger.hand_over(tag(3, 0))
    ledger.acknowledge(1 if trained else 2, step=2, no_update=False)
    rows = ledger.drain_rows()
    assert [(row.epoch, row.abandoned) for row in rows] == [(0, False), (1, True), (3, False)]
    assert ledger.position == (3, 1)


def test_rows_stay_until_a_commit_made_them_durable() -> None:
    ledger = make()
    for k in range(3):
        ledger.hand_over(tag(0, k))
        ledger.acknowledge(1, step=k + 1, no_update=False)
    assert [row.step for row in ledger.rows_since(1)] == [2, 3]
    ledger.forget_rows(2)
    assert [row.step for row in ledger.rows_since(0)] == [3]
    assert [row.step for row in ledger.drain_rows()] == [3] and not ledger.rows_since(0)


def test_memory_is_bounded_for_a_caller_that_never_acknowledges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 3)
    monkeypatch.setattr(module, "MIN_KEPT", 1)
    ledger = make()
    for k in range(5):
        ledger.hand_over(tag(0, k))
    assert ledger.outstanding == 3
    with pytest.raises(OrderError, match="first 2 batches"):
        ledger.acknowledge(1, step=1, no_update=False)


def test_large_states_count_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(state: object) -> int:
        ledger = make()
        for k in range(300):
            ledger.hand_over(tag(0, k, state=state))
        return ledger.outstanding

    monkeypatch.setattr(module, "MIN_KEPT", 4)
    monkeypatch.setattr(module, "MAX_KEPT_BYTES", 1 << 20)
    assert kept(None) == kept({"at": 1}) == 300
    for large in ({"buffer": list(range(5000))}, [b"x" * 40_000], {"a": {"b": np.zeros(5000)}}):
        assert 4 < kept(large) < 30
    assert kept(["x" * (1 << 21)]) == 4
    assert kept(state=[torch.zeros(5000, dtype=torch.float64)]) < 30


# --- states that go on over the end of an epoch --------------------------------------------------------


def carrying(epoch: int = 0, batch: int = 0, state: object = None) -> Ledger:
    return Ledger(Cursor("d", "quota_v1", 1, epoch, batch, None, 4, "drop"), state, carries=True)


def test_a_state_that_carries_is_kept_at_the_end_of_an_epoch() -> None:
    for last in (True, False):
        ledger = carrying()
        ledger.hand_over(tag(0, 0, state="one"))
        ledger.hand_over(tag(0, 1, last=last, state="two"))
        if not last:
            ledger.end_pass()
        assert (ledger.state, ledger.opening) == (None, "two")
        ledger.follow(1)
        assert ledger.opening == "two"  # all that was handed over before an end that was seen
        ledger.acknowledge(2, step=1, no_update=False)
        assert (ledger.position, ledger.state, ledger.opening) == ((1, 0), "two", "two")


def test_an_end_seen_only_after_all_was_acknowledged_keeps_it_too() -> None:
    ledger = carrying()
    ledger.hand_over(tag(0, 0, state="one"))
    ledger.acknowledge(1, step=1, no_update=False)
    ledger.end_pass()
    assert (ledger.position, ledger.state) == ((1, 0), "one")


def test_an_epoch_left_early_goes_on_from_what_was_acknowledged_by_then() -> None:
    ledger = carrying()
    for k, state in enumerate(("one", "two", "three")):
        ledger.hand_over(tag(0, k, state=state))
    ledger.acknowledge(1, step=1, no_update=False)
    ledger.leave(1)
    assert (ledger.position, ledger.state, ledger.opening) == ((1, 0), "one", "one")
    ledger.acknowledge(1, step=2, no_update=False)
    assert (ledger.state, ledger.opening) == ("two", "two")
    ledger.hand_over(tag(1, 0, state="two, then four"))
    assert (ledger.state, ledger.opening) == ("two", "two, then four")
    ledger.rewind(1, 0)
    assert ledger.opening == "two"


def test_a_state_that_does_not_carry_begins_anew() -> None:
    ledger = make()
    ledger.hand_over(tag(0, 0, state="one"))
    ledger.hand_over(tag(0, 1, last=True, state="two"))
    assert ledger.opening is None
    ledger.acknowledge(1, step=1, no_update=False)
    ledger.leave(1)
    assert (ledger.state, ledger.opening) == (None, None)


# --- what a row says ---------------------------------------------------------------------------------


def test_a_row_has_the_amounts_and_flags_of_its_batch_and_another_what_was_left_out() -> None:
    ledger = make()
    ids, amounts = np.array([3, 4]), np.array([10, 0])
    ledger.hand_over(Tag(0, 0, ids, 4, amounts=amounts, flags=RowFlag.PADDED, skipped=np.array([7, 9])))
    ledger.acknowledge(1, step=1, no_update=True)
    batch, left_out = ledger.drain_rows()
    assert (batch.amounts is amounts, batch.flags) == (True, RowFlag.PADDED | RowFlag.NO_UPDATE)
    assert (left_out.step, left_out.batch, left_out.ids.tolist()) == (1, 0, [7, 9])
    assert left_out.skipped and left_out.no_update and left_out.amounts is None
    assert ledger.cursor.consumed_samples == 4


def told_of(steps: list[tuple[int, int]], *, batches: int = 6, accumulate: int = 3) -> list[str]:
    """What is said of (step, batches acknowledged) by a loader of ``batches`` an epoch."""
    loader = DurableLoader(range(batches), 1, seed=1, dataset_id="x", accumulate=accumulate)
    taken = itertools.chain.from_iterable(itertools.repeat(loader))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for step, count in steps:
            for _ in range(count):
                next(taken)
            loader.acknowledge(count, step=step)
    return [str(warning.message) for warning in found]


def test_a_step_of_other_batches_than_was_claimed_is_told_once() -> None:
    (told,) = told_of([(1, 3), (2, 2), (3, 1), (4, 2), (5, 3)], batches=20)
    assert "step 2 had 2 batches" in told and "accumulate=3" in told
    assert not told_of([(1, 3), (2, 1), (2, 2), (3, 3)])  # one by one
    assert not told_of([(1, 3), (2, 2), (3, 3), (4, 2), (5, 3)], batches=5)  # the end of an epoch
    assert not told_of([(1, 3), (2, 2), (2, 3), (3, 2), (4, 3)], batches=5)  # no step of its own
    assert not told_of([(1, 1), (2, 2), (3, 1)], accumulate=1)  # nothing was claimed
