"""What a loader promises at another number of replicas, and what its state says of it."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from data_samples import Anew, Counting, Plain, train
from torch.utils.data import Dataset, IterableDataset

from durable_core.data import BlockShuffle, BufferedShuffle, DurableLoader, Mixture, Packing
from durable_core.engine.audit import positions
from durable_core.engine.audit.due import Ordered, due
from durable_core.errors import SpecMismatchError, UsageError
from durable_core.types import Promise


class Records(Dataset[Any]):
    dataset_id = "sha256:records"
    lengths = [3] * 24
    blocks = [8] * 3

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return [index] * 3


class Batched(Records):
    def __getitems__(self, ids: list[int]) -> list[Any]:
        return [self[i] for i in ids]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(24))


BITWISE, EXACT, COVERAGE, LEAST = Promise.BITWISE, Promise.EXACT_ORDER, Promise.COVERAGE, Promise.DISTRIBUTION
TABLE: dict[str, tuple[Any, dict[str, Any], Promise, Promise]] = {
    "map": (Records, {}, BITWISE, EXACT),
    "blocks": (Records, {"order": BlockShuffle(2)}, BITWISE, EXACT),
    "buffered": (Records, {"order": BufferedShuffle(4)}, BITWISE, EXACT),
    "packed": (Records, {"packing": Packing(8)}, BITWISE, EXACT),
    "mixture": (lambda: Mixture({"a": Records()}, {"a": 1}), {}, BITWISE, EXACT),
    "batched": (Batched, {}, BITWISE, COVERAGE),
    "batched, packed": (Batched, {"packing": Packing(8)}, BITWISE, COVERAGE),
    "batched, draws nothing": (Batched, {"sample_rng": False}, BITWISE, EXACT),
    "stream without a state": (Stream, {"promise": LEAST}, LEAST, LEAST),
}


def make(name: str, replicas: int = 1, **options: Any) -> DurableLoader:
    dataset, settings, *_ = TABLE[name]
    return DurableLoader(dataset(), 4 // replicas, seed=5, replicas=replicas, drop_last=True, collate_fn=list,
                         **{**settings, **options})  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_promises_here_and_elsewhere(name: str) -> None:
    loader, (_, _, here, elsewhere) = make(name), TABLE[name]
    assert loader.guarantees is loader.guarantees_at(1) is here
    assert loader.guarantees_at(2) is elsewhere


def test_draws_that_depend_on_the_share_are_not_exact_elsewhere() -> None:
    saved = json.loads(json.dumps(make("batched").state_dict()))
    for options in ({}, {"promise": "exact-order"}):
        with pytest.raises(SpecMismatchError, match="1 replicas are now 2"):
            make("batched", 2, **options).load_state_dict(saved)
    make("batched", 2, promise="coverage").load_state_dict(saved)
    make("map", 2, promise="exact-order").load_state_dict(make("map").state_dict())
    assert "replicas" not in make("map").state_dict()


def test_an_order_with_settings_is_described_beside_the_cursor() -> None:
    saved = json.loads(json.dumps(make("blocks").state_dict()))
    (cursor, plan, _) = next(positions(saved))
    assert cursor is not None and plan is not None and isinstance(due(cursor, plan), Ordered)
    make("blocks").load_state_dict(saved)
    del saved["plan"]  # as it was written once
    make("blocks").load_state_dict(saved)
    assert "plan" not in make("map").state_dict()


def test_closing_ends_workers_and_keeps_the_position() -> None:
    before = set(multiprocessing.active_children())
    loader = DurableLoader(Records(), 4, seed=5, num_workers=1, persistent_workers=True, collate_fn=list)
    whole = [batch for batch, _ in zip(make("map"), range(6), strict=False)]
    with closing(loader):
        batches = iter(loader)
        assert next(batches) == whole[0]
        loader.acknowledge(step=1)
        next(batches)
        assert set(multiprocessing.active_children()) > before
        loader.close()
        assert set(multiprocessing.active_children()) <= before
        with pytest.raises(UsageError):
            next(batches)
        loader.close()
        assert not loader.outstanding and list(loader) == whole[1:]  # as a restart would
    assert set(multiprocessing.active_children()) <= before


class CountingOnce(Counting):
    """The same in every epoch: told the epoch, it begins as it was given."""

    def set_epoch(self, epoch: int) -> None:
        pass


@pytest.mark.parametrize("acknowledged", [0, 2])
@pytest.mark.parametrize(
    "kind",
    {
        "stream": lambda: {"dataset": Anew(20)},
        "sampler": lambda: {"dataset": Plain(20), "sampler": Counting(20)},
        "sampler told the epoch": lambda: {"dataset": Plain(20), "sampler": CountingOnce(20)},
    }.values(),
)
def test_epochs_after_closing_begin_where_the_data_began(
    kind: Callable[[], dict[str, Any]], acknowledged: int
) -> None:
    """What is read in this process stands in the middle of the epoch when the loader is closed."""

    def loader() -> DurableLoader:
        return DurableLoader(batch_size=4, seed=5, collate_fn=list, **kind())

    def epochs(loader: DurableLoader, count: int) -> list[Any]:
        return [batch for _ in range(count) for batch in train(loader)]

    whole, closed = epochs(loader(), 3), loader()
    train(closed, acknowledged, ahead=1)
    closed.close()
    assert epochs(closed, 3) == whole[acknowledged:]
