"""Datasets and samplers that the data tests share."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info


class Plain(Dataset[int]):
    """Sample i is i; counts reads in this process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.reads = 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        assert type(index) is int and 0 <= index < self.size
        self.reads += 1
        return index


class Drawing(Plain):
    """Sample i is (i, one draw from each global stream)."""

    def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        return super().__getitem__(index), random.random(), float(np.random.rand()), torch.rand(()).item()


class Pickled(Plain):
    """Says itself how it is pickled."""

    def __getstate__(self) -> dict[str, int]:
        return {"packed": self.size}

    def __setstate__(self, state: dict[str, int]) -> None:
        self.size, self.reads = state["packed"], 0


class Batched(Plain):
    """Has ``__getitems__``, as HF datasets do."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        assert type(indices) is list
        return [(i, torch.rand(()).item()) for i in indices]


class Stream(IterableDataset[int]):
    """0 .. size-1 dealt to the workers, with a state that it goes on changing after handing it out."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.state: dict[str, Any] = {"next": 0, "seen": []}
        self.loaded = False

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        if not self.loaded:
            self.state["next"], self.state["seen"] = worker, []
        self.loaded = False
        while self.state["next"] < self.size:
            value = self.state["next"]
            self.state["next"] += workers
            self.state["seen"].append(value)
            yield (
                value,
                len(self.state["seen"]),
                random.random(),
                float(np.random.rand()),
                torch.rand(()).item(),
            )

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state, self.loaded = state, True


class Anew(IterableDataset[int]):
    """Begins anew after its end, as many do: what its state says there is where an epoch begins. Workers
    have parts of their own, worker 0 the longest, the last one nothing when there are three or more."""

    dataset_id = "sha256:anew"

    def __init__(self, size: int) -> None:
        self.size, self.at = size, 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        size = 0 if worker > 1 else self.size // workers + 5 * (workers > 1 and not worker)
        while self.at < size:
            self.at += 1
            yield 1000 * worker + self.at, random.random()
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Stateless(IterableDataset[int]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size))


class Backwards:
    """A sampler without state."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size - 1, -1, -1))

    def __len__(self) -> int:
        return self.size


class Counting:
    """A sampler with state: every epoch goes on where the last one stopped, modulo the size."""

    def __init__(self, size: int) -> None:
        self.size, self.position = size, 0

    def __iter__(self) -> Iterator[int]:
        while True:
            value = self.position
            self.position += 1
            yield (value * 7) % self.size
            if self.position % self.size == 0:
                return

    def __len__(self) -> int:
        return self.size

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class Generating:
    """A sampler with a generator that goes on over epochs; its state says all of it, JSON."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.generator = random.Random(0)
        self.order: list[int] = []

    def __iter__(self) -> Iterator[int]:
        if not self.order:
            self.order = self.generator.sample(range(self.size), self.size)
        while self.order:
            yield self.order.pop()

    def __len__(self) -> int:
        return self.size

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.getstate(), "order": self.order}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        version, words, gauss = state["generator"]
        self.generator.setstate((version, tuple(words), gauss))
        self.order = state["order"]


def listed(samples: list[Any]) -> list[Any]:
    """A collate function that keeps what it gets."""
    return list(samples)


def train(loader: Any, batches: int | None = None, *, step: int = 0, ahead: int = 0) -> list[Any]:
    """Take and acknowledge batches to the end of the pass, or ``batches`` of them; then take ``ahead`` more
    that are never trained, as frameworks do."""
    out: list[Any] = []
    iterator = iter(loader)
    while batches is None or len(out) < batches:
        try:
            out.append(next(iterator))
        except StopIteration:
            break
        loader.acknowledge(step=step + len(out))
    for _ in range(ahead):
        next(iterator, None)
    return out


def interrupted(make: Callable[[], Any], stop: int, total: int, *, ahead: int = 0) -> list[Any]:
    """``total`` batches over as many epochs as that takes, by two loaders: the second goes on, from what
    the first would have saved, after ``stop`` batches."""
    first, taken = make(), []
    while len(taken) < stop:
        taken += train(first, stop - len(taken), ahead=ahead)
    random.random(), np.random.rand(), torch.rand(1)  # another life begins with other global streams
    second = make()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    while len(taken) < total:
        taken += train(second)
    return taken
