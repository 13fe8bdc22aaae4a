"""DurableLoader over map-style datasets: one order whatever reads it, resumable after any batch."""

from __future__ import annotations

import json
import random
import weakref
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from data_samples import Batched, Drawing, Pickled, Plain, interrupted, listed, train
from torch.utils.data import Subset, get_worker_info

from durable_core.data import DurableLoader
from durable_core.data.loader.reading.fetch import Ticket
from durable_core.data.loader.sources.mapped import MapSource
from durable_core.data.order import FullPermutation
from durable_core.errors import FormatError, OrderError, SpecMismatchError, UnsupportedError, UsageError
from durable_core.format.ledger import RowFlag


def make(size: int = 22, batch_size: int = 4, **more: Any) -> DurableLoader:
    return DurableLoader(
        more.pop("dataset", None) or Drawing(size), batch_size, **{"seed": 5, "collate_fn": listed, **more}
    )


def epochs(count: int, **more: Any) -> list[Any]:
    loader = make(**more)
    return [batch for _ in range(count) for batch in train(loader)]


def masked(samples: list[Any], pad_mask: Any) -> list[Any]:
    return [(*sample, bool(padding)) for sample, padding in zip(samples, pad_mask, strict=True)]


def ids_of(batches: list[Any]) -> list[int]:
    return [sample[0] for batch in batches for sample in batch]


# --- one order ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more", [{"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}, {"num_workers": 4}]
)
def test_workers_change_neither_order_nor_draws(more: dict[str, Any]) -> None:
    assert epochs(2, **more) == epochs(2)


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_replicas_share_the_same_global_batches(replicas: int) -> None:
    whole = epochs(2, size=40, batch_size=12, drop_last=True)
    parts = [
        epochs(2, size=40, batch_size=12 // replicas, replica=r, replicas=replicas, drop_last=True)
        for r in range(replicas)
    ]
    assert [list(chain(*shares)) for shares in zip(*parts, strict=True)] == whole


def test_the_order_is_the_declared_one() -> None:
    loader = make()
    order = FullPermutation(22, dataset_id=loader.dataset_id, seed=5)
    assert ids_of(epochs(2)) == [*order.ids(0, 0, 22).tolist(), *order.ids(1, 0, 22).tolist()]
    assert ids_of(epochs(1, shuffle=False)) == list(range(22))


def test_draws_differ_between_samples_epochs_seeds_and_transform_versions() -> None:
    runs = [epochs(2), epochs(1, seed=6), epochs(1, transform_version="2")]
    draws = [sample[1:] for run in runs for batch in run for sample in batch]
    assert len(set(draws)) == len(draws)


def test_collate_draws_belong_to_the_batch() -> None:
    def noisy(samples: list[Any]) -> Any:
        return random.random(), float(np.random.rand()), torch.rand(()).item()

    first = epochs(2, collate_fn=noisy)
    assert first == epochs(2, collate_fn=noisy, num_workers=2)
    assert len(set(first)) == len(first)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_global_streams_are_left_as_they_were(workers: int) -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), float(np.random.rand()), torch.rand(()).item()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    epochs(2, num_workers=workers)
    assert (random.random(), float(np.random.rand()), torch.rand(()).item()) == expected


def test_drawing_in_the_training_loop_changes_no_sample() -> None:
    loader, quiet = make(), epochs(1)
    noisy = []
    for batch in loader:
        noisy.append(batch)
        random.random(), np.random.rand(), torch.rand(3)
    assert noisy == quiet


@pytest.mark.parametrize("workers", [0, 2])
def test_getitems_gets_the_whole_batch_under_its_own_streams(workers: int) -> None:
    batched = epochs(2, dataset=Batched(22), num_workers=workers)
    assert batched == epochs(2, dataset=Batched(22))
    assert ids_of(batched) == ids_of(epochs(2, dataset=Plain2(22)))
    assert len({draw for batch in batched for _, draw in batch}) == 44


class Plain2(Plain):
    def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        return (super().__getitem__(index),)

    @property
    def dataset_id(self) -> str:
        return "unverified:Batched:22"


def test_a_subset_is_read_sample_by_sample_unless_what_is_inside_reads_batches() -> None:
    inside = Subset(Subset(Drawing(50), range(30)), range(22))
    draws = [sample[1:] for batch in epochs(1, dataset=inside) for sample in batch]
    alone = epochs(1, dataset=inside, batch_size=1)
    assert draws == [sample[1:] for batch in alone for sample in batch]  # not a matter of the batch
    grouped = epochs(1, dataset=Subset(Batched(50), range(22)))
    assert len(ids_of(grouped)) == 22 and all(len(sample) == 2 for batch in grouped for sample in batch)


def test_a_declaration_that_nothing_is_drawn_leaves_the_streams_to_the_user() -> None:
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    expected = random.random()
    random.seed(3)
    assert epochs(1, sample_rng=False)[0][0][1] == expected


# --- the end of an epoch ---------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_batches_run_on_over_the_end_of_an_epoch(replicas: int, workers: int) -> None:
    """Every batch is whole, and each sample draws what it draws in its own epoch."""
    plain = {sample for epoch in range(4) for sample in train_epoch(epoch, size=22, batch_size=22)}
    shares, loaders = [], []
    for r in range(replicas):
        loader = make(
            batch_size=12 // replicas, remainder="straddle", replica=r, replicas=replicas, num_workers=workers
        )
        loaders.append(loader)
        sizes = []
        share = []
        for _ in range(3):
            sizes.append(len(loader))
            share += train(loader)
        shares.append(share)
        assert sizes == [2, 2, 2] and loader.cursor.consumed_samples == 72
    batches = [list(chain(*parts)) for parts in zip(*shares, strict=True)]
    assert [len(batch) for batch in batches] == [12] * 6
    samples = [sample for batch in batches for sample in batch]
    assert [i for i, *_ in samples[:66]] == ids_of(epochs(3))
    assert set(samples) <= plain
    rows = loaders[0].drain_rows()
    assert [(row.epoch, row.batch) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]


def train_epoch(epoch: int, **more: Any) -> list[Any]:
    loader = make(**more)
    for _ in range(epoch):
        train(loader)
    return [sample for batch in train(loader) for sample in batch]


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_the_last_batch_is_filled_up_and_says_so(replicas: int) -> None:
    trained, flags = [], []
    for r in range(replicas):
        loader = make(
            batch_size=8 // replicas, remainder="pad", replica=r, replicas=replicas, collate_fn=masked
        )
        batches = train(loader)
        assert [len(batch) for batch in batches] == [8 // replicas] * 3
        trained.append([sample[0] for sample in batches[-1] if not sample[-1]])
        rows = loader.drain_rows()
        assert rows[-1].ids.tolist() == trained[-1] and loader.cursor.consumed_samples == 22
        flags.append([row.flags for row in rows])
    assert list(chain(*trained)) == ids_of(epochs(1, batch_size=8)[2:])
    assert sum(flag[-1] == RowFlag.PADDED for flag in flags) == (2 if replicas == 4 else replicas)
    assert not any(flag for own in flags for flag in own[:-1])


def test_dicts_get_a_mask_and_what_has_no_place_for_one_is_refused() -> None:
    class Dicts(Plain):
        def __getitem__(self, index: int) -> Any:  # type: ignore[override]
            return {"x": index}

    batches = train(DurableLoader(Dicts(6), 4, seed=5, remainder="pad"))
    assert batches[0]["pad_mask"].tolist() == [False] * 4
    assert batches[1]["pad_mask"].tolist() == [False, False, True, True]
    assert len(set(batches[1]["x"][1:].tolist())) == 1
    with pytest.raises(UnsupportedError, match=r"type int.*pad_mask"):
        train(DurableLoader(Plain(6), 4, seed=5, remainder="pad"))


# --- a restart after any batch -------------------------------------------------------------------


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"drop_last": True},
        {"remainder": "wrap"},
        {"remainder": "straddle"},
        {"remainder": "pad", "collate_fn": masked},
        {"batch_size": 22},
    ],
)
def test_resume_after_every_batch_of_two_epochs(more: dict[str, Any]) -> None:
    whole = epochs(2, **more)
    for stop in range(len(whole) + 1):
        assert interrupted(lambda: make(**more), stop, len(whole)) == whole, stop


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ahead", [1, 3])
def test_batches_only_handed_over_come_again(workers: int, ahead: int) -> None:
    whole = epochs(1)
    loader = make(num_workers=workers)
    iterator = iter(loader)
    for _ in range(1 + ahead):
        next(iterator)
    loader.acknowledge(step=1)
    again = make(num_workers=2 - workers)
    again.load_state_dict(loader.state_dict())
    assert train(again) == whole[1:]


def test_other_numbers_of_replicas_go_on_with_the_same_global_batches() -> None:
    whole = epochs(1, size=48, batch_size=12)
    one = make(48, 12)
    train(one, 2)
    shares = []
    for r in range(3):
        part = make(48, 4, replica=r, replicas=3)
        part.load_state_dict(one.state_dict())
        shares.append(train(part))
    assert [list(chain(*parts)) for parts in zip(*shares, strict=True)] == whole[2:]


def test_seeking_reads_nothing_before_the_position() -> None:
    size = 10**12
    dataset = Plain(size)
    loader = make(dataset=dataset, batch_size=8)
    state = {**loader.state_dict(), "epoch": 3, "batch": 10**11, "consumed_samples": 2**60}
    assert len(json.dumps(state)) <= 1024
    loader.load_state_dict(state)
    batch = next(iter(loader))
    assert dataset.reads == 8
    order = FullPermutation(size, dataset_id=loader.dataset_id, seed=5)
    assert batch == order.ids(3, 8 * 10**11, 8 * 10**11 + 8).tolist()


def test_the_recorded_seed_wins() -> None:
    whole = epochs(1)
    loader = make()
    train(loader, 2)
    other = make(seed=99)
    with pytest.warns(UserWarning, match="seed 5 is used, not 99"):
        other.load_state_dict(loader.state_dict())
    assert train(other) == whole[2:] and other.seed == 5


def test_an_optimizer_step_may_be_cut_into_other_batches() -> None:
    whole = ids_of(epochs(2, size=24))
    for stop, old, new in ((2, 4, 8), (3, 4, 12), (1, 12, 4), (7, 4, 2)):
        first = make(24, old, accumulate=24 // old, promise="exact-order")
        taken = []
        while stop:
            batches = train(first, stop)
            stop -= len(batches)
            taken += ids_of(batches)
        again = make(24, new, accumulate=24 // new, promise="exact-order")
        with pytest.warns(UserWarning, match=f"batches of {old} samples are now of {new}"):
            again.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert again.cursor.consumed_samples == len(taken)
        while len(taken) < len(whole):
            taken += ids_of(train(again))
        assert taken == whole


def test_batches_that_run_on_over_epochs_may_be_cut_into_others_too() -> None:
    whole = ids_of(epochs(3, size=22))
    for stop in (2, 6, 8):
        first = make(22, 4, accumulate=2, promise="exact-order", remainder="straddle")
        taken: list[int] = []
        while stop:
            batches = train(first, stop)
            taken += ids_of(batches)
            stop -= len(batches)
        again = make(22, 8, promise="exact-order", remainder="straddle")
        with pytest.warns(UserWarning, match="now of 8"):
            again.load_state_dict(first.state_dict())
        while len(taken) < 56:
            taken += ids_of(train(again, 1 + (56 - len(taken)) // 8 - 1))
        assert taken[:56] == whole[:56]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"promise": "bitwise"}, "global_batch was 4 and is now 8"),
        ({"accumulate": 2}, "4 with accumulate=2, and is now 8 with 2"),
        ({"batch_size": 16, "accumulate": 1}, "an optimizer step would have other samples"),
        ({"stop": 3}, "12 samples on, is inside a batch"),
        ({"size": 28, "drop_last": True}, r"other samples of its end \(remainder 'drop'\)"),
    ],
)
def test_a_batch_that_cannot_be_cut_so_is_refused(change: dict[str, Any], message: str) -> None:
    stop = change.pop("stop", 2)
    common = {key: change.pop(key) for key in ("size", "drop_last") if key in change} or {"size": 24}
    first = make(batch_size=4, accumulate=2, promise="exact-order", **common)
    train(first, stop)
    second = {"batch_size": 8, "accumulate": 1, "promise": "exact-order", **common, **change}
    with pytest.raises(SpecMismatchError, match=message) as caught:
        make(**second).load_state_dict(first.state_dict())
    assert "global_batch" in caught.value.fields and caught.value.hint


def test_other_data_is_refused() -> None:
    state = make().state_dict()
    for more, field in (
        ({"size": 23}, "size"),
        ({"batch_size": 5}, "global_batch"),
        ({"shuffle": False}, "order"),
        ({"dataset_id": "x"}, "dataset_id"),
        ({"drop_last": True}, "remainder"),
    ):
        with pytest.raises(SpecMismatchError) as caught:
            make(**more).load_state_dict(state)
        assert field in caught.value.fields and caught.value.hint
    with pytest.raises(FormatError, match="batch 6 of an epoch of 6"):
        make().load_state_dict({**state, "batch": 6})


def test_state_cannot_be_loaded_once_iteration_has_begun() -> None:
    loader = make()
    iter(loader)
    with pytest.raises(UsageError, match="before the first iter"):
        loader.load_state_dict(make().state_dict())
    with pytest.raises(UsageError, match="bind"):
        loader.bind(seed=3)


# --- passes and epochs ---------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_an_epoch_left_early_is_followed_by_the_next(more: dict[str, Any]) -> None:
    whole = epochs(3)
    loader = make(**more)
    assert train(loader, 2) == whole[:2]
    assert train(loader, 3) == whole[6:9]
    assert train(loader) == whole[12:]
    assert [(r.epoch, r.batch) for r in loader.rows_since(0) if r.abandoned] == [(0, 2), (1, 3)]


def test_a_look_at_the_first_batch_costs_nothing() -> None:
    whole = epochs(2)
    loader = make()
    assert next(iter(loader)) == whole[0]
    assert next(iter(loader)) == whole[0]
    iter(loader)
    assert train(loader) + train(loader) == whole
    assert not any(row.abandoned for row in loader.rows_since(0))
    single = make(batch_size=22)
    assert next(iter(single)) == next(iter(single))  # even if that is all there is


def test_the_last_batch_fetched_ahead_and_never_trained_is_not_mistaken_for_the_next() -> None:
    whole = epochs(2)
    loader = make()
    assert train(loader, 5, ahead=1) == whole[:5]  # the sixth is the last; the trainer stops before it
    assert loader.cursor.batch == 5
    assert train(loader, 1) == whole[6:7]
    rows = [(row.epoch, row.batch, row.abandoned) for row in loader.rows_since(0)]
    assert rows[5:] == [(0, 5, True), (1, 0, False)]
    again = make()
    again.load_state_dict(loader.state_dict())
    assert train(again) == whole[7:]


def test_steps_may_straddle_epochs_whose_end_was_seen() -> None:
    loader = make()
    batches = [batch for _ in range(2) for batch in loader]
    for step in range(3):
        loader.acknowledge(4, step=step + 1)
    assert [row.ids.tolist() for row in loader.rows_since(0)] == [[s[0] for s in b] for b in batches]
    assert (loader.cursor.epoch, loader.cursor.batch, loader.outstanding) == (2, 0, 0)


def test_without_anyone_acknowledging_epochs_still_follow_one_another() -> None:
    loader = make()
    assert [list(loader), list(loader)] == [epochs(2)[:6], epochs(2)[6:]]
    assert loader.cursor.epoch == 0 and loader.outstanding == 12


def test_a_declared_end_of_epoch_is_what_a_save_stores() -> None:
    whole = epochs(2)
    loader = make()
    loader.end_epoch()
    assert (loader.cursor.epoch, loader.cursor.batch) == (0, 0)  # nothing was begun, nothing ends
    train(loader, 2)
    loader.end_epoch()
    assert (loader.cursor.epoch, loader.cursor.batch) == (1, 0)
    loader.end_epoch()
    assert loader.cursor.epoch == 1
    again = make()
    again.load_state_dict(loader.state_dict())
    assert train(again) == train(loader) == whole[6:]


def test_a_restored_trainer_may_find_the_epoch_already_over() -> None:
    loader = make()
    train(loader, 2)
    again = make()
    again.load_state_dict(loader.state_dict())
    iter(again)  # set up in the middle of the epoch; but the trainer's limit was two batches
    again.end_epoch()
    assert train(again) == epochs(2)[6:]


def test_a_loader_nobody_holds_is_gone_at_once() -> None:
    """With its workers: a cycle would leave them to some later collection."""
    loader = make(num_workers=1, persistent_workers=True)
    train(loader, 2)
    gone = weakref.ref(loader)
    del loader
    assert gone() is None


def test_an_old_iterator_is_refused() -> None:
    loader = make()
    old = iter(loader)
    new = iter(loader)
    with pytest.raises(UsageError, match="newer iterator"):
        next(old)
    next(new)


def test_hooks_run_before_each_fetch_and_not_after_the_last() -> None:
    dataset = Drawing(22)
    loader = make(dataset=dataset)
    seen: list[tuple[int, int]] = []
    loader.before_next.append(lambda: seen.append((dataset.reads, loader.cursor.batch)))
    train(loader)
    assert seen == [(4 * k, k) for k in range(6)]


def test_a_hook_that_raises_loses_nothing() -> None:
    loader, failing = make(), [True]

    def hook() -> None:
        if failing.pop():
            raise RuntimeError("not now")

    iterator = iter(loader)
    loader.before_next.append(hook)
    with pytest.raises(RuntimeError, match="not now"):
        next(iterator)
    loader.before_next.clear()
    assert next(iterator) == epochs(1)[0]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_that_cannot_be_read_is_not_skipped_over(workers: int) -> None:
    class Broken(Plain):
        def __getitem__(self, index: int) -> int:
            if index == bad:
                raise ZeroDivisionError("unreadable")
            return index

    bad = ids_of(epochs(1))[9]
    iterator = iter(make(dataset=Broken(22), dataset_id="unverified:Drawing:22", num_workers=workers))
    next(iterator), next(iterator)
    with pytest.raises(ZeroDivisionError, match="unreadable"):
        next(iterator)
    with pytest.raises(OrderError, match="must not be skipped"):
        next(iterator)


# --- the ledger tells what happened ---------------------------------------------------------------


def test_the_ledger_holds_the_ids_that_were_asked_of_the_dataset() -> None:
    loader = make(num_workers=2)
    batches = train(loader) + train(loader, step=100)
    rows = loader.drain_rows()
    assert [row.ids.tolist() for row in rows] == [[sample[0] for sample in batch] for batch in batches]
    assert all(row.ids.dtype == np.int64 for row in rows)
    assert [(row.step, row.epoch, row.batch) for row in rows[5:7]] == [(6, 0, 5), (101, 1, 0)]
    assert loader.drain_rows() == ()


def test_a_planted_loader_that_skips_and_repeats_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FullPermutation.ids

    def planted(self: FullPermutation, epoch: int, start: int, stop: int) -> Any:
        ids = honest(self, epoch, start, stop).copy()
        if start <= 8 and stop > 9:
            ids[9 - start] = ids[8 - start]
        return ids

    loader = make()
    monkeypatch.setattr(FullPermutation, "ids", planted)
    train(loader)
    monkeypatch.undo()
    due = FullPermutation(22, dataset_id=loader.dataset_id, seed=5).ids(0, 0, 22)
    seen = np.concatenate([row.ids for row in loader.rows_since(0)])
    assert sorted(due) != sorted(seen) and len(set(seen)) == 21


@pytest.mark.parametrize("fault", ["skip", "repeat", "stop"])
def test_a_planted_loader_that_loses_or_repeats_a_batch_raises(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = MapSource._tickets

    def planted(self: MapSource, *asked: int) -> Iterator[Ticket]:
        for ticket in honest(self, *asked):
            if ticket.batch != 3:
                last = ticket
                yield ticket
            elif fault == "stop":
                return
            elif fault == "repeat":
                yield last

    monkeypatch.setattr(MapSource, "_tickets", planted)
    loader = make()
    with pytest.raises(OrderError, match=r"batch 3|3 of 6|batch 4|batch 2"):
        train(loader)
    assert loader.cursor.batch == 3


# --- what people ask a loader ----------------------------------------------------------------------


def test_it_is_no_torch_loader_but_answers_like_one() -> None:
    loader = make(num_workers=2, drop_last=True)
    assert not isinstance(loader, torch.utils.data.DataLoader)
    assert (len(loader), loader.batch_size, loader.num_workers, loader.drop_last) == (5, 4, 2, True)
    assert loader.collate_fn is listed and loader.pin_memory is False and loader.sampler is None
    loader.set_epoch(7)
    assert loader.cursor.epoch == 0
    assert (loader.global_batch, loader.replica, loader.replicas, loader.streaming) == (4, 0, 1, False)


def test_identity_is_declared_or_called_unverified() -> None:
    class Known(Plain):
        dataset_id = "sha256:abc"

    assert (make(dataset=Known(22)).dataset_id, make(dataset=Known(22)).verified) == ("sha256:abc", True)
    assert (make().dataset_id, make().verified) == ("unverified:Drawing:22", False)
    assert make(dataset_id="mine").verified

    class Größe(Plain):
        pass

    assert make(dataset=Größe(22)).dataset_id == r"unverified:Gr\xf6\xdfe:22"


def test_default_seed_is_torchs_and_several_replicas_need_one() -> None:
    torch.manual_seed(123)
    assert make(seed=None).seed == 123
    with pytest.raises(UsageError, match="seed="):
        make(seed=None, replica=0, replicas=2)


def test_binding_gives_place_and_seed() -> None:
    loader = make(24, 4, seed=None)
    loader.bind(replica=1, replicas=2, seed=5)
    assert (loader.global_batch, len(loader)) == (8, 3)
    assert train(loader) == epochs(1, size=24, replica=1, replicas=2)
    moved = make()
    moved.load_state_dict({**make().state_dict(), "batch": 1})
    with pytest.raises(UsageError, match="bind first"):
        moved.bind(seed=8)


def test_a_worker_init_fn_finds_the_users_dataset() -> None:
    class Opened(Plain):
        handle = None

        def __getitem__(self, index: int) -> Any:  # type: ignore[override]
            return self.handle, index

    def opening(worker: int) -> None:
        get_worker_info().dataset.handle = "open"
        assert get_worker_info().dataset.size == 22

    for batch in make(dataset=Opened(22), num_workers=1, worker_init_fn=opening):
        assert {handle for handle, _ in batch} == {"open"}


def test_spawned_workers_work_too() -> None:
    """Also for a dataset that says itself how it is pickled."""
    spawned = DurableLoader(Pickled(9), 4, seed=5, num_workers=1, multiprocessing_context="spawn")
    assert [b.tolist() for b in spawned] == [b.tolist() for b in DurableLoader(Pickled(9), 4, seed=5)]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"in_order": False}, "in_order=True"),
        ({"batch_size": None}, "pass batch_size"),
        ({"batch_size": 0}, "batch_size must be 1"),
        ({"replica": 2, "replicas": 2}, "replica 2"),
        ({"size": 3, "drop_last": True}, "lower batch_size"),
        ({"replicas": 4}, '"wrap" to fill'),
        ({"dataset": object()}, "neither map-style"),
        ({"sampler": object(), "dataset": object()}, "neither map-style"),
    ],
)
def test_refusals_say_what_to_do(more: dict[str, Any], message: str) -> None:
    with pytest.raises((UnsupportedError, UsageError), match=message):
        make(**more)
