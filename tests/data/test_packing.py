"""Packs: every token of every document once, for any number taken, from any state, for ever the same."""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_core.data.order import FullPermutation, Sequential
from durable_core.data.packing import PackedSequence, Packer, Packing
from durable_core.data.packing.sequence import CHUNK
from durable_core.data.sequence import Batch, OrderedSequence, State
from durable_core.errors import FormatError, UnsupportedError, UsageError

POLICIES = [
    Packing(10),
    Packing(10, tail="drop"),
    Packing(10, eos_id=1),
    Packing(10, split=False),
    Packing(10, split=False, on_long="truncate", eos_id=1),
    Packing(10, policy="best_fit", window=2),
    Packing(10, policy="best_fit", window=4, eos_id=1),
    Packing(10, policy="best_fit", window=4, on_long="truncate"),
]
LENGTHS = st.lists(st.integers(0, 25), min_size=1, max_size=60)


def sequence(packing: Packing, lengths: list[int]) -> PackedSequence:
    order = FullPermutation(len(lengths), dataset_id="packs", seed=3)
    return PackedSequence(OrderedSequence(order), packing, lengths)


def packs_of(batch: Batch) -> list[list[tuple[int, ...]]]:
    assert batch.begins is not None and batch.ends is not None and batch.packs is not None
    columns = (batch.ids, batch.epochs, batch.begins, batch.ends)
    pieces = list(zip(*(column.tolist() for column in columns), strict=True))
    return [pieces[begin:end] for begin, end in pairwise(batch.packs.tolist())]


def taken(packed: PackedSequence, state: State, counts: Any = (1000,)) -> list[Any]:
    """All packs from ``state`` to the end of the epoch, ``counts`` at a time, the last of them repeated."""
    packs: list[Any] = []
    turn = 0
    while True:
        count = counts[min(turn, len(counts) - 1)]
        batch, state = packed.take(state, count)
        packs += packs_of(batch)
        turn += 1
        if len(batch) < count:
            return packs


def oracle(packing: Packing, documents: list[tuple[int, int]]) -> list[Any]:
    """The policies again, as one would say them: open packs by age, looked through for each piece."""
    window = packing.window if packing.policy == "best_fit" else 1
    done: list[Any] = []
    packs: list[list[tuple[int, int, int]]] = []

    def room(pack: list[tuple[int, int, int]]) -> int:
        return packing.length - sum(end - begin for _, begin, end in pack)

    for name, length in documents:
        total = length + (packing.eos_id is not None)
        if packing.on_long == "truncate":
            total = min(total, packing.length)
        begin = 0
        while True:
            size = min(total - begin, packing.length)
            if packing.split and packs:
                size = min(size, room(packs[0]))
            fitting = [pack for pack in packs if room(pack) >= size]
            pack = min(fitting, key=room, default=None)  # the first of equals
            if pack is None:
                if size == packing.length and packing.policy == "best_fit":
                    done.append([(name, begin, begin + size)])
                else:
                    if len(packs) == window:
                        fullest = min(packs, key=room)
                        done.append(fullest)
                        packs = [pack for pack in packs if pack is not fullest]
                    pack = []
                    packs.append(pack)
            if pack is not None:
                pack.append((name, begin, begin + size))
                if room(pack) == 0 or len(pack) == packing.length:
                    done.append(pack)
                    packs = [other for other in packs if other is not pack]
            begin += size
            if begin == total:
                break
    return done + (packs if packing.tail == "pad" else [])


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(POLICIES), LENGTHS, st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_packs_are_those_of_the_policy_for_any_number_taken(
    packing: Packing, lengths: list[int], counts: list[int]
) -> None:
    packed = sequence(packing, lengths)
    packs = taken(packed, packed.start(2), counts)
    order = FullPermutation(len(lengths), dataset_id="packs", seed=3)
    ids = order.ids(2, 0, len(lengths)).tolist()
    expected = oracle(packing, [(i, lengths[i]) for i in ids])
    assert [[(name, begin, end) for name, _, begin, end in pack] for pack in packs] == expected
    assert {epoch for pack in packs for _, epoch, _, _ in pack} <= {2}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([p for p in POLICIES if p.tail == "pad"]), LENGTHS)
def test_every_token_of_every_document_once(packing: Packing, lengths: list[int]) -> None:
    packed = sequence(packing, lengths)
    packs = taken(packed, packed.start(0))
    ranges: dict[int, list[tuple[int, int]]] = {i: [] for i in range(len(lengths))}
    for pack in packs:
        assert 0 <= sum(end - begin for *_, begin, end in pack) <= packing.length
        assert 1 <= len(pack) <= packing.length
        for name, _, begin, end in pack:
            ranges[name].append((begin, end))
    for name, length in enumerate(lengths):
        tokens = packing.tokens(length)
        if packing.on_long == "truncate":
            tokens = min(tokens, packing.length)
        assert ranges[name], "a document has left no piece"
        assert [begin for begin, _ in ranges[name]] == [0, *(end for _, end in ranges[name][:-1])]
        assert ranges[name][-1][1] == tokens
        if not packing.split:
            assert all(end - begin == packing.length for begin, end in ranges[name][:-1])


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(POLICIES), LENGTHS)
def test_a_fork_after_every_pack_goes_on_alike(packing: Packing, lengths: list[int]) -> None:
    packed = sequence(packing, lengths)
    state, whole = packed.start(0), taken(packed, packed.start(0))
    kept = []
    for stop in range(len(whole) + 2):
        text = json.dumps(state)
        kept.append((state, text))
        assert taken(sequence(packing, lengths), json.loads(text), (3, 2)) == whole[stop:]
        again, after = packed.take(state, 1)
        same, _ = packed.take(state, 1)  # pure: asked twice, told twice
        assert packs_of(again) == packs_of(same) == whole[stop : stop + 1]
        state = after
    for state, text in kept:
        assert json.dumps(state) == text, "a state handed out was changed later"


@pytest.mark.parametrize("packing", POLICIES)
def test_longer_than_a_chunk_and_in_several_epochs(packing: Packing) -> None:
    lengths = np.random.default_rng(0).integers(0, 14, 2 * CHUNK + 5).tolist()
    packed = sequence(packing, lengths)
    first, second = taken(packed, packed.start(0)), taken(packed, packed.start(1), (7,))
    assert first != second
    assert first == taken(packed, packed.start(0, {"ignored": True}), (5,))
    exact = sequence(packing, lengths[:CHUNK])  # the last chunk is empty
    assert taken(exact, exact.start(0), (CHUNK,)) == taken(exact, exact.start(0), (1,))


GOLDEN = {
    Packing(8): [
        [(0, 0, 5), (1, 0, 3)],
        [(2, 0, 0), (3, 0, 8)],
        [(3, 8, 11), (4, 0, 2), (5, 0, 3)],
        [(5, 3, 7), (6, 0, 4)],
        [(6, 4, 6), (7, 0, 4), (8, 0, 1), (9, 0, 1)],
        [(9, 1, 5), (10, 0, 4)],
        [(10, 4, 8), (11, 0, 3)],
    ],
    Packing(8, split=False, eos_id=9): [
        [(0, 0, 6)],
        [(1, 0, 4), (2, 0, 1)],
        [(3, 0, 8)],
        [(3, 8, 12), (4, 0, 3)],
        [(5, 0, 8)],
        [(6, 0, 7)],
        [(7, 0, 5), (8, 0, 2)],
        [(9, 0, 6)],
        [(10, 0, 8)],
        [(10, 8, 9), (11, 0, 4)],
    ],
    Packing(8, policy="best_fit", window=2): [
        [(0, 0, 5), (1, 0, 3)],
        [(2, 0, 0), (3, 0, 8)],
        [(5, 0, 7)],
        [(6, 0, 6)],
        [(3, 8, 11), (4, 0, 2), (8, 0, 1)],
        [(10, 0, 8)],
        [(9, 0, 5), (11, 0, 3)],
        [(7, 0, 4)],
    ],
}


@pytest.mark.parametrize("packing", GOLDEN, ids=lambda packing: packing.name)
def test_golden_packs(packing: Packing) -> None:
    """A change here needs a new version name."""
    lengths = [5, 3, 0, 11, 2, 7, 6, 4, 1, 5, 8, 3]
    packed = PackedSequence(OrderedSequence(Sequential(12)), packing, lengths)
    packs = [[(name, begin, end) for name, _, begin, end in pack] for pack in taken(packed, packed.start(0))]
    assert packs == GOLDEN[packing]


def test_best_fit_fills_the_rows_and_its_state_is_bounded() -> None:
    lengths = np.exp(np.random.default_rng(1).normal(np.log(400), 1.0, 4000)).astype(np.int64) + 1

    def measured(packing: Packing) -> tuple[float, int]:
        packed = PackedSequence(OrderedSequence(Sequential(len(lengths))), packing, lengths)
        state, filled, largest = packed.start(0), [], 0
        while True:
            batch, state = packed.take(state, 8)
            largest = max(largest, len(json.dumps(state)))
            filled += [sum(end - begin for *_, begin, end in pack) for pack in packs_of(batch)]
            if len(batch) < 8:
                return float(np.mean(filled[:-64])) / packing.length, largest  # before the end's flush

    whole, small = measured(Packing(2048, split=False))
    best, residue = measured(Packing(2048, policy="best_fit"))
    cut, tiny = measured(Packing(2048))
    assert whole < 0.9 and best > 0.98 and cut == 1.0
    assert small < 256 and tiny < 256 and residue < 8192


def test_documents_without_tokens_do_not_grow_the_state() -> None:
    for packing in (Packing(4), Packing(4, policy="best_fit", window=2)):
        packed = sequence(packing, [0] * 1000)
        state = packed.start(0)
        seen = 0
        for _ in range(240):
            batch, state = packed.take(state, 1)
            seen += len(batch.ids)
            assert len(batch.ids) == 4 and len(json.dumps(state)) < 400
        assert seen + len([piece for pack in taken(packed, state) for piece in pack]) == 1000


class Carrying:
    """Epochs of 5 documents of an endless sequence of documents 0, 1, 2, …, by their position."""

    name = "carrying_v1"
    description = {"name": name}  # noqa: RUF012
    carries = True

    def batches(self, global_batch: int) -> int | None:
        return None

    def start(self, epoch: int, before: State | None = None) -> State:
        return {"epoch": epoch, "next": before["next"] if before else 0, "left": 5}

    def take(self, state: State, count: int) -> tuple[Batch, State]:
        count = min(count, state["left"])
        ids = np.arange(state["next"], state["next"] + count, dtype=np.int64)
        after = {**state, "next": state["next"] + count, "left": state["left"] - count}
        return Batch(ids, np.full(count, state["epoch"], dtype=np.int64)), after


@pytest.mark.parametrize("packing", [Packing(10), Packing(10, policy="best_fit", window=2)])
def test_a_sequence_that_carries_goes_on_where_it_ended(packing: Packing) -> None:
    packed = PackedSequence(Carrying(), packing, [4] * 100)
    assert packed.carries
    state, seen = packed.start(0), []
    for epoch in range(1, 4):
        while True:
            batch, state = packed.take(state, 1)
            seen += batch.ids.tolist()
            if not len(batch):
                break
        state = packed.start(epoch, state)
    assert sorted(set(seen)) == list(range(15))


@pytest.mark.parametrize("packing", [Packing(10), Packing(10, policy="best_fit", window=2)])
@pytest.mark.parametrize("packs", [0, 1, 2])
def test_an_epoch_left_early_loses_no_document_of_a_sequence_that_carries(
    packing: Packing, packs: int
) -> None:
    packed = PackedSequence(Carrying(), packing, [4] * 100)
    batch, state = packed.take(packed.start(0), packs)
    packs_seen = packs_of(batch) + taken(packed, packed.start(1, state))
    tokens = [(name, t) for pack in packs_seen for name, _, b, e in pack for t in range(b, e)]
    last = max(name for name, _ in tokens)
    assert sorted(tokens) == [(name, t) for name in range(last + 1) for t in range(4)]


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"length": 0}, "length=0"),
        ({"length": 2.0}, "length=2.0"),
        ({"length": True}, "length=True"),
        ({"length": 8, "window": 1}, "window=1"),
        ({"length": 8, "policy": "first_fit"}, "policy='first_fit'"),
        ({"length": 8, "tail": "wrap"}, "tail='wrap'"),
        ({"length": 8, "eos_id": "</s>"}, "eos_id='</s>'"),
        ({"length": 8, "policy": "best_fit", "split": True}, "keeps documents whole"),
        ({"length": 8, "policy": "best_fit", "tail": "drop"}, "lose every open pack"),
        ({"length": 8, "on_long": "truncate"}, "split=False"),
        ({"length": 8, "on_long": "skip", "split": False}, "on_long='skip'"),
    ],
)
def test_settings_that_make_no_sense(given: dict[str, Any], wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong):
        Packing(**given)


@pytest.mark.parametrize("packing", POLICIES)
def test_the_description_says_all_of_it(packing: Packing) -> None:
    described = json.loads(json.dumps(packing.description))
    assert Packing.from_description(described) == packing
    with pytest.raises(UnsupportedError, match="greedy_pack_v9"):
        Packing.from_description({**described, "name": "greedy_pack_v9"})
    with pytest.raises(FormatError, match="colour"):
        Packing.from_description({**described, "colour": 1})


def test_the_sequence_is_described_with_its_lengths() -> None:
    one, other = sequence(Packing(10), [3, 4]), sequence(Packing(10), [3, 5])
    assert one.name == "greedy_pack_v1:full_prp_v1"
    assert one.description["inner"] == one.inner.description
    assert one.description != other.description
    narrow = PackedSequence(one.inner, one.packing, np.array([3, 4], dtype=np.uint16))
    assert narrow.description == one.description
    named = PackedSequence(one.inner, one.packing, [3, 4], lengths_id="mine")
    assert named.description["lengths"] == "mine"


def test_lengths_that_cannot_be_used() -> None:
    inner = OrderedSequence(Sequential(4))
    for lengths in ([1.5, 2.0], [[1, 2]]):
        with pytest.raises(UsageError, match=r"integers \[documents\]"):
            PackedSequence(inner, Packing(8), lengths)
    for wrong, message in ([1, 2, 3], "document 3 has no length"), ([1, 2, -3, 4], "document 2 has -3"):
        packed = PackedSequence(inner, Packing(8), wrong)
        with pytest.raises(UsageError, match=message):
            packed.take(packed.start(0), 1)
    strict = PackedSequence(inner, Packing(8, split=False, on_long="error"), [1, 9, 1, 1])
    with pytest.raises(UsageError, match="document 1 has 9 tokens"):
        strict.take(strict.start(0), 1)
    twice = PackedSequence(PackedSequence(inner, Packing(8), [1] * 4), Packing(8), [1] * 4)
    with pytest.raises(UnsupportedError, match="packed again"):
        twice.take(twice.start(0), 1)


def test_a_take_that_failed_changes_nothing() -> None:
    lengths, inner = np.full(600, 4), OrderedSequence(Sequential(600))
    packed = PackedSequence(inner, Packing(10, policy="best_fit"), lengths)
    _, state = packed.take(packed.start(0), 2)
    before = copy.deepcopy(state)
    expected = taken(PackedSequence(inner, packed.packing, lengths), state)
    lengths[400] = -1
    with pytest.raises(UsageError, match="document 400"):
        packed.take(state, 1000)
    lengths[400] = 4
    assert state == before and taken(packed, state) == expected


def test_the_packer_says_when_it_is_used_out_of_turn() -> None:
    packer = Packer(Packing(4))
    packer.offer(0, 0, 9)
    with pytest.raises(UsageError, match="pop until"):
        packer.offer(1, 0, 1)
    assert [packer.pop(), packer.pop(), packer.pop()] == [[0, 0, 0, 4], [0, 0, 4, 8], None]
    with pytest.raises(UsageError, match="-1 tokens"):
        packer.offer(2, 0, -1)
    packer.flush()
    assert not packer.hungry and packer.pop() == [0, 0, 8, 9] and packer.pop() is None
    with pytest.raises(FormatError, match="do not fit"):
        Packer(Packing(3), {"open": [[0, 0, 0, 4]], "document": None, "closing": False})
    two = {"open": [[0, 0, 0, 1], [1, 0, 0, 1]], "document": None, "closing": False}
    with pytest.raises(FormatError, match="2 open packs"):
        Packer(Packing(3), two)
