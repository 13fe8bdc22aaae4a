"""The data pipelines that the kill campaign runs: every kind of order, mixture, packing and stream.

Records draw from all three global generators, so that a batch's content says whether its randomness was
repeated, and hold their own id, so that it says which records really came.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from durable_core.data import (
    BlockShuffle,
    BufferedShuffle,
    DurableLoader,
    Mixture,
    PackedStream,
    Packing,
    WindowShuffle,
)

GLOBAL_BATCH = 12  # shared evenly by 1, 2, 3 and 4 replicas
ROW = 24  # tokens in a pack


def noise() -> int:
    """Something of all three global streams."""
    return random.randrange(1 << 20) + int(np.random.randint(1 << 20)) + int(torch.randint(1 << 20, ()))


class Records(Dataset[Any]):
    """``(id, noise)`` pairs; ``blocks`` as if they lay in objects of uneven sizes."""

    def __init__(self, name: str, count: int) -> None:
        self.dataset_id = f"sha256:{name}-{count}"
        self.count = count
        self.blocks = np.array([7, 1, 12, 5, *[9] * ((count - 25) // 9), (count - 25) % 9], dtype=np.int64)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, noise()])


class Documents(Dataset[Any]):
    """Token documents of 1 to 40 tokens: id, place and a little noise in every token."""

    def __init__(self, name: str, count: int) -> None:
        self.dataset_id = f"sha256:{name}-{count}"
        self.lengths = np.array([1 + (i * 7919 + len(name)) % 40 for i in range(count)], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        return index * 1000 + np.arange(self.lengths[index], dtype=np.int64) + (noise() % 7) * 10**6


class Stream(IterableDataset[Any]):
    """A stream of ``(number, noise)`` with a state, 100 items an epoch. After its end it begins anew."""

    dataset_id = "sha256:stream"

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.at < 100:
            self.at += 1
            yield torch.tensor([self.at, noise()])
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Parts(Stream):
    """Each worker has a part of its own; the first one's is the longest."""

    dataset_id = "sha256:parts"

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        while self.at < (70, 41, 5)[worker]:
            self.at += 1
            yield torch.tensor([1000 * worker + self.at, noise()])
        self.at = 0


class Texts(Stream):
    """Token documents of 1 to 40 tokens."""

    dataset_id = "sha256:texts"

    def __iter__(self) -> Iterator[np.ndarray[Any, Any]]:
        for number, drawn in super().__iter__():
            yield np.full(1 + int(number) * 7919 % 40, int(drawn), dtype=np.int64)


class Generating:
    """A sampler with a generator that goes on over epochs: each time a few other records, some twice."""

    def __init__(self, records: int, count: int) -> None:
        self.records, self.count = records, count
        self.generator = random.Random(5)
        self.order: list[int] = []

    def __iter__(self) -> Iterator[int]:
        if not self.order:
            self.order = self.generator.choices(range(self.records), k=self.count)
        while self.order:
            yield self.order.pop()

    def __len__(self) -> int:
        return self.count

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.getstate(), "order": self.order}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        version, words, gauss = state["generator"]
        self.generator.setstate((version, tuple(words), gauss))
        self.order = state["order"]


@dataclass(frozen=True)
class Pipeline:
    """``make(workers, replica, replicas)``; ``workers``: the counts that a restart may choose from, of which
    the run without kills has the first."""

    name: str
    make: Callable[[int, int, int], DurableLoader]
    workers: tuple[int, ...] = (0, 0, 0, 0, 0, 1, 2, 4)
    replicas: tuple[int, ...] = (1, 2, 4, 3)


def _sampled(workers: int, replica: int, replicas: int) -> DurableLoader:
    sampler = Generating(130, 100)
    return DurableLoader(Records("sampled", 130), GLOBAL_BATCH, seed=11, sampler=sampler, num_workers=workers)


def _loader(make: Callable[[], Any], **options: Any) -> Callable[[int, int, int], DurableLoader]:
    def built(workers: int, replica: int, replicas: int) -> DurableLoader:
        place = {"replica": replica, "replicas": replicas, "num_workers": workers}
        return DurableLoader(make(), GLOBAL_BATCH // replicas, seed=11, **place, **options)

    return built


def _mixed(**options: Any) -> Mixture:
    sources = {"code": Records("code", 70), "prose": Records("prose", 41), "law": Records("law", 33)}
    return Mixture(sources, {"code": "0.5", "prose": "0.3", "law": "0.2"}, **options)


def _documents(**options: Any) -> Mixture:
    sources = {"code": Documents("code", 70), "prose": Documents("prose", 41), "law": Documents("law", 33)}
    return Mixture(sources, {"code": "0.5", "prose": "0.3", "law": "0.2"}, **options)


def _renormalized() -> Mixture:
    return _mixed(schedule="categorical", exhaustion="renormalize")


def _replaced() -> Mixture:
    return _mixed(replacement=True, epoch_size=90)


def _blocks() -> Records:
    return Records("blocks", 130)


def _packed() -> Documents:
    return Documents("packed", 300)


def _windows() -> WindowShuffle:
    return WindowShuffle(Stream(), window=17, seed=3)


def _packed_stream() -> PackedStream:
    return PackedStream(Texts(), Packing(ROW))


_WHOLE = {"drop_last": True}  # full batches: any number of replicas can share them
_GREEDY = {"packing": Packing(ROW), **_WHOLE}
_BEST_FIT = {"packing": Packing(ROW, policy="best_fit"), **_WHOLE}

PIPELINES = (
    Pipeline("map", _loader(lambda: Records("map", 130), **_WHOLE)),
    Pipeline("map-straddle", _loader(lambda: Records("map", 131), remainder="straddle")),
    Pipeline("mixture-quota", _loader(_mixed, **_WHOLE)),
    Pipeline("mixture-categorical", _loader(_renormalized, **_WHOLE)),
    Pipeline("mixture-replacement", _loader(_replaced, **_WHOLE)),
    Pipeline("packed-greedy", _loader(_packed, **_GREEDY)),
    Pipeline("packed-best-fit", _loader(_packed, **_BEST_FIT)),
    Pipeline("packed-mixture", _loader(lambda: _documents(unit="token"), **_GREEDY)),
    Pipeline("mixture-of-packs", _loader(lambda: _documents(unit="packed"), **_GREEDY)),
    Pipeline("stream-blocks", _loader(_blocks, order=BlockShuffle(3), **_WHOLE)),
    Pipeline("stream-buffer", _loader(_blocks, order=BufferedShuffle(16), **_WHOLE)),
    Pipeline("iterable", _loader(Stream, stream_shares=True, **_WHOLE), workers=(0, 0, 0, 1)),
    Pipeline("iterable-short", _loader(Stream), workers=(0, 0, 0, 1), replicas=(1,)),
    Pipeline("iterable-parts", _loader(Parts), workers=(3,), replicas=(1,)),
    Pipeline("iterable-windows", _loader(_windows), workers=(0, 0, 0, 1), replicas=(1,)),
    Pipeline("iterable-packed", _loader(_packed_stream), workers=(0, 0, 0, 1), replicas=(1,)),
    Pipeline("sampler", _sampled, replicas=(1,)),
)
NAMED = {pipeline.name: pipeline for pipeline in PIPELINES}
