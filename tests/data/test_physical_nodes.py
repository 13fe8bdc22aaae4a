"""A durable order under torchdata.nodes: mappers and prefetchers over it resume exactly."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from torchdata.nodes import Loader, ParallelMapper, Prefetcher  # type: ignore[import-untyped]

from durable_core.data.loader.nodes import SequenceNode, part_of
from durable_core.data.order import make_order
from durable_core.data.sequence import Batch, OrderedSequence
from durable_core.errors import SpecMismatchError, UsageError

ORDER = make_order("full_prp_v1", 53, dataset_id="d", seed=3)


def read(batch: Batch) -> list[tuple[int, int]]:
    return list(zip(batch.ids.tolist(), (batch.ids * 10).tolist(), strict=True))


def pipeline(threads: int, ahead: int, **place: Any) -> Any:
    node = SequenceNode(ORDER, 8, **place)
    return Loader(Prefetcher(ParallelMapper(node, read, num_workers=threads, method="thread"), ahead))


def expected(epoch: int) -> list[list[tuple[int, int]]]:
    ids = [ORDER.ids(epoch, start, min(start + 8, 53)).tolist() for start in range(0, 53, 8)]
    return [[(index, index * 10) for index in batch] for batch in ids]


def test_epochs_follow_one_another() -> None:
    loader = pipeline(2, 3)
    assert [list(loader) for _ in range(3)] == [expected(0), expected(1), expected(2)]


@pytest.mark.parametrize("stop", range(8))
def test_a_restart_goes_on_exactly_with_other_threads(stop: int) -> None:
    loader = pipeline(3, 4)
    list(loader)
    batches = iter(loader)  # epoch 1
    given = [next(batches) for _ in range(min(stop, 7))]
    state = json.loads(json.dumps(loader.state_dict()))
    other = pipeline(1, 1)
    other.load_state_dict(state)
    rest = list(other)
    assert given + rest == expected(1) if stop < 7 else rest == expected(2)
    assert list(other) == expected(2 if stop < 7 else 3)


def test_replicas_share_each_global_batch() -> None:
    whole = list(SequenceNode(ORDER, 8))
    parts = [list(SequenceNode(ORDER, 8, replica=r, replicas=3)) for r in range(3)]
    for batch, *shares in zip(whole, *parts, strict=True):
        assert np.concatenate([share.ids for share in shares]).tolist() == batch.ids.tolist()


def test_a_share_of_packs_keeps_their_pieces() -> None:
    pieces = np.arange(6)
    batch = Batch(pieces + 10, pieces * 0, pieces, pieces + 1, np.array([0, 1, 3, 4, 6]))
    shares = [part_of(batch, r, 2) for r in range(2)]
    assert [share.ids.tolist() for share in shares] == [[10, 11, 12], [13, 14, 15]]
    assert [share.packs.tolist() for share in shares if share.packs is not None] == [[0, 1, 3], [0, 1, 3]]
    assert shares[1].begins is not None and shares[1].begins.tolist() == [3, 4, 5]


def test_a_state_of_something_else_is_refused() -> None:
    state = SequenceNode(ORDER, 8).state_dict()
    other = make_order("sequential_v1", 53, dataset_id="d", seed=3)
    for node in (SequenceNode(OrderedSequence(other), 8), SequenceNode(ORDER, 4)):
        with pytest.raises(SpecMismatchError, match="in batches of"):
            node.reset(state)
    with pytest.raises(UsageError):
        SequenceNode(ORDER, 2, replica=0, replicas=3)
