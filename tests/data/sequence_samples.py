"""Tiny sequences for the tests of the loader, as odd as the interface allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from data_samples import Drawing

from durable_core.data.sequence import Batch, State
from durable_core.errors import DurableError, SkippedRecord


@dataclass
class Walk:
    """Walks through ``size`` ids by steps of 7, ``per_epoch`` samples in an epoch (None: without end).

    What keys the randomness is the ordinal of the pass over the ids."""

    size: int
    per_epoch: int | None
    carries: bool
    known: bool
    fails_at: int | None = None
    name: str = "walk_v1"
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def description(self) -> Mapping[str, Any]:
        return {
            "name": self.name,
            "size": self.size,
            "per_epoch": self.per_epoch,
            "nested": {"a": [1, 2]},
            **self.extra,
        }

    def batches(self, global_batch: int) -> int | None:
        return -(-self.per_epoch // global_batch) if self.known and self.per_epoch is not None else None

    def start(self, epoch: int, before: State | None = None) -> State:
        if not self.carries:
            assert before is None
            return {"at": 100 * epoch, "left": self.per_epoch, "stride": 7}
        assert before is not None or epoch == 0, "a sequence that carries was begun from nothing"
        return {"stride": 7, **(before or {"at": 0}), "left": self.per_epoch}

    def take(self, state: State, count: int) -> tuple[Batch, State]:
        left = state["left"]
        count = count if left is None else min(count, left)
        places = np.arange(state["at"], state["at"] + count)
        if self.fails_at is not None and self.fails_at in places:
            raise DurableError("a source ran out")
        after = {**state, "at": state["at"] + count, "left": None if left is None else left - count}
        return Batch(places * state["stride"] % self.size, places // self.size), after

    def with_update(self, state: State, at: int, weights: Mapping[str, Any]) -> State:
        return {**state, "stride": weights["stride"]}


class Walked(Drawing):
    """A dataset that says itself what a batch holds."""

    def __init__(
        self,
        size: int = 23,
        per_epoch: int | None = 18,
        *,
        carries: bool = True,
        known: bool = True,
        fails_at: int | None = None,
    ) -> None:
        super().__init__(size)
        self.walk = Walk(size, per_epoch, carries, known, fails_at)

    def sequence(self, *, seed: int, packing: Any = None, order: str = "") -> Walk:
        return self.walk


class Tokens:
    """Documents of 1 to 9 tokens: record i is [100 i, 100 i + 1, ...]."""

    dataset_id = "sha256:tokens"

    def __init__(self, size: int = 40, bad: tuple[int, ...] = ()) -> None:
        self.lengths = np.array([1 + i * 5 % 9 for i in range(size)])
        self.sizes = self.lengths  # what they really have
        self.blocks = np.array([10] * (size // 10) + ([size % 10] if size % 10 else []))
        self.bad = bad
        self.reads: list[int] = []

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Any:
        self.reads.append(index)
        if index in self.bad:
            raise self.refused(index)
        return {"input_ids": 100 * index + np.arange(self.sizes[index])}

    def refused(self, index: int) -> SkippedRecord:
        return SkippedRecord(f"object#{index}", "does not decode")
