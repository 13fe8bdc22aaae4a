"""Mixtures through the loader: weights that change while packs are open, sources in block order."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from data_samples import listed
from sequence_samples import Tokens

from durable_core.data import BlockShuffle, DurableLoader, Mixture, Packing
from durable_core.data.order import BLOCK_PERMUTATION, make_order
from durable_core.data.rebuild import sequence_of
from durable_core.errors import UnsupportedError

NEW = {"web": 1, "books": 7}


def mixture(unit: Any, **more: Any) -> Mixture:
    sources = {"web": Tokens(40), "books": Tokens(30)}
    for name, data in sources.items():
        data.dataset_id = f"sha256:{name}"
    return Mixture(sources, {"web": 3, "books": 1}, unit=unit, **more)


def plain(batch: Any) -> Any:
    """Comparable: rows as lists."""
    if isinstance(batch, dict):
        return {name: value.tolist() for name, value in batch.items()}
    return [sample["input_ids"].tolist() for sample in batch]


def run(loader: DurableLoader, batches: int, act: Callable[[DurableLoader, int], None]) -> list[Any]:
    """``act`` after each step, by the batches that the run has trained in all its lives."""
    out: list[Any] = []
    while len(out) < batches:
        for batch in loader:
            out.append(plain(batch))
            done = loader.cursor.batch
            loader.acknowledge(step=done)
            act(loader, done + 1)
            if len(out) == batches:
                break
    return out


def killed(make: Callable[[], DurableLoader], act: Any, stop: int, total: int) -> list[Any]:
    first = make()
    taken = run(first, stop, act)
    again = make()
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    return taken + run(again, total - stop, act)


# --- weights that change ---------------------------------------------------------------------------

PACKED: dict[str, tuple[Any, Packing]] = {
    "rows of one source": ("packed", Packing(12)),
    "documents across sources": ("document", Packing(12)),
    "documents, best fit": ("document", Packing(12, policy="best_fit", window=3)),
    "weighed by tokens": ("token", Packing(12)),
}
UPDATED_AFTER, LEAD, TOTAL = 3, 4, 14


def update(loader: DurableLoader, done: int) -> None:
    if done == UPDATED_AFTER:
        assert loader.update_weights(NEW, lead=LEAD) == UPDATED_AFTER + LEAD


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", PACKED)
def test_weights_of_packs_change_where_declared_wherever_the_run_was_killed(kind: str, workers: int) -> None:
    unit, packing = PACKED[kind]

    def make() -> DurableLoader:
        return DurableLoader(mixture(unit), 2, seed=5, packing=packing, num_workers=workers)

    whole = run(make(), TOTAL, update)
    never = run(make(), TOTAL, lambda loader, done: None)
    same = UPDATED_AFTER + LEAD
    assert whole[:same] == never[:same] and whole != never
    # before the update; after it and before it takes effect; as it does; after it
    for stop in (2, UPDATED_AFTER, 5, same, same + 1, same + 3) if not workers else (2, 5, same):
        assert killed(make, update, stop, TOTAL) == whole, stop


@pytest.fixture(autouse=True)
def few_documents_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a change shows within a few batches."""
    monkeypatch.setattr("durable_core.data.packing.sequence.CHUNK", 4)


def test_the_update_is_in_the_mixture_and_not_in_what_was_drawn_before() -> None:
    data = mixture("packed")
    loader = DurableLoader(data, 2, seed=5, packing=Packing(12))
    run(loader, TOTAL, update)
    state = loader.state_dict()["source"]["state"]["sequence"]
    before, after = (UPDATED_AFTER + LEAD) * 2, (TOTAL - UPDATED_AFTER - LEAD) * 2
    due = {"web": before * 3 / 4 + after * 1 / 8, "books": before * 1 / 4 + after * 7 / 8}
    for name, source in data.report(state).items():
        assert abs(source.draws - due[name]) < 2, name


# --- sources in block order ------------------------------------------------------------------------


def in_blocks(workers: int = 0, **more: Any) -> DurableLoader:
    return DurableLoader(
        mixture("sample"), 4, seed=5, order=BlockShuffle(2), num_workers=workers, collate_fn=listed, **more
    )


def nothing(loader: DurableLoader, done: int) -> None:
    pass


def test_each_source_comes_in_a_block_order_of_its_own() -> None:
    loader = in_blocks()
    run(loader, 20, nothing)
    drawn = np.concatenate([row.ids for row in loader.drain_rows()])
    for name, base, size in (("web", 0, 40), ("books", 40, 30)):
        ids = drawn[(drawn >= base) & (drawn < base + size)] - base
        blocks = Tokens(size).blocks
        order = make_order(
            BLOCK_PERMUTATION, size, dataset_id=f"sha256:{name}", seed=5, source=name, blocks=blocks, window=2
        )
        count = min(len(ids), size)
        assert ids[:count].tolist() == order.ids(0, 0, count).tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_block_order_goes_on_after_a_kill(workers: int) -> None:
    whole = run(in_blocks(), 25, nothing)
    for stop in (1, 7, 17, 24) if not workers else (7,):
        assert killed(lambda: in_blocks(workers), nothing, stop, 25) == whole


def test_an_audit_can_make_the_block_order_again() -> None:
    loader = in_blocks()
    run(loader, 20, nothing)
    sequence = sequence_of(json.loads(json.dumps(loader.state_dict()["plan"])), 5)
    assert sequence is not None
    state, ids = sequence.start(0), []
    for _ in range(20):
        batch, state = sequence.take(state, 4)
        ids += batch.ids.tolist()
    assert ids == np.concatenate([row.ids for row in loader.drain_rows()]).tolist()


def test_packs_of_sources_in_block_order() -> None:
    def make() -> DurableLoader:
        return DurableLoader(mixture("packed"), 2, seed=5, packing=Packing(12), order=BlockShuffle(2))

    whole = run(make(), 12, nothing)
    assert killed(make, nothing, 5, 12) == whole


def test_a_source_without_blocks_is_named() -> None:
    class Bare(list[int]):
        pass

    data = Mixture({"web": Tokens(40), "bare": Bare(range(5))}, {"web": 1, "bare": 1})
    with pytest.raises(UnsupportedError, match=r"source 'bare' has no blocks.*records of each object"):
        DurableLoader(data, 4, seed=5, order=BlockShuffle(2))
