"""Epochs of a mixture one after another: none is without a batch; a restart at any end goes on the same."""

from __future__ import annotations

import json
from collections import Counter
from itertools import accumulate
from typing import Any

import pytest

from durable_core.data import DurableLoader, Mixture
from durable_core.data.sequence import MAX_SHORT
from durable_core.engine.audit.due import Sequenced
from durable_core.errors import UsageError


class Records:
    """Each sample is its id in the mixture."""

    def __init__(self, name: str, size: int, first: int) -> None:
        self.dataset_id, self._size, self._first = f"sha256:{name}", size, first

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> int:
        return self._first + index


def mixture(sizes: dict[str, int], **options: Any) -> Mixture:
    begins = [0, *accumulate(sizes.values())]
    sources = {
        name: Records(name, *part) for (name, *part) in zip(sizes, sizes.values(), begins, strict=False)
    }
    return Mixture(sources, dict.fromkeys(sizes, 1), **options)


def loader(data: Mixture, batch: int, *, drop_last: bool) -> DurableLoader:
    return DurableLoader(data, batch, seed=1, drop_last=drop_last, promise="exact-order", collate_fn=list)


def trained(data: Mixture, epochs: int, *, drop_last: bool, restart: bool, batch: int = 8) -> list[list[Any]]:
    """The batches of each epoch; with ``restart`` another loader goes on from the state at each end."""
    reading, step = loader(data, batch, drop_last=drop_last), 0
    out: list[list[Any]] = []
    for _ in range(epochs):
        if restart:
            state = json.loads(json.dumps(reading.state_dict()))
            reading = loader(data, batch, drop_last=drop_last)
            reading.load_state_dict(state)
        out.append([])
        for content in reading:
            step += 1
            reading.acknowledge(step=step)
            out[-1].append([int(i) for i in content])
    return out


CASES: dict[str, tuple[dict[str, int], dict[str, Any], bool]] = {
    # both sources end with a full batch: 96 samples in epochs of 48
    "renormalize, spent with a batch": (
        {"a": 50, "b": 46}, {"exhaustion": "renormalize", "epoch_size": 48}, False,
    ),
    "renormalize, a rest below a batch": (
        {"a": 50, "b": 47}, {"exhaustion": "renormalize", "epoch_size": 48}, True,
    ),
    # after b has run out a gives only a few before it runs out too
    "stop, a rest below a batch": ({"a": 34, "b": 31}, {"exhaustion": "stop"}, True),
    "stop, three run out together": ({"a": 34, "b": 32, "c": 31}, {"exhaustion": "stop"}, True),
    "stop, independent draws": ({"a": 50, "b": 31}, {"exhaustion": "stop", "schedule": "categorical"}, True),
    "stop in epochs": ({"a": 50, "b": 31}, {"exhaustion": "stop", "epoch_size": 30}, True),
    "stop, spent with a batch": ({"a": 32, "b": 32}, {"exhaustion": "stop"}, False),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_no_epoch_is_without_a_batch(case: str) -> None:
    sizes, options, drop_last = CASES[case]
    data = mixture(sizes, **options)
    epochs = trained(data, 9, drop_last=drop_last, restart=False)
    assert all(epochs)
    assert trained(data, 9, drop_last=drop_last, restart=True) == epochs
    # What an audit computes from the description alone is the same, with batches taken many at a time.
    due = Sequenced(data.sequence(seed=1), 8, drop=drop_last)
    for number, epoch in enumerate(epochs):
        assert [due.batch(number, k).ids.tolist() for k in range(len(epoch))] == epoch  # type: ignore[union-attr]
        assert due.batch(number, len(epoch)) is None


@pytest.mark.parametrize("case", [case for case, (_, _, drop_last) in CASES.items() if not drop_last])
def test_passing_over_loses_no_record(case: str) -> None:
    sizes, options, _ = CASES[case]
    data = mixture(sizes, **options)
    samples = [
        i for epoch in trained(data, 8, drop_last=False, restart=True) for batch in epoch for i in batch
    ]
    whole = len(data) * (len(samples) // len(data))
    assert set(Counter(samples[:whole]).values()) == {whole // len(data)}


def test_weights_given_for_a_batch_that_is_dropped_hold_after_it() -> None:
    data = mixture({"a": 34, "b": 31}, exhaustion="stop")
    whole = trained(data, 1, drop_last=True, restart=False)[0]
    reading, after = loader(data, 8, drop_last=True), loader(data, 8, drop_last=True)
    for step, _ in enumerate(reading, 1):
        reading.acknowledge(step=step)
        if step == 1:
            reading.update_weights({"a": 1, "b": 9}, lead=len(whole))  # the tail, and the rest passed over
    after.load_state_dict(json.loads(json.dumps(reading.state_dict())))
    following = [[int(i) for i in content] for content in after]
    assert following == [[int(i) for i in content] for content in reading]
    first = following[0]
    assert sum(i >= 34 for i in first) > sum(i < 34 for i in first)


def test_sources_that_never_fill_a_batch_are_refused_once_that_is_sure() -> None:
    data = mixture({"a": 300, "b": 2}, exhaustion="stop")
    with pytest.raises(UsageError, match="do not fill one global batch of 8") as caught:
        trained(data, 1, drop_last=True, restart=False)
    assert "drop_last=False" in (caught.value.hint or "") and MAX_SHORT > 100
