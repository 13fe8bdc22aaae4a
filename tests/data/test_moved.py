"""``seek`` and ``skip``: a loader that is put elsewhere, and one that leaves its beginning out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from data_samples import Backwards, Counting, Drawing, Plain, Stream, listed, train

from durable_core import DurableSession
from durable_core.data import BufferedShuffle, DurableLoader, Mixture
from durable_core.engine.audit import audit
from durable_core.engine.inspect import open_run
from durable_core.errors import OrderError, SpecMismatchError, UsageError
from durable_core.format.ledger import RowFlag

SIZE = 20


class Blocks(Drawing):
    blocks = (5, 5, 10)


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "order": lambda: {"dataset": Drawing(SIZE)},
    "straddle": lambda: {"dataset": Drawing(SIZE), "remainder": "straddle"},
    "workers": lambda: {"dataset": Drawing(SIZE), "num_workers": 1},
    "share": lambda: {"dataset": Drawing(SIZE), "replica": 1, "replicas": 2, "drop_last": True},
    "buffer": lambda: {"dataset": Blocks(SIZE), "order": BufferedShuffle(4)},
    "mixture": lambda: {
        "dataset": Mixture({"a": Drawing(9), "b": Drawing(11)}, {"a": 1, "b": 2}, epoch_size=SIZE)
    },
    "sampler": lambda: {"dataset": Drawing(SIZE), "sampler": Backwards(SIZE), "promise": "distribution"},
    "stateful sampler": lambda: {"dataset": Drawing(SIZE), "sampler": Counting(SIZE)},
    "stream": lambda: {"dataset": Stream(SIZE)},
}


def make(kind: str) -> DurableLoader:
    return DurableLoader(**KINDS[kind](), batch_size=3, seed=4, dataset_id="rows", collate_fn=listed)


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_seek_it_goes_on_as_a_loader_that_was_restored(kind: str) -> None:
    loader = make(kind)
    train(loader, 2)
    state = loader.state_dict()
    train(loader, 1, step=2, ahead=1)
    loader.seek(state)
    assert (loader.cursor, loader.outstanding) == (make_restored(kind, state).cursor, 0)
    restored = make_restored(kind, state)
    assert [train(loader), train(loader, 2)] == [train(restored), train(restored, 2)]
    assert loader.state_dict() == restored.state_dict()
    loader.close()
    restored.close()


def make_restored(kind: str, state: dict[str, Any]) -> DurableLoader:
    loader = make(kind)
    loader.load_state_dict(state)
    return loader


def test_a_seek_ends_the_pass_that_is_under_way() -> None:
    loader = make("order")
    state, taken = loader.state_dict(), []
    for batch in loader:
        taken.append(batch)
        if len(taken) == 2:
            loader.acknowledge(2, step=1)
            loader.seek(state)
    assert len(taken) == 2
    assert next(iter(loader)) == taken[0]
    assert loader.drain_rows() == (), "what was trained before is not on this line"


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    loader, other = make("order"), DurableLoader(Plain(SIZE), 3, seed=4, dataset_id="others")
    batches = iter(loader)
    next(batches)
    before = loader.state_dict()
    with pytest.raises(SpecMismatchError):
        loader.seek(other.state_dict())
    assert loader.state_dict() == before
    next(batches)
    loader.acknowledge(2, step=1)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_skipped_is_left_out_and_nothing_else(kind: str) -> None:
    whole, loader = make(kind), make(kind)
    expected = train(whole, 3)
    loader.skip(2)
    fresh = loader.state_dict()
    next(iter(loader))
    assert loader.state_dict() == fresh, "nothing is left out before something was trained"
    assert train(loader, 1) == expected[2:]
    skipped = [row for row in loader.rows_since(0) if row.flags & RowFlag.SKIPPED]
    assert [(row.step, row.epoch, row.batch) for row in skipped] == [(1, 0, 0), (1, 0, 1)]
    for row, there in zip(loader.rows_since(0), whole.rows_since(0), strict=True):
        assert row.ids.tolist() == there.ids.tolist()
    assert loader.state_dict() == whole.state_dict()
    assert [train(loader), train(loader, 2)] == [train(whole), train(whole, 2)], "the next epoch is whole"
    loader.close()
    whole.close()


def test_what_an_order_skips_is_not_read() -> None:
    loader = DurableLoader(Plain(1_000_000), 4, seed=1, dataset_id="rows")
    loader.skip(200_000)
    next(iter(loader))
    assert loader.dataset.reads == 4


@pytest.mark.parametrize("kind", ["order", "stream"])
def test_only_the_beginning_is_left_out(kind: str) -> None:
    loader = make(kind)
    with pytest.raises(UsageError, match=r"skip\(7\) of an epoch of"):
        loader.skip(7)
        next(iter(loader))
    loader = make(kind)
    train(loader, 1)
    with pytest.raises(UsageError, match="after iteration has begun"):
        loader.skip(1)
    with pytest.raises(UsageError, match="at epoch 0 batch 1"):
        make_restored(kind, loader.state_dict()).skip(1)


def test_an_iterator_from_before_the_seek_is_at_its_end_and_one_that_was_replaced_is_an_error() -> None:
    loader = make("order")
    old = iter(loader)
    next(old)
    iter(loader)
    with pytest.raises(UsageError, match="newer iterator"):
        next(old)
    current = iter(loader)
    loader.seek(loader.state_dict())
    assert next(current, None) is None
    with pytest.raises(OrderError):
        loader.acknowledge(1, step=1)


def test_the_audit_of_a_run_that_skipped_is_sound(tmp_path: Path) -> None:
    def life(steps: int) -> None:
        loader = DurableLoader(torch.arange(float(SIZE)).reshape(SIZE, 1), 3, seed=1, dataset_id="rows")
        model = torch.nn.Linear(1, 1)
        state = {"model": model, "loader": loader}
        with DurableSession.open(tmp_path, state=state, every_n_steps=2) as session:
            if not loader.cursor.consumed_samples:
                loader.skip(2)
            while session.steps < steps:
                for _ in loader:
                    session.step()
                    if session.steps == steps:
                        break

    life(0)  # killed before the first commit: it has to skip again
    life(3)
    life(9)
    found = audit(open_run(tmp_path))
    assert found.sound and found.consumption.ids_checked
    assert sum(epoch.left_out for epoch in found.consumption.epochs) == 6
