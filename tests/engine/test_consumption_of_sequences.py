"""The audit computes real mixtures and shuffles again, from nothing but what a checkpoint says of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from durable_core.data.cursor import Cursor
from durable_core.data.layout import Layout, Remainder
from durable_core.data.mixture import Mixture
from durable_core.data.order import FullPermutation, make_order, spanned_ids
from durable_core.data.order.buffered import BufferedSequence
from durable_core.data.packing import PackedSequence, Packing
from durable_core.data.sequence import Batch, OrderedSequence, Sequence, epoch_batches, reweighted
from durable_core.engine.audit.consumption import Consumption, consume
from durable_core.engine.audit.due import Sequenced
from durable_core.engine.audit.segments import Segment
from durable_core.format.ledger import Row, RowFlag

SIZES = {"web": 13, "books": 7, "code": 5}
GLOBAL = 4


class Records(list[int]):
    dataset_id = "sha256:records"


def mixture(**settings: Any) -> Sequence:
    sources = {name: Records(range(size)) for name, size in SIZES.items()}
    return Mixture(sources, {"web": 5, "books": 3, "code": 2}, **settings).sequence(seed=3)


def shuffle() -> BufferedSequence:
    return BufferedSequence([5, 9, 3, 8], buffer=6, dataset_id="data", seed=3)


CHANGES = [(3, {"web": 1, "books": 1, "code": 1}), (7, {"web": 1, "books": 9, "code": 1})]
SEQUENCES: dict[str, Any] = {
    "quota": mixture,
    "categorical": lambda: mixture(schedule="categorical"),
    "with replacement": lambda: mixture(replacement={"books": True}),
    "epochs": lambda: mixture(epoch_size=18),
    "renormalize": lambda: mixture(exhaustion="renormalize"),
    "stop": lambda: mixture(exhaustion="stop"),
    "changes": lambda: mixture(weight_schedule=CHANGES),
    "buffered": shuffle,
}


def run(
    sequence: Sequence, batches: int, *, drop: bool = False, leave_at: dict[int, int] | None = None
) -> list[Segment]:
    """As a loader goes through it: ``batches`` batches by 2 replicas, three to a checkpoint."""
    plan = json.loads(json.dumps(dict(sequence.description)))
    leave_at = leave_at or {}
    epoch, k, consumed, state = 0, 0, 0, sequence.start(0)
    at = Cursor("data", sequence.name, 3, 0, 0, None, GLOBAL, "drop" if drop else "short")
    segments = [Segment(0, -1, 0, {}, at, plan)]
    rows: dict[str, list[Row]] = {"dp0": [], "dp1": []}
    step = 0
    while step < batches:
        taken, after = sequence.take(state, GLOBAL)
        left = leave_at.get(epoch) == k
        dropped = drop and 0 < len(taken) < GLOBAL
        if left:
            rows["dp0"].append(Row(step + 1, epoch, k, np.empty(0, np.int64), RowFlag.ABANDONED))
        if left or not len(taken) or dropped:
            state = after if dropped else state
            epoch, k, state = epoch + 1, 0, sequence.start(epoch + 1, state if sequence.carries else None)
            continue
        step += 1
        for role, part in zip(rows, np.array_split(np.arange(len(taken)), 2), strict=True):
            rows[role].append(Row(step, epoch, k, *pieces(taken, part)))
        state, k, consumed = after, k + 1, consumed + len(taken)
        if len(taken) < GLOBAL or k == epoch_batches(sequence, GLOBAL, drop=drop):
            epoch, k = epoch + 1, 0
            state = sequence.start(epoch, state if sequence.carries else None)
        if step % 3 == 0:
            now = replace(at, epoch=epoch, batch=k, consumed_samples=consumed)
            segments.append(Segment(len(segments), step - 3, step, rows, now, plan))
            rows = {"dp0": [], "dp1": []}
    return segments


def pieces(taken: Batch, samples: Any) -> tuple[Any, RowFlag, Any]:
    """ids, flags and amounts of some samples of a batch."""
    if taken.packs is None or taken.begins is None or taken.ends is None:
        return taken.ids[samples], RowFlag.NONE, None
    first, stop = taken.packs[samples[0]], taken.packs[samples[-1] + 1]
    return taken.ids[first:stop], RowFlag.NONE, (taken.ends - taken.begins)[first:stop]


def spoilt(segments: list[Segment], c: int) -> list[Segment]:
    """One id of one batch replaced by another of the same batch."""
    row = segments[c].rows["dp0"][1]
    ids = row.ids.copy()
    ids[0] = segments[c].rows["dp1"][1].ids[0]
    rows = {**segments[c].rows, "dp0": [segments[c].rows["dp0"][0], replace(row, ids=ids),
                                        *segments[c].rows["dp0"][2:]]}  # fmt: skip
    return [replace(s, rows=rows) if s.c == c else s for s in segments]


def check(found: Consumption) -> None:
    assert found.sound and found.ids_checked, (found.findings, found.notes)


@pytest.mark.parametrize("name", SEQUENCES)
@pytest.mark.parametrize("drop", [False, True])
def test_a_sound_run_is_proven_from_its_plan(name: str, drop: bool) -> None:
    check(consume(run(SEQUENCES[name](), 24, drop=drop)))


@pytest.mark.parametrize("name", SEQUENCES)
def test_one_wrong_id_is_found(name: str) -> None:
    found = consume(spoilt(run(SEQUENCES[name](), 24), 4))
    assert found.ids_checked and not found.sound
    assert found.repeated >= 1 and found.skipped >= 1


@pytest.mark.parametrize("name", ["quota", "categorical", "epochs", "changes", "buffered"])
def test_epochs_left_early(name: str) -> None:
    found = consume(run(SEQUENCES[name](), 24, leave_at={0: 2, 1: 1}))
    check(found)
    left = 0 if name != "buffered" else (25 - 8) + (25 - 4)
    assert sum(epoch.abandoned for epoch in found.epochs) == left


@pytest.mark.parametrize("name", ["stop", "epochs", "buffered"])
def test_the_last_batch_of_an_epoch_left_out_is_a_skip(name: str) -> None:
    """Where an epoch ends is computed too, also if its length is not known beforehand."""
    segments = run(SEQUENCES[name](), 24)
    first = [row for s in segments for part in s.rows.values() for row in part if row.epoch == 0]
    last = max(row.batch for row in first)
    cut = [
        replace(
            s, rows={r: [x for x in part if (x.epoch, x.batch) != (0, last)] for r, part in s.rows.items()}
        )
        for s in segments
    ]
    assert consume(cut).skipped == sum(len(row.ids) for row in first if row.batch == last)


@pytest.mark.parametrize("policy", ["greedy", "best_fit"])
def test_packs_are_proven_with_the_sequence_of_the_loader(policy: Any) -> None:
    def packed() -> PackedSequence:
        lengths = np.random.default_rng(0).integers(1, 40, sum(SIZES.values()))
        return PackedSequence(mixture(), Packing(length=16, policy=policy), lengths)

    segments = run(packed(), 24)
    check(consume(segments, sequence=packed()))
    assert not consume(spoilt(segments, 4), sequence=packed()).sound
    blind = consume(segments)
    assert blind.sound and not blind.ids_checked and sum(s.tokens or 0 for s in blind.sources) > 0


@pytest.mark.parametrize("name", SEQUENCES)
def test_what_is_computed_many_batches_at_once_is_what_is_computed_one_by_one(name: str) -> None:
    sequence, due = SEQUENCES[name](), Sequenced(SEQUENCES[name](), GLOBAL, drop=False)
    state = sequence.start(0)
    for k in range(150):
        taken, state = sequence.take(state, GLOBAL)
        found = due.batch(0, k)
        if not len(taken):
            assert found is None
            break
        assert found is not None and found.ids.tolist() == taken.ids.tolist()


# --- orders -----------------------------------------------------------------------------------


@pytest.mark.parametrize("remainder", ["pad", "straddle", "wrap", "short", "drop"])
@pytest.mark.parametrize("name", ["full_prp_v1", "block_prp_v1"])
def test_every_remainder_of_every_order(remainder: Remainder, name: str) -> None:
    blocks = [5, 9, 3, 5] if name == "block_prp_v1" else None
    order = make_order(name, 22, dataset_id="data", seed=3, blocks=blocks)
    layout = Layout(22, GLOBAL, remainder)
    at = Cursor("data", order.name, 3, 0, 0, 22, GLOBAL, remainder)
    rows, consumed = [], 0
    for step in range(17):
        epoch, k = layout.position(step)
        ids, _ = spanned_ids(order, layout.spans(epoch, k))
        rows.append(Row(step + 1, epoch, k, ids))
        consumed += len(ids)
    epoch, k = layout.position(17)
    now = replace(at, epoch=epoch, batch=k, consumed_samples=consumed)
    plan = dict(order.description)
    segments = [Segment(0, -1, 0, {}, at, plan), Segment(1, 0, 17, {"dp0": rows}, now, plan)]
    check(consume(segments))
    assert not consume([segments[0], replace(segments[1], rows={"dp0": [*rows[:5], *rows[6:]]})]).sound


def test_an_ordered_sequence_is_its_order() -> None:
    order = FullPermutation(11, dataset_id="data", seed=3)
    check(consume(run(OrderedSequence(order), 12)))


@pytest.mark.parametrize(("old", "new"), [(4, 2), (2, 4), (4, 8)])
def test_batches_of_another_size_after_a_restart(old: int, new: int) -> None:
    """As when a step is accumulated from other batches: the order of samples goes on."""
    order = FullPermutation(40, dataset_id="data", seed=3)
    ids = [order.ids(epoch, 0, 40) for epoch in range(2)]

    def at(size: int, samples: int) -> Cursor:
        epoch, inside = divmod(samples, 40)
        return Cursor("data", order.name, 3, epoch, inside // size, 40, size, "drop", samples)

    def rows(size: int, begin: int, end: int) -> list[Row]:
        return [
            Row(begin // 8 + 1, epoch, inside // size, ids[epoch][inside : inside + size])
            for epoch, inside in (divmod(k, 40) for k in range(begin, end, size))
        ]

    segments = [
        Segment(0, -1, 0, {}, at(old, 0)),
        Segment(1, 0, 3, {"dp0": rows(old, 0, 24)}, at(old, 24)),
        Segment(2, 3, 9, {"dp0": rows(new, 24, 72)}, at(new, 72)),
    ]
    check(consume(segments))
    lost = replace(segments[2], rows={"dp0": segments[2].rows["dp0"][1:]})
    assert consume([*segments[:2], lost]).skipped == new


@pytest.mark.parametrize("first", [5, 9, 13])
def test_batches_of_another_size_that_run_on_over_the_ends_of_epochs(first: int) -> None:
    """The first batch of an epoch begins inside it, elsewhere for each size."""
    size, sizes = 45, [4] * first * 2 + [2] * 60
    order = FullPermutation(size, dataset_id="data", seed=3)
    rows, samples, cursors = [], 0, {}
    for step, count in enumerate(sizes, 1):
        layout = Layout(size, count, "straddle")
        epoch, k = layout.position(samples // count)
        rows.append(Row(step, epoch, k, spanned_ids(order, layout.spans(epoch, k))[0]))
        samples += count
        epoch, k = layout.position(samples // count)
        cursors[step] = Cursor("data", order.name, 3, epoch, k, size, count, "straddle", samples)
    middle, end = first * 2, len(sizes)
    segments = [
        Segment(0, -1, 0, {}, Cursor("data", order.name, 3, 0, 0, size, 4, "straddle", 0)),
        Segment(1, 0, middle, {"dp0": rows[:middle]}, cursors[middle]),
        Segment(2, middle, end, {"dp0": rows[middle:]}, cursors[end]),
    ]
    check(consume(segments))
    lost = replace(segments[2], rows={"dp0": rows[middle + 1 :]})
    assert consume([*segments[:2], lost]).skipped == 2


def resized_run(
    sequence: Sequence, *, leave: int | None = None, update: int | None = None, change: int = 8
) -> list[Segment]:
    """24 batches, of 4 samples up to batch ``change`` and of 2 from there on; a checkpoint at each change.

    ``leave``: epoch 0 is left before that batch. ``update``: other weights from that batch of the run on.
    """
    plan: dict[str, Any] = json.loads(json.dumps(dict(sequence.description)))
    weights = {"web": 1, "books": 1, "code": 1}
    if update is not None:
        plan["updates"] = [[update, weights]]
    epoch, k, consumed, state = 0, 0, 0, sequence.start(0)
    at = Cursor("data", sequence.name, 3, 0, 0, None, GLOBAL, "short")
    segments, rows = [Segment(0, -1, 0, {}, at, plan)], []
    for step in range(1, 25):
        size = GLOBAL if step <= change else 2
        if step - 1 == leave:
            rows.append(Row(step, epoch, k, np.empty(0, np.int64), RowFlag.ABANDONED))
            epoch, k, state = epoch + 1, 0, sequence.start(epoch + 1, state)
        if step - 1 == update:
            state = reweighted(sequence, state, step - 1, weights)
        taken, state = sequence.take(state, size)
        rows.append(Row(step, epoch, k, taken.ids, epochs=taken.epochs))
        k, consumed = k + 1, consumed + len(taken)
        if step in (change, 24):
            now = replace(at, epoch=epoch, batch=k, consumed_samples=consumed, global_batch=size)
            known = {"batches": step, "sequence": state}
            segments.append(
                Segment(len(segments), segments[-1].through, step, {"dp0": rows}, now, plan, known)
            )
            rows, k = [], k * size // 2
    return segments


@pytest.mark.parametrize("how", [{"leave": 3}, {"update": 12}, {"leave": 3, "update": 12}])
def test_after_a_change_of_size_what_depends_on_batches_before_it_is_not_computed(how: Any) -> None:
    """Where epochs were left, and when weights change, is counted in batches of both sizes."""
    segments = resized_run(mixture(), **how)
    found = consume(segments)
    assert found.sound and not found.ids_checked, found.findings
    assert any("of another size" in note for note in found.notes)
    rows = segments[2].rows["dp0"]
    lost = replace(segments[2], rows={"dp0": [*rows[:3], *rows[4:]]})
    assert consume([*segments[:2], lost]).skipped == 2
    assert rows[3].epochs is not None and rows[4].epochs is not None
    ids = [rows[3].ids[0], rows[4].ids[0]]  # the second of another batch: one comes twice, one never
    twice = replace(rows[3], ids=np.array(ids), epochs=np.array([rows[3].epochs[0], rows[4].epochs[0]]))
    found = consume([*segments[:2], replace(segments[2], rows={"dp0": [*rows[:3], twice, *rows[4:]]})])
    assert found.repeated == found.skipped == 1


def test_order_lost_before_a_change_of_size_is_found_after_it() -> None:
    segments = resized_run(mixture(), leave=3)
    rows = [*segments[1].rows["dp0"]]
    ids, epochs = rows[-1].ids, rows[-1].epochs
    assert epochs is not None
    rows[-1] = replace(rows[-1], ids=ids[::-1].copy(), epochs=epochs[::-1].copy())
    found = consume([segments[0], replace(segments[1], rows={"dp0": rows}), segments[2]])
    assert {finding.kind for finding in found.findings} >= {"order"}


def test_a_mixture_is_computed_after_a_change_of_size_in_its_first_epoch() -> None:
    check(consume(resized_run(mixture())))
