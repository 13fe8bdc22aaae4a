"""Hugging Face ``datasets`` as they are: map-style along our order, streams by their own state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from data_samples import interrupted, listed, train
from torch.utils.data import IterableDataset

datasets: Any = pytest.importorskip("datasets", reason="datasets is not installed")

from durable_core.data import DurableLoader  # noqa: E402
from durable_core.data.loader.window_shuffle import WindowShuffle  # noqa: E402
from durable_core.data.manifest import build  # noqa: E402
from durable_core.data.readers.hugging import lossy_buffer, unverified_id  # noqa: E402
from durable_core.data.records import RecordDataset  # noqa: E402
from durable_core.errors import UnsupportedError  # noqa: E402
from durable_core.types import Promise  # noqa: E402


def table(rows: int, first: int = 0) -> Any:
    return datasets.Dataset.from_dict({"i": list(range(first, first + rows))})


def stream(rows: int, first: int = 0) -> Any:
    return table(rows, first).to_iterable_dataset(num_shards=4)


def interleaved() -> Any:
    parts = [stream(30), stream(20, 1000)]
    return datasets.interleave_datasets(
        parts, probabilities=[0.7, 0.3], seed=1, stopping_strategy="all_exhausted"
    )


def mapped() -> Any:
    doubled = stream(40).map(lambda rows: {"j": [2 * i for i in rows["i"]]}, batched=True, batch_size=7)
    return doubled.filter(lambda row: row["i"] % 3)


def shards_only() -> Any:
    return stream(40).shuffle(seed=1, buffer_size=1, max_buffer_input_shards=1)


def loader(dataset: Any, workers: int = 0, **more: Any) -> DurableLoader:
    return DurableLoader(dataset, 4, seed=5, num_workers=workers, collate_fn=listed, **more)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_map_style_dataset_goes_on_in_its_order(workers: int) -> None:
    def make() -> DurableLoader:
        return loader(table(23), workers)

    first = make()
    whole = train(first) + train(first)
    assert sorted(row["i"] for batch in whole[:6] for row in batch) == list(range(23))
    for stop in (0, 1, 6, 7) if workers == 0 else (3, 8):
        assert interrupted(make, stop, len(whole), ahead=2) == whole


def test_its_id_says_that_nobody_verified_the_content() -> None:
    one = table(5)
    assert unverified_id(one) == unverified_id(table(5)) != unverified_id(table(6))
    assert unverified_id(one).startswith("unverified:huggingface:")
    assert not loader(one).verified


def test_a_saved_dataset_by_its_manifest(tmp_path: Path) -> None:
    table(23).save_to_disk(str(tmp_path / "saved"), num_shards=3)
    built = build([tmp_path / "saved"])
    assert {Path(name).suffix for name in built.left_out} == {".json"}
    dataset = RecordDataset(built.manifest, tmp_path / "saved")
    assert [row["i"] for row in dataset] == list(range(23))
    assert loader(dataset).verified


def window_shuffled() -> Any:
    return WindowShuffle(interleaved(), window=7, seed=3)


@pytest.mark.parametrize("make", [lambda: stream(40), interleaved, mapped, shards_only, window_shuffled])
def test_a_stream_goes_on_where_it_was(make: Callable[[], Any]) -> None:
    first = loader(make())
    whole = train(first) + train(first)
    for stop in range(0, len(whole), 2):
        assert interrupted(lambda: loader(make()), stop, len(whole), ahead=1) == whole, stop


@pytest.mark.parametrize("make", [interleaved, mapped, window_shuffled])
def test_a_stream_with_workers_goes_on_where_it_was(make: Callable[[], Any]) -> None:
    first = loader(make(), 2)
    whole = train(first) + train(first)
    for stop in (5, len(whole) - 3):
        assert interrupted(lambda: loader(make(), 2), stop, len(whole), ahead=1) == whole, stop


def test_a_shuffle_buffer_is_refused_with_the_way_out() -> None:
    lossy = stream(40).map(lambda row: row).shuffle(seed=1, buffer_size=10).filter(lambda row: True)
    parts = datasets.interleave_datasets([stream(9), lossy])
    for dataset in (lossy, parts):
        with pytest.raises(
            UnsupportedError, match=r"buffer_size=10\) does not save its buffer.*WindowShuffle"
        ):
            loader(dataset)
    with pytest.raises(UnsupportedError, match="does not save its buffer"):
        WindowShuffle(lossy, window=4, seed=1)
    assert loader(lossy, promise=Promise.DISTRIBUTION).guarantees is Promise.DISTRIBUTION
    assert lossy_buffer(stream(4)) is lossy_buffer(shards_only()) is lossy_buffer(table(3)) is None


def test_what_is_refused_does_lose_rows() -> None:
    """If this fails, ``datasets`` has mended its buffer, and the refusal can go."""

    def make() -> DurableLoader:
        return loader(stream(40).shuffle(seed=1, buffer_size=10), promise=Promise.DISTRIBUTION)

    whole = train(make())
    assert sorted(row["i"] for batch in whole for row in batch) == list(range(40))
    assert interrupted(make, 4, len(whole)) != whole


class SharedEpoch(IterableDataset[int]):
    """Keeps its epoch as ``datasets`` does: in memory that the workers share, adding what is missing."""

    def __init__(self) -> None:
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self.missing = 0

    def set_epoch(self, epoch: int) -> None:
        self.missing = epoch - int(self.epoch)
        self.epoch += self.missing

    def __iter__(self) -> Iterator[int]:
        return iter([self.missing] * 6)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@pytest.mark.parametrize("window", [0, 4])
def test_workers_find_the_epoch_set_so_that_two_do_not_both_add_to_it(window: int) -> None:
    dataset = SharedEpoch()
    shared = loader(WindowShuffle(dataset, window=window, seed=0) if window else dataset, 2)
    batches = train(shared) + train(shared) + train(shared)
    assert {missing for batch in batches for missing in batch} == {0}
