"""The layout: positions into global batches, batches into shares, under every remainder policy."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_core.data.layout import REMAINDERS, Layout, Remainder
from durable_core.errors import UnsupportedError, UsageError

EPOCHS = 4


def made(size: int, batch: int, remainder: Remainder) -> Layout | None:
    """The layout, or None for one that is refused as it should be."""
    try:
        return Layout(size, batch, remainder)
    except UsageError:
        allowed = {"drop": batch <= size, "straddle": batch <= size, "wrap": batch <= 2 * size}
        assert not allowed.get(remainder, True)
        return None


def expected(size: int, batch: int, remainder: Remainder) -> list[list[list[tuple[int, int]]]]:
    """[epoch][batch] -> (epoch, position) of each sample, by the words of the docstring, one at a time."""
    if remainder == "straddle":
        epochs: list[list[list[tuple[int, int]]]] = [[] for _ in range(EPOCHS)]
        for start in range(0, EPOCHS * size, batch):
            epochs[start // size].append([divmod(p, size) for p in range(start, start + batch)])
        return epochs
    cut = [range(start, min(start + batch, size)) for start in range(0, size, batch)]
    if remainder == "drop":
        cut = [part for part in cut if len(part) == batch]
    rows = [list(part) for part in cut]
    if remainder == "wrap":
        rows[-1] += [p % size for p in range(batch - len(rows[-1]))]
    return [[[(epoch, p) for p in row] for row in rows] for epoch in range(EPOCHS)]


def spelt_out(layout: Layout, epoch: int, batch: int, *share: int) -> list[tuple[int, int]]:
    return [(e, p) for e, start, stop in layout.spans(epoch, batch, *share) for p in range(start, stop)]


@given(
    size=st.integers(1, 60),
    batch=st.integers(1, 70),
    replicas=st.integers(1, 7),
    remainder=st.sampled_from(REMAINDERS),
)
@settings(max_examples=400, deadline=None)
def test_batches_and_shares_are_what_is_declared(
    size: int, batch: int, replicas: int, remainder: Remainder
) -> None:
    layout = made(size, batch, remainder)
    if layout is None:
        return
    step = 0
    for epoch, due in enumerate(expected(size, batch, remainder)):
        assert layout.batches_in(epoch) == len(due) > 0
        for k, samples in enumerate(due):
            assert layout.position(step) == (epoch, k)
            assert layout.step(epoch, k) == step
            assert spelt_out(layout, epoch, k) == samples
            assert layout.samples(epoch, k) == len(samples)
            shares = [spelt_out(layout, epoch, k, r, replicas) for r in range(replicas)]
            assert [sample for share in shares for sample in share] == samples
            lengths = [len(share) for share in shares]
            assert max(lengths) - min(lengths) <= 1
            step += 1
        assert layout.samples(epoch, 0, len(due)) == sum(map(len, due))


@given(size=st.integers(1, 60), share=st.integers(1, 9), replicas=st.integers(1, 7))
def test_padding_makes_every_share_of_every_batch_equal(size: int, share: int, replicas: int) -> None:
    layout = Layout(size, share * replicas, "pad")
    layout.check_shares(replicas)
    masked = 0
    for batch in range(layout.batches):
        for replica in range(replicas):
            real = len(spelt_out(layout, 3, batch, replica, replicas))
            padded = layout.padded(3, batch, replica, replicas)
            assert real + padded == share and real >= 0
            masked += padded
        assert layout.padded(3, batch) == share * replicas - layout.samples(3, batch)
    assert masked == layout.batches * share * replicas - size


def test_only_padding_masks() -> None:
    for remainder in REMAINDERS:
        assert Layout(10, 4, remainder).padded(0, 1, 1, 2) == 0
    assert Layout(10, 4, "pad").padded(0, 2) == 2


def test_a_batch_that_straddles_is_the_interval_of_the_endless_row() -> None:
    layout = Layout(10, 4, "straddle")
    assert layout.spans(0, 2) == ((0, 8, 10), (1, 0, 2))
    assert [layout.batches_in(epoch) for epoch in range(5)] == [3, 2, 3, 2, 3]
    assert layout.spans(1, 0) == ((1, 2, 6),)
    assert layout.share(2, 1, 2, epoch=0) == (10, 12)
    assert layout.spans(0, 2, 1, 2) == ((1, 0, 2),)


def test_under_straddle_nothing_is_answered_without_an_epoch() -> None:
    layout = Layout(10, 4, "straddle")
    for ask in (lambda: layout.batches, lambda: layout.interval(0), lambda: layout.share(0, 0, 1)):
        with pytest.raises(UsageError, match="depends on the epoch"):
            ask()
    assert layout.tail == 4


@given(size=st.integers(1, 10**12), batch=st.integers(1, 10**4), epoch=st.integers(0, 10**6))
def test_far_epochs_join_without_gap_or_overlap(size: int, batch: int, epoch: int) -> None:
    layout = made(size, batch, "straddle")
    if layout is None:
        return
    last = layout.interval(layout.batches_in(epoch) - 1, epoch)
    first = layout.interval(0, epoch + 1)
    assert last[1] == size + first[0] and 0 <= first[0] < batch
    assert layout.position(layout.step(epoch, 0)) == (epoch, 0)


def test_step_10000_is_batch_178_of_the_fourth_epoch() -> None:
    layout = Layout(size=3274 * 32, global_batch=32, remainder="drop")
    assert layout.batches == 3274
    epoch, batch = layout.position(10_000)
    assert (epoch + 1, batch) == (4, 178)  # both counted from 1: the batch just trained is the 178th


def test_uneven_shares_and_nonsense_are_refused() -> None:
    Layout(10, 4, "short").check_shares(2)
    Layout(10, 4, "pad").check_shares(4)
    Layout(10, 4, "straddle").check_shares(4)
    with pytest.raises(UnsupportedError, match=r"2 samples.*4 replicas.*drop_last.*pad"):
        Layout(10, 4, "short").check_shares(4)
    with pytest.raises(UnsupportedError, match=r"4 samples.*3 replicas"):
        Layout(10, 4, "pad").padded(0, 0, 0, 3)
    for size, batch, remainder in (
        (0, 1, "drop"),
        (5, 0, "drop"),
        (5, 6, "drop"),
        (5, 2, "keep"),
        (2, 5, "wrap"),
        (5, 6, "straddle"),
    ):
        with pytest.raises(UsageError):
            Layout(size, batch, remainder)  # type: ignore[arg-type]  # one of them is not a remainder
    with pytest.raises(UsageError, match="outside"):
        Layout(10, 4, "drop").interval(2)
