"""Packed streams, whose residue is tokens; and lives that begin with a half-filled pack."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import packing_life
import pytest
import torch
from data_samples import Anew, Stateless, train
from torch.utils.data import IterableDataset, get_worker_info

from durable_core.data import DurableLoader
from durable_core.data.loader.packed_stream import PackedStream
from durable_core.data.packing import Packing, Piece, assemble
from durable_core.errors import SpecMismatchError, UnsupportedError, UsageError

PACKINGS = [
    Packing(12),
    Packing(12, eos_id=1, tail="drop"),
    Packing(12, split=False, on_long="truncate"),
    Packing(12, policy="best_fit", window=3, eos_id=1),
]


class Texts(IterableDataset[Any]):
    """Documents of 1 to 31 tokens dealt to the workers, in a list that it goes on changing; some draw."""

    def __init__(self, size: int) -> None:
        self.size, self.epoch = size, 0
        self.position, self.loaded = 0, False

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        if not self.loaded:
            self.position = worker
        self.loaded = False
        reused: list[int] = []
        while self.position < self.size:
            number = self.position
            self.position += workers
            drawn = int(torch.randint(100, ())) if number % 5 == 0 else self.epoch
            reused[:] = [1000 * number + at for at in range((number * 17) % 31)] + [drawn]
            yield {"input_ids": reused, "loss_mask": [at % 3 > 0 for at in range(len(reused))], "url": "x"}

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position, self.loaded = state["position"], True


def listed(row: dict[str, Any]) -> dict[str, Any]:
    return {key: np.asarray(value).tolist() for key, value in row.items()}


class Plain(Texts):
    """Draws nothing."""

    def __iter__(self) -> Any:
        for item in super().__iter__():
            yield {**item, "input_ids": [*item["input_ids"][:-1], 7]}


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_fresh_object_goes_on_after_every_row(packing: Packing) -> None:
    stream = PackedStream(Plain(23), packing)
    whole, states = [], [stream.state_dict()]
    for row in stream:
        whole.append(listed(row))
        states.append(stream.state_dict())
    assert len(whole) > 10
    kept = copy.deepcopy(states)
    for stop, state in enumerate(states):
        again = PackedStream(Plain(23), packing)
        again.load_state_dict(json.loads(json.dumps(state)))
        assert [listed(row) for row in again] == whole[stop:]
        assert [listed(row) for row in again] == whole, "the next pass begins anew"
    assert kept == states


@pytest.mark.parametrize("packing", PACKINGS)
def test_the_rows_hold_the_documents_in_order(packing: Packing) -> None:
    if packing.tail == "drop" or packing.on_long == "truncate":
        packing = Packing(12)
    rows = [listed(row) for row in PackedStream(Plain(23), packing)]
    eos = packing.eos_id is not None
    expected = [token for item in Plain(23) for token in item["input_ids"] + [1] * eos]
    found = [t for row in rows for t, d in zip(row["input_ids"], row["document_ids"], strict=True) if d >= 0]
    assert sorted(found) == sorted(expected)
    if packing.policy == "greedy":
        assert found == expected


def rows_of(batches: list[Any]) -> list[Any]:
    return [listed(batch) for batch in batches]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("packing", [PACKINGS[0], PACKINGS[3]])
def test_resume_in_a_loader(packing: Packing, workers: int) -> None:
    def make() -> DurableLoader:
        return DurableLoader(PackedStream(Texts(17), packing), 2, seed=4, num_workers=workers)

    loader = make()
    epoch = rows_of(train(loader))
    whole = epoch + rows_of(train(loader))
    assert whole[: len(epoch)] != whole[len(epoch) :]
    stops = range(1, len(whole)) if workers == 0 else (3, len(epoch), len(epoch) + 2)
    for stop in stops:
        first = make()
        done = rows_of(train(first, min(stop, len(epoch)), ahead=1))
        if stop > len(epoch):
            first = make()
            done = rows_of(train(first))
            done += rows_of(train(first, stop - len(epoch), ahead=1))
        torch.rand(3)
        second = make()
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        while len(done) < len(whole):
            done += rows_of(train(second))
        assert done == whole, stop


class AnewTexts(Anew):
    def __iter__(self) -> Any:
        return ([value % 50] * (1 + value % 20) for value, _ in super().__iter__())


@pytest.mark.parametrize("packing", [PACKINGS[0], PACKINGS[3]])
@pytest.mark.parametrize("workers", [0, 2])
def test_documents_that_begin_anew_after_their_end_are_not_read_again(packing: Packing, workers: int) -> None:
    def make() -> DurableLoader:
        return DurableLoader(PackedStream(AnewTexts(18), packing), 2, seed=4, num_workers=workers)

    loader = make()
    epoch = rows_of(train(loader))
    whole = epoch + rows_of(train(loader))
    for stop in range(1, len(epoch) + 1) if not workers else range(len(epoch) - 3, len(epoch) + 1):
        first, second = make(), make()
        done = rows_of(train(first, stop, ahead=1))
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        while len(done) < len(whole):
            done += rows_of(train(second))
        assert done == whole, stop


def test_the_state_is_bounded_and_cheap_to_copy() -> None:
    for packing, bound in ((Packing(64), 8 * 64), (Packing(64, policy="best_fit", window=4), 8 * 64 * 5)):
        stream = PackedStream(Plain(400), packing)
        states = [stream.state_dict() for _ in stream]
        assert max(sum(len(d["input_ids"][1]) for d in s["documents"].values()) for s in states) <= bound
        some = states[len(states) // 2]
        shared = copy.deepcopy(some)["documents"]
        assert all(shared[k]["input_ids"][1] is v["input_ids"][1] for k, v in some["documents"].items())


def test_what_cannot_be_packed_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="Stateless has no state_dict"):
        PackedStream(Stateless(3), Packing(4))

    class Bad(Texts):
        def __iter__(self) -> Any:
            return iter([[1, 2], {"text": "a"}])

    rows = iter(PackedStream(Bad(2), Packing(2)))
    next(rows)
    with pytest.raises(UsageError, match=r"item 1 of the stream.*'text'"):
        next(rows)
    stream = PackedStream(Plain(9), Packing(8))
    with pytest.raises(SpecMismatchError, match=r"packed with name, length") as caught:
        PackedStream(Plain(9), Packing(9, policy="best_fit", split=False)).load_state_dict(
            stream.state_dict()
        )
    assert caught.value.fields == ("name", "length", "split")


def test_documents_may_come_in_an_array_that_is_used_again() -> None:
    class Reusing(Texts):
        def __iter__(self) -> Any:
            buffer = np.zeros(3, dtype=np.int32)
            for number in range(4):
                buffer[:] = number
                yield buffer

    first, second = PackedStream(Reusing(4), Packing(8))
    assert first["input_ids"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    assert second["input_ids"][:4].tolist() == [2, 3, 3, 3]


def test_empty_documents_and_wide_tokens() -> None:
    class Wide(Texts):
        def __iter__(self) -> Any:
            return iter([[], [1 << 40, 2], np.array([3], dtype=np.uint16)])

    stream = PackedStream(Wide(3), Packing(4))
    (row,) = stream
    expected = assemble(Packing(4), [Piece([], 0, 0), Piece([1 << 40, 2], 0, 2), Piece([3], 0, 1)])
    assert listed(row) == listed(expected)


@pytest.mark.parametrize(
    ("kind", "deaths"),
    [
        ("greedy", [(0, "after"), (13, "before"), (14, "after")]),
        ("best_fit", [(11, "after"), (11, "before"), (30, "after")]),
        ("stream", [(17, "after")]),
    ],
)
def test_processes_that_die_at_a_half_filled_pack(
    kind: str, deaths: list[tuple[int, str]], tmp_path: Path
) -> None:
    whole = packing_life.live(kind, tmp_path / "whole.json", None, before=False)
    record = tmp_path / "record.json"
    residues = 0
    for row, when in [*deaths, ("-", "")]:
        command = [sys.executable, packing_life.__file__, kind, str(record), str(row), when]
        ended = subprocess.run(command, timeout=120, check=False)
        known = json.loads(record.read_text())
        if row == "-":
            assert (ended.returncode, known["rows"]) == (0, whole)
        else:
            assert ended.returncode == (9 if len(known["rows"]) <= int(row) + 1 else 0)
            residues += any(known["state"]["packer"][part] for part in ("open", "document"))
    assert residues, "no death came with a pack or a document under way"
