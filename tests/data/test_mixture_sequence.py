"""A mixture as a sequence: killed at every draw it goes on the same; what runs out does what was declared."""

from __future__ import annotations

import copy
import itertools
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from durable_core.data.mixture import MixedSequence, Mixture, check_debts
from durable_core.data.mixture.remake import remake
from durable_core.data.packing import PackedSequence, Packing
from durable_core.data.sequence import Batch, Sequence, State
from durable_core.errors import ExhaustedError, FormatError, OrderError, UnsupportedError, UsageError

SIZES = {"web": 11, "code": 5, "law": 3}
WEIGHTS = {"web": "0.5", "code": "0.3", "law": "0.2"}


class Records:
    """A map-style dataset of ``size`` records, one to seven tokens each."""

    def __init__(self, name: str, size: int) -> None:
        self.dataset_id = f"sha256:{name}"
        self.lengths = np.arange(size, dtype=np.int64) * 3 % 7 + 1
        self.loss_lengths = self.lengths // 2
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"record": index}


def mixture(sizes: dict[str, int] | None = None, **options: Any) -> Mixture:
    sizes = SIZES if sizes is None else sizes
    weights = options.pop("weights", WEIGHTS)
    return Mixture({name: Records(name, size) for name, size in sizes.items()}, weights, **options)


def mixed(*, seed: int = 7, **options: Any) -> MixedSequence:
    sequence = mixture(**options).sequence(seed=seed)
    assert isinstance(sequence, MixedSequence)
    return sequence


def packed(inner: Sequence, lengths: Any) -> Sequence:
    return PackedSequence(inner, Packing(8), lengths, lengths_id="test")


def flat(batch: Batch) -> list[Any]:
    """Everything in a batch, sample by sample."""
    packs = range(len(batch.ids) + 1) if batch.packs is None else batch.packs.tolist()
    begins = [0] * len(batch.ids) if batch.begins is None else batch.begins.tolist()
    ends = [-1] * len(batch.ids) if batch.ends is None else batch.ends.tolist()
    rows = list(zip(batch.ids.tolist(), batch.epochs.tolist(), begins, ends, strict=True))
    return [rows[a:b] for a, b in itertools.pairwise(packs)]


def draw(sequence: Sequence, state: State, count: int, each: int = 1) -> tuple[list[Any], State]:
    """Up to ``count`` samples, ``each`` at a time, until the epoch ends."""
    samples: list[Any] = []
    while len(samples) < count:
        wanted = min(each, count - len(samples))
        batch, state = sequence.take(state, wanted)
        samples += flat(batch)
        if len(batch) < wanted:
            break
    return samples, state


PIPELINES: dict[str, Callable[[], Sequence]] = {
    f"{schedule}-{unit}-{exhaustion}": lambda s=schedule, u=unit, e=exhaustion: mixed(  # type: ignore[misc]
        schedule=s, unit=u, exhaustion=e
    )
    for schedule in ("quota", "categorical")
    for unit in ("sample", "token", "loss_token")
    for exhaustion in ("repeat", "stop", "renormalize")
}
PIPELINES |= {
    "replacement": lambda: mixed(replacement={"law": True}),
    "changes": lambda: mixed(weight_schedule=[(5, {**WEIGHTS, "web": 0}), (20, WEIGHTS)]),
    "epochs": lambda: mixed(exhaustion="stop", epoch_size=9),
    "packed": lambda: mixture(unit="packed", exhaustion="renormalize").sequence(seed=7, packing=packed),
    "packed-repeat": lambda: mixture(unit="packed").sequence(seed=7, packing=packed),
    "documents": lambda: mixture(unit="document", exhaustion="renormalize").sequence(seed=7, packing=packed),
}


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_killed_after_any_draw_it_goes_on_the_same(pipeline: str) -> None:
    make = PIPELINES[pipeline]
    sequence = make()
    states: list[tuple[int, int, str]] = []
    samples: list[Any] = []
    state = sequence.start(0)
    for epoch in range(2):
        while len(samples) < 40 * (epoch + 1):
            states.append((epoch, len(samples), json.dumps(state)))
            batch, after = sequence.take(state, 1)
            assert json.dumps(state) == states[-1][2], "take changed the state it was given"
            state = after
            samples += flat(batch)
            if not len(batch):
                break
        state = sequence.start(epoch + 1, state if sequence.carries else None)
    assert len(samples) > 15
    for epoch, begin, text in states:
        end = max([at for e, at, _ in states if e == epoch])
        resumed, _ = draw(make(), json.loads(text), end - begin)
        assert resumed == samples[begin:end]


@pytest.mark.parametrize("pipeline", [name for name in PIPELINES if name != "changes"])
def test_how_many_are_taken_at_a_time_changes_no_draw(pipeline: str) -> None:
    one, other = PIPELINES[pipeline](), PIPELINES[pipeline]()
    assert draw(one, one.start(0), 60)[0] == draw(other, other.start(0), 60, each=7)[0]


def test_each_source_is_permuted_anew_in_each_of_its_epochs() -> None:
    sequence = mixed()
    samples = [sample[0] for sample in draw(sequence, sequence.start(0), 110, each=10)[0]]
    orders: dict[tuple[int, int], list[int]] = {}
    bases = (0, 11, 16, 19)
    for id_, epoch, *_ in samples:
        source = next(i for i in range(3) if id_ < bases[i + 1])
        orders.setdefault((source, epoch), []).append(id_ - bases[source])
    for (source, epoch), order in orders.items():
        whole = (source, epoch + 1) in orders
        assert (
            len(set(order))
            == len(order)
            == (len(range(bases[source], bases[source + 1])) if whole else len(order))
        )
    assert orders[0, 0] != orders[0, 1] and sorted(orders[0, 0]) == sorted(orders[0, 1]) == list(range(11))
    assert max(epoch for source, epoch in orders if source == 2) == 7  # 22 draws of 3 records


def test_two_sources_with_the_same_records_have_orders_of_their_own() -> None:
    data = Records("same", 50)
    sequence = Mixture({"a": data, "b": data}, {"a": 1, "b": 1}).sequence(seed=1)
    ids = np.array([sample[0][0] for sample in draw(sequence, sequence.start(0), 100, each=100)[0]])
    assert (ids[ids < 50]).tolist() != (ids[ids >= 50] - 50).tolist()


# --- exhaustion -----------------------------------------------------------------------------


def test_stop_ends_the_epoch_and_the_next_goes_on() -> None:
    sequence = mixed(exhaustion="stop")
    first, state = draw(sequence, sequence.start(0), 100, each=4)
    again, same = sequence.take(state, 4)
    assert (len(again), same) == (0, state)
    assert (state["draws"], len(first)) == ([9, 5, 3], 17)  # the next was due to law
    second, after = draw(sequence, sequence.start(1, state), 100, each=4)
    assert after["draws"] == [11, 7, 4]  # web ran out, and code had begun its second pass
    assert {sample[0][1] for sample in second} == {0, 1}
    assert sequence.batches(4) is None


def test_renormalize_draws_each_record_once_and_records_what_was_dropped() -> None:
    sequence = mixed(exhaustion="renormalize")
    assert sequence.batches(4) == 5
    samples, state = draw(sequence, sequence.start(0), 100, each=4)
    assert sorted(sample[0][0] for sample in samples) == list(range(19))
    assert [source for source, *_ in state["gone"]] == [2, 1, 0]
    _, batch, debt, denominator = state["gone"][0]
    assert (batch, debt > 0, denominator >= 1 << 20) == (4, True, True)
    epoch, after = draw(sequence, sequence.start(1, state), 100, each=4)
    assert sorted(sample[0][0] for sample in epoch) == list(range(19)) and epoch != samples
    assert after["draws"] == [2 * size for size in SIZES.values()]


def test_weights_that_change_after_the_last_source_is_gone_begin_without_debt() -> None:
    sequence = mixed(
        exhaustion="renormalize",
        weights={"web": 0, "code": 1, "law": 1},
        weight_schedule=[(2, {"web": 1, "code": 1, "law": 1})],
    )
    samples, state = draw(sequence, sequence.start(0), 8, each=8)
    rest, state = sequence.take(state, 8)
    assert (len(samples), len(rest), state["draws"]) == (8, 0, [0, 5, 3])
    later, state = draw(sequence, sequence.at_batch(state, 2), 100, each=8)
    assert sorted(sample[0][0] for sample in later) == list(range(11)) and not any(state["debts"])


def test_an_error_names_the_source_and_its_size() -> None:
    sequence = mixed(exhaustion="error")
    with pytest.raises(
        ExhaustedError, match="source 'law' ran out of its 3 records in global batch 4"
    ) as caught:
        draw(sequence, sequence.start(0), 100, each=4)
    assert (caught.value.source, caught.value.size) == ("law", 3)


def test_with_replacement_nothing_runs_out_and_the_ordinal_keys_the_sample() -> None:
    sequence = mixed(exhaustion="error", replacement=True, weights={"web": 1, "code": 1, "law": 1})
    samples = draw(sequence, sequence.start(0), 6000, each=500)[0]
    by_source = [
        [s[0] for s in samples if low <= s[0][0] < high] for low, high in ((0, 11), (11, 16), (16, 19))
    ]
    for drawn, size in zip(by_source, SIZES.values(), strict=True):
        assert [epoch for _, epoch, *_ in drawn] == list(range(2000))
        counts = np.array(list(Counter(id_ for id_, *_ in drawn).values()))
        assert len(counts) == size
        assert ((counts - 2000 / size) ** 2).sum() / (2000 / size) < 30  # chi-square, p < 1e-3 at 10


# --- independent draws ----------------------------------------------------------------------


def test_independent_draws_pass_chi_square_singly_in_pairs_and_between_seeds() -> None:
    weights = {"a": "0.4", "b": "0.3", "c": "0.2", "d": "0.1"}
    shares = np.array([0.4, 0.3, 0.2, 0.1])
    picks = []
    for seed in (1, 2):
        view = mixture(dict.fromkeys(weights, 10**6), weights=weights, schedule="categorical")
        batch, _ = (sequence := view.sequence(seed=seed)).take(sequence.start(0), 200_000)
        picks.append(view.sources_of(batch.ids))
    first, second = picks
    for one, other in ((first[:-1], first[1:]), (first[:-7], first[7:]), (first, second)):
        table = np.zeros((4, 4))
        np.add.at(table, (one, other), 1)
        expected = np.outer(shares, shares) * len(one)
        assert ((table - expected) ** 2 / expected).sum() < 37.7  # 15 degrees of freedom, p = 1e-3
    counts = np.bincount(first)
    assert ((counts - shares * len(first)) ** 2 / (shares * len(first))).sum() < 16.3  # 3, p = 1e-3


def test_independent_draws_weighed_by_tokens_give_each_source_its_share_of_tokens() -> None:
    sizes = {"short": 1000, "long": 1000}
    view = mixture(sizes, weights={"short": 1, "long": 1}, schedule="categorical", unit="token")
    view.sources["long"].lengths[:] *= 10
    sequence = view.sequence(seed=3)
    state = sequence.take(sequence.start(0), 40_000)[1]
    assert state["draws"][0] > 9 * state["draws"][1]
    assert abs(state["units"][0] / sum(state["units"]) - 0.5) < 0.02


# --- other weights --------------------------------------------------------------------------


def test_declared_weights_hold_from_their_batch_and_debt_goes_with_them() -> None:
    later = {"web": 1, "code": 8, "law": 1}
    sequence = mixed(weight_schedule=[(3, later)])
    before, state = draw(sequence, sequence.start(0), 33, each=11)
    plain = mixed()
    assert before == draw(plain, plain.start(0), 33, each=11)[0]
    assert state["version"] == 0 and sequence.policy.weights_at(state) == plain.policy.weights
    owed = [debt / sum(plain.policy.weights) for debt in state["debts"]]
    drawn, state = state["draws"], sequence.take(state, 100)[1]
    assert state["version"] == 1
    assert [b - a for a, b in zip(drawn, state["draws"], strict=True)] == [9, 80, 11]
    new = sum(sequence.policy.weights_at(state))
    expected = [debt + due - got for debt, due, got in zip(owed, [10, 80, 10], [9, 80, 11], strict=True)]
    assert [debt / new for debt in state["debts"]] == pytest.approx(expected, abs=1e-5)
    assert not check_debts(sequence.policy, state)


def test_an_update_is_what_a_declared_change_would_have_been() -> None:
    later = {"web": 0.1, "code": 0.8, "law": 0.1}
    declared, adaptive = mixed(weight_schedule=[(6, later)]), mixed()
    expected = draw(declared, declared.start(0), 80, each=8)[0]
    first, state = draw(adaptive, adaptive.start(0), 24, each=8)
    state = adaptive.with_update(json.loads(json.dumps(state)), 6, later)
    rest, state = draw(adaptive, json.loads(json.dumps(state)), 56, each=8)
    assert first + rest == expected
    assert "pending" not in state and state["weights"] == list(declared.policy.changes[0][1])


def test_an_update_of_what_is_taken_or_out_of_turn_is_refused() -> None:
    sequence = mixed()
    _, state = draw(sequence, sequence.start(0), 16, each=8)
    before = copy.deepcopy(state)
    with pytest.raises(OrderError, match="weights from global batch 1 are too late: batch 1 is taken"):
        sequence.with_update(state, 1, WEIGHTS)
    waiting = sequence.with_update(state, 4, WEIGHTS)
    assert state == before
    with pytest.raises(OrderError, match="batch 4"):
        sequence.with_update(waiting, 4, WEIGHTS)
    with pytest.raises(UsageError, match="'law' is nan"):
        sequence.with_update(state, 9, {**WEIGHTS, "law": float("nan")})
    once = mixed(exhaustion="renormalize")
    with pytest.raises(UsageError, match="no weight may be 0"):
        once.with_update(once.start(0), 0, {**WEIGHTS, "law": 0})


def test_updates_and_declared_changes_follow_one_another() -> None:
    """The later one holds; of two for one batch, the update."""
    sequence = mixed(weight_schedule=[(4, {"web": 1, "code": 8, "law": 1}), (6, WEIGHTS)])
    state = sequence.with_update(sequence.start(0), 2, {"web": 8, "code": 1, "law": 1})
    state = sequence.with_update(state, 6, {"web": 1, "code": 1, "law": 8})
    drawn = [[0, 0, 0]]
    for _ in range(4):
        _, state = sequence.take(state, 200)
        _, state = sequence.take(state, 200)
        drawn.append(state["draws"])
    shares = [[(b - a) / 400 for a, b in zip(*pair, strict=True)] for pair in itertools.pairwise(drawn)]
    for share, due in zip(shares, ([5, 3, 2], [8, 1, 1], [1, 8, 1], [1, 1, 8]), strict=True):
        assert share == pytest.approx([part / 10 for part in due], abs=0.01)
    assert state["version"] == 4


def test_independent_draws_after_a_change_have_a_key_of_their_own() -> None:
    """Else a draw that fell to an exhausted source would always go to the same other one."""
    sequence, plain = (
        mixed(schedule="categorical", weight_schedule=[(1, WEIGHTS)]),
        mixed(schedule="categorical"),
    )
    same, state = draw(sequence, sequence.start(0), 50, each=50)
    expected, other = draw(plain, plain.start(0), 50, each=50)
    assert same == expected
    assert draw(sequence, state, 50, each=50)[0] != draw(plain, other, 50, each=50)[0]


def test_a_kill_between_an_update_and_its_commit_makes_it_again() -> None:
    """The update is in the state that was committed, or it was never made: both end in the same draws."""
    later = {"web": 0.1, "code": 0.8, "law": 0.1}
    sequence = mixed()
    _, committed = draw(sequence, sequence.start(0), 24, each=8)
    kept = sequence.with_update(committed, 6, later)
    lost = sequence.with_update(json.loads(json.dumps(committed)), 6, later)
    assert draw(sequence, kept, 80, each=8) == draw(mixed(), lost, 80, each=8)


def test_an_outer_sequence_says_which_global_batch_it_fills() -> None:
    later = {"web": 1, "code": 8, "law": 1}
    sequence = mixed(weight_schedule=[(3, later)])
    state = sequence.at_batch(sequence.start(0), 2)
    assert sequence.take(state, 5)[1]["version"] == 0
    assert sequence.take(sequence.at_batch(state, 3), 5)[1]["version"] == 1


def test_loss_weights_draw_nothing() -> None:
    for schedule in ("quota", "categorical"):
        one, other = mixed(schedule=schedule), mixed(schedule=schedule, loss_weights={"law": 9.0})
        assert draw(one, one.start(0), 200, each=8) == draw(other, other.start(0), 200, each=8)


# --- state and description ------------------------------------------------------------------


def test_the_state_is_small_after_a_trillion_draws() -> None:
    names = "abcdefgh"
    weights = {name: f"0.{i + 1}" for i, name in enumerate(names)}
    for unit in ("sample", "token"):
        sequence = mixed(sizes=dict.fromkeys(names, 50), weights=weights, unit=unit)
        state = sequence.take(sequence.start(0), 1000)[1]
        far = {**state, "draws": [10**12 // 8 + i for i in range(8)], "lanes": [[10**4, 10**8]] * 8}
        if "units" in far:
            far["units"] = [10**15 // 8 + i for i in range(8)]
        far = sequence.take({**far, "batch": 10**9, "lanes": state["lanes"]}, 8)[1] | {"lanes": far["lanes"]}
        assert len(json.dumps(far, separators=(",", ":"))) < 600


def test_epochs_of_so_many_samples_carry_the_counts() -> None:
    sequence, whole = mixed(epoch_size=10), mixed()
    assert (sequence.carries, sequence.batches(4)) == (True, 3)
    first, state = draw(sequence, sequence.start(0), 100, each=4)
    second, state = draw(sequence, sequence.start(1, state), 100, each=4)
    assert (len(first), len(second), state["epoch"]) == (10, 10, 1)
    assert first + second == draw(whole, whole.start(0), 20)[0]
    with pytest.raises(UsageError, match="epoch 2 of a mixture begins from the state at the end of epoch 1"):
        sequence.start(2)


@pytest.mark.parametrize("schedule", ["quota", "categorical"])
def test_it_is_made_again_from_its_description(schedule: Any) -> None:
    options = {"schedule": schedule, "exhaustion": "renormalize", "replacement": {"law": True}}
    sequence = mixed(**options, weight_schedule=[(4, {"web": 1, "code": 1, "law": 5})])
    again = remake(json.loads(json.dumps(sequence.description)), seed=7)
    assert again.description == sequence.description
    assert draw(again, again.start(0), 90, each=9) == draw(sequence, sequence.start(0), 90, each=9)
    other = remake(sequence.description, seed=8)
    assert draw(other, other.start(0), 90, each=9) != draw(sequence, sequence.start(0), 90, each=9)


def test_what_needs_lengths_is_not_made_again() -> None:
    for sequence in (mixed(unit="token"), mixture(unit="packed").sequence(seed=1, packing=packed)):
        with pytest.raises(UnsupportedError, match="lengths"):
            remake(sequence.description, seed=1)
    broken = {**mixed().description, "lanes": [{"name": "full_prp_v1"}]}
    with pytest.raises(FormatError):
        remake(broken, seed=1)
    with pytest.raises(FormatError):
        remake({**mixed().description, "name": "quota_v2"}, seed=1)


# --- packing --------------------------------------------------------------------------------


def test_rows_packed_by_source_hold_records_of_one_source_each() -> None:
    view = mixture(unit="packed", exhaustion="renormalize")
    sequence = view.sequence(seed=7, packing=packed)
    batches, state = [], sequence.start(0)
    while True:
        batch, state = sequence.take(state, 4)
        batches.append(batch)
        if len(batch) < 4:
            break
    tokens: Counter[int] = Counter()
    for batch in batches:
        assert batch.packs is not None and batch.begins is not None and batch.ends is not None
        for a, b in itertools.pairwise(batch.packs.tolist()):
            assert len(set(view.sources_of(batch.ids[a:b]).tolist())) == 1
        for id_, begin, end in zip(
            batch.ids.tolist(), batch.begins.tolist(), batch.ends.tolist(), strict=True
        ):
            tokens[id_] += end - begin
    assert [tokens[id_] for id_ in range(19)] == view.lengths.tolist()
    assert sum(state["draws"]) == sum(len(batch) for batch in batches)


def test_unit_and_packing_must_fit() -> None:
    with pytest.raises(UsageError, match="no packing is given"):
        mixture(unit="packed").sequence(seed=1)
    with pytest.raises(UsageError, match="nothing is packed"):
        mixture().sequence(seed=1, packing=packed)
    with pytest.raises(UnsupportedError, match="'law' is drawn with replacement"):
        mixture(unit="packed", replacement={"law": True}).sequence(seed=1, packing=packed)


def test_weights_change_at_global_batches_also_inside_rows_packed_across_sources() -> None:
    later = {"web": 1, "code": 18, "law": 1}

    def rows(sequence: Sequence, state: State, batches: int) -> tuple[list[Any], State]:
        taken = []
        for _ in range(batches):
            batch, state = sequence.take(json.loads(json.dumps(state)), 200)
            taken.append(flat(batch))
        return taken, state

    view = mixture(unit="document", weight_schedule=[(3, later)])
    declared, plain = (v.sequence(seed=7, packing=packed) for v in (view, mixture(unit="document")))
    expected, _ = rows(declared, declared.start(0), 6)
    before, state = rows(plain, plain.start(0), 2)
    with pytest.raises(OrderError, match="batch 1 are too late"):
        plain.with_update(state, 1, later)  # type: ignore[attr-defined]
    state = plain.with_update(state, 3, later)  # type: ignore[attr-defined]
    after, state = rows(plain, state, 4)
    assert before + after == expected and state["batch"] == 6
    ids = [np.array([piece[0] for row in batch for piece in row]) for batch in expected]
    shares = [float(np.mean(view.sources_of(batch) == 1)) for batch in ids]
    assert max(shares[:3]) < 0.4 < 0.6 < min(shares[4:])  # batch 3 ends the documents in hand first


# --- states that are none -------------------------------------------------------------------------

_GONE = object()
EDITS: dict[str, list[Any]] = {
    "batch": [_GONE, -1, 1.0, "1", True, None],
    "version": [_GONE, "0"],
    "stage": [_GONE, 2, -1, None],
    "draws": [_GONE, [1, 2], [1, 2, -3], "123", [1, 2, 3.0], 5],
    "debts": [_GONE, [0], [0, 0], [1, 1, 1], [0, 0, "0"], None],
    "lanes": [_GONE, [], [[0, 0]] * 2, [[0, 0], [0, 0], [0]], [[0, -1]] * 3, [[0.5, 0]] * 3, [0, 0, 0], None],
    "units": [_GONE, [1, 2]],
    "left": [_GONE, -1, None],
    "weights": [[1, 2], [0, 0, 0], [1, 1, -1], 5, None],
    "pending": [5, [[1]], [["x", {}]], [[9, [1, 2]]]],
    "gone": [5, [[0]], [[7, 1, 0, 1]], [["a", 1, 0, 1]]],
}


@pytest.mark.parametrize("field", EDITS)
def test_an_edited_state_is_told_by_the_field(field: str) -> None:
    sequence = mixed(unit="token", exhaustion="stop", epoch_size=9, weight_schedule=[(50, WEIGHTS)])
    _, state = sequence.take(sequence.start(0), 4)
    kept = json.loads(json.dumps(state))
    assert flat(sequence.take(kept, 3)[0]) == flat(sequence.take(state, 3)[0])
    for value in EDITS[field]:
        edited = copy.deepcopy(kept)
        edited.pop(field, None)
        if value is not _GONE:
            edited[field] = value
        for use in (
            lambda: sequence.take(edited, 3),  # noqa: B023 - used at once
            lambda: sequence.start(1, edited),  # noqa: B023
            lambda: sequence.with_update(edited, 60, WEIGHTS),  # noqa: B023
        ):
            with pytest.raises(FormatError, match=f"'{field}' in its state is "):
                use()


def test_what_is_no_state_at_all_or_no_batch() -> None:
    sequence = mixed()
    for value in (None, 5, [1], "state"):
        with pytest.raises(FormatError, match="its state is"):
            sequence.take(value, 3)  # type: ignore[arg-type]
    with pytest.raises(FormatError, match="'batch' in its state is 'missing'"):
        sequence.take({}, 3)
    for at in ("3", 3.0, None, -1):
        with pytest.raises(UsageError, match="at_batch"):
            sequence.with_update(sequence.start(0), at, WEIGHTS)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not as None"):
        sequence.with_update(sequence.start(0), 3, None)  # type: ignore[arg-type]
