"""Seals and slot headers: round trips, and every way to lie in one."""

from __future__ import annotations

import dataclasses
import json
import struct
from typing import Any

import format_samples as samples
import pytest
from format_attacks import mutations, refused, survives_damage

from durable_core.errors import CorruptError, FormatError, UnknownVersionError, UsageError
from durable_core.format import canonical, digests, seal
from durable_core.format.seal import Seal, SlotHeader, SlotState

KEY = "0123abcd.slot"
LEDGER = bytes(range(200))
SEAL = Seal(
    run_id="a" * 32, generation=3, launch_id="b" * 32, role="dp0", roles=("dp0", "dp1"), step=40,
    head=4, after=38, infos=(samples.W0, samples.W1, samples.EMPTY, samples.SCALAR),
    body={"documents": {"state": {"w": {"$tensor": "state/w"}}}, "cursor": None, "counters": {"epoch": 1}},
    ledger=LEDGER,
)  # fmt: skip
HEADER = SlotHeader(SlotState.SEALED, 3 * 4096, 999, "ab" * 16)


def seal_of(data: bytes) -> Seal:
    return seal.decode_seal(data, key=KEY)


def header_of(data: bytes) -> SlotHeader:
    return seal.decode_header(data, key=KEY)


def framed(head: bytes, ledger: bytes = LEDGER) -> bytes:
    return struct.pack("<Q", len(head)) + head + ledger


def head_of(value: Seal) -> dict[str, Any]:
    data = seal.encode_seal(value)
    head: dict[str, Any] = json.loads(data[8 : len(data) - len(value.ledger)])
    return head


def test_it_comes_back() -> None:
    assert seal_of(seal.encode_seal(SEAL)) == SEAL
    first = dataclasses.replace(SEAL, head=None, after=None, ledger=b"")
    assert seal_of(seal.encode_seal(first)) == first


def test_slices_lie_back_to_back_in_the_order_given() -> None:
    assert [begin for _, begin in SEAL.begins()] == [0, 24, 48, 48]
    assert SEAL.nbytes == 52
    assert seal.seal_begin(0) == 4096 and seal.seal_begin(1) == seal.seal_begin(4096) == 8192


def test_damage_anywhere_is_refused_or_seen() -> None:
    data = seal.encode_seal(SEAL)
    survives_damage(seal_of, data, key=KEY, stride=3)
    for at in range(len(data) - len(LEDGER), len(data), 7):  # the ledger is no JSON: its digest tells
        damaged = bytearray(data)
        damaged[at] ^= 4
        refused(seal_of, bytes(damaged), key=KEY, why="ledger")


def test_no_value_that_does_not_belong_is_believed() -> None:
    honest = head_of(SEAL)
    for what, document in mutations(honest):
        try:
            read = seal_of(framed(canonical.dumps(document)))
        except CorruptError as error:
            assert error.key == KEY
            continue
        assert isinstance(read, Seal), what
        again = {**head_of(read), "body": None}
        assert again == {**json.loads(canonical.dumps(document)), "body": None}, what


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"v": 2}, "version 2"),
        ({"what": "offer"}, "not a seal"),
        ({"run_id": "../x"}, "run_id"),
        ({"run_id": "a/b"}, "run_id"),
        ({"launch_id": ""}, "launch_id"),
        ({"role": "dp7"}, "none of its roles"),
        ({"roles": ["dp0", "dp0"]}, "twice"),
        ({"roles": ["dp0", "/etc"]}, "roles"),
        ({"head": None}, "continues"),
        ({"after": 41}, "continues"),
        ({"infos": [{}]}, "infos"),
        ({"ledger_nbytes": 1}, "ledger"),
        ({"extra": 1}, "unknown"),
    ],
)
def test_a_seal_that_cannot_be_is_refused(change: dict[str, Any], why: str) -> None:
    refused(seal_of, framed(canonical.dumps({**head_of(SEAL), **change})), key=KEY, why=why)


def test_a_slice_listed_twice_is_refused_on_both_sides() -> None:
    head = head_of(SEAL)
    head["infos"].append(head["infos"][0])
    refused(seal_of, framed(canonical.dumps(head)), key=KEY, why="twice")
    with pytest.raises(UsageError, match="twice"):
        seal.encode_seal(dataclasses.replace(SEAL, infos=(samples.W0, samples.W0)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 7,
        struct.pack("<Q", 2**63),
        struct.pack("<Q", 2**40) + b"{}",
        framed(b"[" * 100_000),
        framed(b"{}"),
    ],
)
def test_lengths_and_nesting_are_not_believed(data: bytes) -> None:
    refused(seal_of, data, key=KEY)


def test_what_would_be_refused_is_not_written() -> None:
    wrong = samples.W0._replace(nbytes=7)
    for bad in (
        dataclasses.replace(SEAL, infos=(wrong,)),
        dataclasses.replace(SEAL, role="dp9"),
        dataclasses.replace(SEAL, step=-1),
        dataclasses.replace(SEAL, head=None),
        dataclasses.replace(SEAL, run_id="A B"),
    ):
        with pytest.raises(UsageError):
            seal.encode_seal(bad)


@pytest.mark.parametrize("state", SlotState)
def test_headers_come_back(state: SlotState) -> None:
    header = dataclasses.replace(HEADER, state=state)
    assert header_of(seal.encode_header(header).ljust(seal.HEADER_BYTES, b"\0")) == header


def test_every_torn_or_flipped_header_is_refused() -> None:
    data = seal.encode_header(HEADER)
    for end in range(len(data)):
        refused(header_of, data[:end], key=KEY)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        refused(header_of, bytes(damaged), key=KEY)


def test_a_header_half_overwritten_by_the_next_is_refused() -> None:
    before, after = seal.encode_header(HEADER), seal.encode_header(SlotHeader(SlotState.DIRTY))
    seen = {after[:cut] + before[cut:] for cut in range(len(after) + 1)} - {before, after}
    for torn in seen:
        refused(header_of, torn, key=KEY)


def _resealed(**change: int) -> bytes:
    fields = {"version": 1, "state": 2, "spare": 0, "begin": 4096, "nbytes": 99, **change}
    packed = struct.pack("<8sHHIQQ16s", b"DURSLOT\n", *fields.values(), b"\1" * 16)
    return packed + struct.pack("<I", int(digests.crc32c(packed), 16))


@pytest.mark.parametrize(
    "change",
    [{"state": 3}, {"spare": 1}, {"begin": 0}, {"begin": 2**63}, {"nbytes": 0}, {"nbytes": 2**60}],
)
def test_a_header_with_a_good_checksum_is_not_believed_either(change: dict[str, int]) -> None:
    assert header_of(_resealed())
    assert type(refused(header_of, _resealed(**change), key=KEY)) is FormatError


def test_a_newer_header_says_so() -> None:
    assert isinstance(refused(header_of, _resealed(version=2), key=KEY), UnknownVersionError)
