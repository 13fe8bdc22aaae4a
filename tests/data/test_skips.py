"""Records that are left out: counted alike by any number of workers, and no replica is without a batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from data_samples import Plain, listed, train
from sequence_samples import Tokens
from torch.utils.data import ConcatDataset, Subset

from durable_core.data import DurableLoader, Mixture, Packing
from durable_core.errors import CorruptError, OrderError, SkippedRecord, UnsupportedError
from durable_core.format.ledger import RowFlag

BAD = (3, 7, 11, 20, 29)


class Holed(Plain):
    def __init__(self, size: int = 32, bad: Iterable[int] = BAD) -> None:
        super().__init__(size)
        self.bad = frozenset(bad)

    def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        if index in self.bad:
            raise SkippedRecord(f"object#{index}", "does not decode")
        return {"i": index}


class HoledBatches(Holed):
    def __getitems__(self, ids: list[int]) -> list[Any]:
        return [self[i] if i not in self.bad else SkippedRecord("object", "gone") for i in ids]


def make(dataset: Any = None, batch_size: int = 4, **more: Any) -> DurableLoader:
    data = Holed() if dataset is None else dataset
    return DurableLoader(data, batch_size, **{"seed": 1, "collate_fn": listed, **more})


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_too_many_are_too_many_at_the_same_batch_for_any_number_of_workers(workers: int) -> None:
    loader = make(num_workers=workers, max_skipped=2)
    taken: list[Any] = []
    iterator = iter(loader)
    with pytest.raises(CorruptError, match=r"epoch 0 batch \d+: more than max_skipped=2 .* 3 with ids"):
        for batch in iterator:
            taken.append(batch)
            loader.acknowledge(step=len(taken))
    reference = make()
    whole = train(reference)
    lost = [row.batch for row in reference.drain_rows() if row.flags & RowFlag.SKIPPED for _ in row.ids]
    assert taken == whole[: lost[2]]
    with pytest.raises(OrderError):  # it is not skipped over
        next(iterator)


def test_a_record_left_out_in_every_epoch_counts_once() -> None:
    loader = make(max_skipped=len(BAD))
    assert len(train(loader)) == len(train(loader)) == 8


def both(samples: list[Any], pad_mask: Any) -> Any:
    return [(sample["i"], bool(mask)) for sample, mask in zip(samples, pad_mask, strict=True)]


@pytest.mark.parametrize("kind", [Holed, HoledBatches])
@pytest.mark.parametrize(("replicas", "workers"), [(1, 0), (2, 0), (4, 0), (4, 1)])
def test_a_share_that_lost_everything_is_a_masked_sample(kind: Any, replicas: int, workers: int) -> None:
    trained: list[int] = []
    lengths = set()
    for replica in range(replicas):
        place = {"replica": replica, "replicas": replicas, "num_workers": workers}
        loader = make(kind(), 4 // replicas, remainder="pad", collate_fn=both, **place)
        batches = train(loader)
        lengths.add(len(batches))
        assert all(batches)
        trained += [i for batch in batches for i, masked in batch if not masked]
        rows = loader.drain_rows()
        skipped = [i for row in rows if row.flags & RowFlag.SKIPPED for i in row.ids.tolist()]
        assert set(skipped) <= set(BAD)
        named = [i for row in rows if not row.flags & RowFlag.SKIPPED for i in row.ids.tolist()]
        assert named == [i for batch in batches for i, masked in batch if not masked]
    assert lengths == {8}
    assert sorted(trained) == [i for i in range(32) if i not in BAD]


def test_what_stands_in_comes_from_beyond_a_long_bad_part() -> None:
    data = Holed(1000, range(500))
    (batch,) = train(make(data, 10, shuffle=False, remainder="pad", collate_fn=both), 1)
    assert [masked for _, masked in batch] == [True] and batch[0][0] >= 500


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_share_of_packs_that_lost_everything_is_a_row_without_labels(replicas: int) -> None:
    data = Tokens(40, bad=tuple(range(30)))
    place = {"replica": replicas - 1, "replicas": replicas}
    loader = make(data, 2 // replicas, shuffle=False, packing=Packing(8), remainder="pad", **place)
    first = train(loader, 3)
    for batch in first:
        assert [(row["pad_mask"], int(row["loss_mask"].sum())) for row in batch] == [(True, 0)]
        assert (batch[0]["document_ids"] >= 0).any()
    rows = loader.drain_rows()
    assert not any(len(row.ids) for row in rows if not row.flags & RowFlag.SKIPPED)


def test_a_batch_that_lost_everything_is_an_error_where_nothing_can_be_masked() -> None:
    with pytest.raises(CorruptError, match=r'all of its records were left out.*remainder="pad"'):
        train(make(Holed(bad=range(4)), shuffle=False))
    with pytest.raises(CorruptError, match="all of its records were left out"):
        train(make(Holed(bad=range(32)), remainder="pad", collate_fn=both))


class Declared(Holed):
    on_bad = "skip"


class Listed(Holed):
    quarantined = ("object",)


INSIDE = {
    "itself": Declared(),
    "a list of objects": Listed(),
    "subset": Subset(Declared(), range(32)),
    "concatenated": ConcatDataset([Holed(), Subset(Declared(), range(32))]),
    "mixture": Mixture({"a": Declared(), "b": Holed()}, {"a": 1, "b": 1}, epoch_size=32),
}


@pytest.mark.parametrize("name", INSIDE)
def test_replicas_of_data_that_may_be_left_out_need_masks(name: str) -> None:
    make(INSIDE[name], 4)
    for replica in range(2):
        with pytest.raises(UnsupportedError, match='remainder="pad"'):
            make(INSIDE[name], 2, replica=replica, replicas=2)
        make(INSIDE[name], 2, replica=replica, replicas=2, remainder="pad")
    make(Plain(32), 2, replica=0, replicas=2)


def test_what_stands_in_is_the_same_after_a_restart() -> None:
    data = Holed(64, range(40))
    whole = train(make(data, 4, shuffle=False, remainder="pad", collate_fn=both))
    loader = make(data, 4, shuffle=False, remainder="pad", collate_fn=both)
    train(loader, 5)
    again = make(data, 4, shuffle=False, remainder="pad", collate_fn=both, num_workers=1)
    again.load_state_dict(loader.state_dict())
    assert train(again) == whole[5:]


class Objects(Holed):
    """Four records an object; what is wrong is so of the object."""

    def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        if index in self.bad:
            said = f"record {index % 4} is left out: it is gone"
            raise SkippedRecord(f"{index // 4}.jsonl", said, why="it is gone")
        return {"i": index}


@pytest.mark.parametrize("more", [{"num_workers": 0}, {"num_workers": 2}], ids=["here", "workers"])
def test_each_object_of_which_records_are_left_out_is_told_once_in_the_training_process(
    more: dict[str, Any],
) -> None:
    loader = make(Objects(bad=(4, 5, 6, 20)), order="sequential_v1", batch_size=3, **more)
    with pytest.warns(UserWarning, match="left out so far") as caught:
        train(loader)
        train(loader)
    said = sorted(str(each.message) for each in caught if "left out" in str(each.message))
    assert [text.partition(" left out")[0] for text in said] == [
        "data: 1.jsonl: 2 records", "data: 5.jsonl: 1 record",
    ]  # fmt: skip
    assert all("as declared: it is gone" in text for text in said)
