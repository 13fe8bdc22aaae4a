"""DurableLoader over sequences: the state goes with the batch, whoever reads, resumable after any batch."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
from data_samples import Drawing, interrupted, listed, train
from sequence_samples import Walked
from torch.utils.data import DataLoader

from durable_core.data import DurableLoader
from durable_core.errors import (
    DurableError,
    FormatError,
    OrderError,
    SpecMismatchError,
    UnsupportedError,
    UsageError,
)
from durable_core.types import Promise


def make(dataset: Any = None, batch_size: int = 4, **more: Any) -> DurableLoader:
    return DurableLoader(dataset or Walked(), batch_size, **{"seed": 5, "collate_fn": listed, **more})


def epochs(count: int, *args: Any, **more: Any) -> list[Any]:
    loader = make(*args, **more)
    return [batch for _ in range(count) for batch in train(loader)]


def ids_of(batches: list[Any]) -> list[int]:
    return [sample[0] for batch in batches for sample in batch]


KINDS: dict[str, Callable[[], Walked]] = {
    "carries": Walked,
    "carries, end not known": lambda: Walked(known=False),
    "carries, end not known and even": lambda: Walked(per_epoch=16, known=False),
    "begins anew": lambda: Walked(carries=False),
    "begins anew, end not known": lambda: Walked(carries=False, known=False),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("more", [{}, {"drop_last": True}])
def test_resume_after_every_batch_of_three_epochs(kind: str, more: dict[str, Any]) -> None:
    whole = epochs(3, KINDS[kind](), **more)
    assert len(whole) == 3 * (4 if more or "even" in kind else 5)
    for ahead in (0, 2):
        for stop in range(len(whole) + 1):
            taken = interrupted(lambda: make(KINDS[kind](), **more), stop, len(whole), ahead=ahead)
            assert taken == whole, (stop, ahead)


@pytest.mark.parametrize("more", [{"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}])
def test_workers_change_neither_samples_nor_draws(more: dict[str, Any]) -> None:
    whole = epochs(3)
    assert epochs(3, **more) == whole
    for stop in (3, 5, 8):
        assert interrupted(lambda: make(**more), stop, len(whole), ahead=1) == whole


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
def test_replicas_share_the_same_global_batches_and_may_change(replicas: int) -> None:
    options = {"dataset": Walked(per_epoch=40, known=False), "drop_last": True}
    whole = epochs(2, batch_size=12, **options)
    shares = []
    for r in range(replicas):
        one = make(batch_size=12, **options)
        train(one, 2)
        part = make(batch_size=12 // replicas, replica=r, replicas=replicas, **options)
        part.load_state_dict(json.loads(json.dumps(one.state_dict())))
        shares.append(train(part) + train(part))
        assert part.cursor.consumed_samples == 72
    assert [list(chain(*parts)) for parts in zip(*shares, strict=True)] == whole[2:]


def test_the_draws_of_a_sample_are_those_of_its_own_epoch() -> None:
    """Of the pass over its source, not of the mixture: an epoch cut elsewhere changes no sample."""
    samples = [sample for batch in epochs(3) for sample in batch]
    assert len({tuple(draws) for _, *draws in samples}) == 54  # of 23 ids: never the same draws
    assert [sample for batch in epochs(2, Walked(per_epoch=27)) for sample in batch] == samples


def test_without_end() -> None:
    loader = make(Walked(per_epoch=None))
    whole = train(loader, 30)
    with pytest.raises(TypeError):
        len(loader)
    assert ids_of(whole) == [7 * i % 23 for i in range(120)]
    again = make(Walked(per_epoch=None))
    again.load_state_dict(loader.state_dict())
    assert ids_of(train(again, 2)) == [7 * i % 23 for i in range(120, 128)]


# --- passes and epochs -----------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_left_early_goes_on_from_what_was_trained(workers: int) -> None:
    loader = make(num_workers=workers)
    assert ids_of(train(loader, 2, ahead=2)) == [7 * i % 23 for i in range(8)]
    saved = loader.state_dict()
    assert (saved["batch"], loader.outstanding) == (2, 2)
    assert ids_of(train(loader)) == [7 * i % 23 for i in range(8, 26)]  # those taken ahead come again
    rows = [(row.epoch, row.batch, row.abandoned) for row in loader.drain_rows()]
    assert rows[2:4] == [(0, 2, True), (1, 0, False)]


def test_batches_of_an_epoch_left_early_may_still_be_acknowledged_before_the_next() -> None:
    loader = make()
    train(loader, 1, ahead=2)
    iterator = iter(loader)
    loader.acknowledge(step=2)  # the step that was under way when the epoch was left
    assert ids_of([next(iterator)]) == [7 * i % 23 for i in range(8, 12)]


def test_an_end_that_was_seen_is_gone_on_from_whatever_was_acknowledged() -> None:
    loader = make()
    batches = [batch for _ in range(2) for batch in loader]
    assert ids_of(batches) == [7 * i % 23 for i in range(36)]
    loader.acknowledge(7, step=1)
    again = make()
    again.load_state_dict(loader.state_dict())
    assert train(again) == batches[7:]


def test_a_look_at_the_first_batch_costs_nothing() -> None:
    whole = epochs(2)
    loader = make()
    assert next(iter(loader)) == next(iter(loader)) == whole[0]
    assert train(loader) == whole[:5]
    assert next(iter(loader)) == next(iter(loader)) == whole[5]
    assert train(loader) == whole[5:]
    assert not any(row.abandoned for row in loader.drain_rows())


def test_a_declared_end_of_epoch_is_what_a_save_stores() -> None:
    loader = make()
    train(loader, 2)
    loader.end_epoch()
    again = make()
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert (again.cursor.epoch, again.cursor.batch) == (1, 0)
    assert train(again) == train(loader)
    assert ids_of(train(again)) == [7 * i % 23 for i in range(26, 44)]


def test_an_error_of_the_sequence_comes_after_the_batches_before_it() -> None:
    for workers in (0, 2):
        loader = make(Walked(fails_at=13), num_workers=workers)
        iterator = iter(loader)
        assert [len(next(iterator)) for _ in range(3)] == [4, 4, 4]
        with pytest.raises(DurableError, match="ran out"):
            next(iterator)
        with pytest.raises(OrderError, match="must not be skipped"):
            next(iterator)


# --- what is refused ---------------------------------------------------------------------------------


def test_another_sequence_is_refused_by_name() -> None:
    state = make().state_dict()
    with pytest.raises(SpecMismatchError, match="per_epoch was 18 and is now 19") as caught:
        make(Walked(per_epoch=19), dataset_id="unverified:Walked:23").load_state_dict(state)
    assert caught.value.fields == ("per_epoch",) and caught.value.hint
    renamed = Walked()
    renamed.walk.name = "walk_v2"
    with pytest.raises(SpecMismatchError) as caught:
        make(renamed).load_state_dict(state)
    assert "order" in caught.value.fields
    plan = {**state, "plan": {**state["plan"], "nested": {"a": [1, 3]}}}
    with pytest.raises(SpecMismatchError, match=r"nested\.a\.1 was 3 and is now 2"):
        make().load_state_dict(plan)
    with pytest.raises(SpecMismatchError, match="was an order"):
        make().load_state_dict({key: value for key, value in state.items() if key != "plan"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicas": 2}, 'drop_last=True leaves it out, remainder="pad"'),
        ({"remainder": "wrap"}, 'use "drop"'),
        ({"remainder": "straddle"}, 'use "drop"'),
        ({"batch_size": 19, "drop_last": True}, "lower batch_size"),
        ({"batch_size": None}, "pass batch_size"),
        ({"accumulate": 0}, "accumulate must be 1"),
        ({"order": "by_name"}, "full_prp_v1"),
    ],
)
def test_refusals_say_what_to_do(options: dict[str, Any], message: str) -> None:
    dataset = Walked(per_epoch=17 if "replicas" in options else 18)
    with pytest.raises((UnsupportedError, UsageError), match=message):
        make(dataset, **options)


def test_a_state_that_is_none_is_refused() -> None:
    loader = make()
    train(loader, 2)
    state = loader.state_dict()
    for own in (None, {"at": 3}, 7):
        with pytest.raises(FormatError, match="epoch 0 batch 2 of walk_v1"):
            make().load_state_dict({**state, "source": {"workers": None, "state": own}})
    with pytest.raises(FormatError, match="epoch 1 batch 0"):
        make().load_state_dict({**state, "epoch": 1, "batch": 0, "source": {"workers": None, "state": None}})


def test_a_plan_read_back_from_json_is_the_same() -> None:
    tupled = Walked()
    tupled.walk.extra = {"sizes": (1, 2)}
    state = json.loads(json.dumps(make(tupled).state_dict()))
    make(tupled).load_state_dict(state)


def test_another_attribute_called_sequence_means_nothing() -> None:
    class Protein(Drawing):
        def sequence(self, index: int) -> str:
            return "MKV"

    assert len(DurableLoader(Protein(9), 3, seed=5)) == 3


def test_a_short_batch_ends_its_epoch_at_once_and_a_full_one_when_the_end_is_seen() -> None:
    short, even = make(Walked(known=False)), make(Walked(per_epoch=16, known=False))
    for loader, batches in ((short, 5), (even, 4)):
        iterator = iter(loader)
        for step in range(batches):
            next(iterator)
            loader.acknowledge(step=step)
    assert [(loader.cursor.epoch, loader.cursor.batch) for loader in (short, even)] == [(1, 0), (0, 4)]


def test_an_epoch_that_turns_out_empty_is_an_error() -> None:
    with pytest.raises(UsageError, match="3 samples do not fill one global batch of 4"):
        train(make(Walked(per_epoch=3, known=False), drop_last=True))


# --- padding ---------------------------------------------------------------------------------------


def masked(samples: list[Any], pad_mask: Any) -> Any:
    return [(sample[0], bool(padding)) for sample, padding in zip(samples, pad_mask, strict=True)]


@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_last_batch_is_filled_up_with_masked_samples(replicas: int, workers: int) -> None:
    seen, rows = [], []
    for r in range(replicas):
        loader = make(
            batch_size=8 // replicas, replica=r, replicas=replicas, remainder="pad", collate_fn=masked,
            num_workers=workers,
        )  # fmt: skip
        batches = train(loader)
        assert [len(batch) for batch in batches] == [8 // replicas] * 3
        assert loader.cursor.consumed_samples == 18
        seen.append([index for batch in batches for index, padding in batch if not padding])
        rows.append(loader.drain_rows())
    assert sorted(chain(*seen)) == sorted(7 * i % 23 for i in range(18))
    last = [own[-1] for own in rows]
    assert sorted(i for row in last for i in row.ids.tolist()) == sorted(7 * i % 23 for i in (16, 17))
    assert [row.flags.name for row in last] == ["PADDED"] * replicas
    assert all(not row.flags for own in rows for row in own[:-1])


# --- weights that change ------------------------------------------------------------------------------


def strides(batches: list[Any]) -> list[int]:
    return [(batch[1][0] - batch[0][0]) % 23 for batch in batches]


@pytest.mark.parametrize("workers", [0, 2])
def test_weights_change_at_the_declared_lead_wherever_the_run_was_killed(workers: int) -> None:
    def run(loader: DurableLoader, batches: int) -> list[Any]:
        """Weights are updated after the 4th batch that the run trained, in whichever life that is."""
        out: list[Any] = []
        while len(out) < batches:
            for batch in loader:
                out.append(batch)
                loader.acknowledge(step=len(out))
                if loader.cursor.consumed_samples == 16:
                    assert loader.update_weights({"stride": 5}, lead=6) == 10
                if len(out) == batches:
                    break
        return out

    def new() -> DurableLoader:
        return make(Walked(per_epoch=28), num_workers=workers)

    whole = run(new(), 16)
    assert strides(whole) == [7] * 10 + [5] * 6
    for stop in range(1, 16) if not workers else (3, 4, 9, 10, 11):
        first = new()
        taken = run(first, stop)
        again = new()
        again.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert taken + run(again, 16 - stop) == whole, stop


def test_weights_cannot_change_what_is_planned() -> None:
    loader = make(num_workers=2)
    train(loader, 1, ahead=1)
    with pytest.raises(UsageError, match=r"planned already.*lead=4"):
        loader.update_weights({"stride": 5}, lead=3)
    loader.update_weights({"stride": 5}, lead=8)
    with pytest.raises(UsageError, match="given already"):
        loader.update_weights({"stride": 6}, lead=8)
    with pytest.raises(KeyError):
        loader.update_weights({}, lead=9)
    with pytest.raises(UnsupportedError, match="mixture"):
        DurableLoader(range(9), 3, seed=1).update_weights({})


# --- another batch size ----------------------------------------------------------------------------------


def test_a_step_that_keeps_its_samples_may_be_cut_into_other_batches() -> None:
    whole = ids_of(epochs(2, Walked(per_epoch=24)))
    for stop in (0, 2, 6):
        first = make(Walked(per_epoch=24), 4, accumulate=2, promise="exact-order")
        taken = ids_of(train(first, stop)) if stop else []
        again = make(Walked(per_epoch=24), 8, accumulate=1, promise="exact-order")
        with pytest.warns(UserWarning, match="batches of 4 samples are now of 8"):
            again.load_state_dict(json.loads(json.dumps(first.state_dict())))
        while len(taken) < len(whole):
            taken += ids_of(train(again))
        assert taken == whole


def test_what_was_stamped_with_batches_keeps_their_size() -> None:
    first = make(Walked(per_epoch=24), 4, accumulate=2, promise="exact-order")
    train(first, 2)
    first.update_weights({"stride": 5})
    with pytest.raises(SpecMismatchError, match="weights that change at a numbered batch"):
        make(Walked(per_epoch=24), 8, promise="exact-order").load_state_dict(first.state_dict())


# --- plain loaders -------------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_plain_loader_over_it_becomes_the_right_thing(replicas: int) -> None:
    plain = DataLoader(Walked(), 4 // replicas, collate_fn=listed)
    loader = DurableLoader.from_dataloader(plain, seed=5, replica=0, replicas=replicas)
    assert [batch[: len(batch) // replicas] for batch in epochs(2)] == train(loader) + train(loader)
    assert loader.guarantees is Promise.BITWISE and len(loader) == 5
    odd = DataLoader(Walked(per_epoch=17), 2, collate_fn=listed)
    with pytest.raises(UnsupportedError, match="drop_last=True"):
        DurableLoader.from_dataloader(odd, seed=5, replicas=2)
    odd = DataLoader(Walked(per_epoch=17), 2, collate_fn=listed, drop_last=True)
    assert len(DurableLoader.from_dataloader(odd, seed=5, replicas=2)) == 4
