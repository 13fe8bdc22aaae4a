"""Journal records: golden bytes, every kind, and every way to damage one."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import format_samples as samples
import pytest
from format_attacks import mutations, refused, survives_damage

from durable_core.errors import CorruptError, FormatError, UnknownVersionError, UsageError
from durable_core.format import canonical, layout
from durable_core.format.record import PAYLOADS, Kind, Record, decode, encode, record_digest

KEY = layout.journal_key(4)


def decode_(data: bytes) -> Record:
    return decode(data, key=KEY)


def test_golden_bytes_and_digest() -> None:
    first = Record(
        0, 0, 0, "launch", "0" * 32, Kind.RUN_CREATED, samples.PAYLOADS[Kind.RUN_CREATED], "", 1700000000.5
    )
    data = encode(first)
    assert data == (
        b'{"epoch":0,"generation":0,"kind":"run.created","launch_id":"launch","op_id":"'
        b'00000000000000000000000000000000","payload":{"promise":"bitwise","run_id":"r","seed":1,'
        b'"spec":{"a":1},"spec_digest":"sha256:0000000000000000000000000000000000000000000000000000000000000000"},'
        b'"prev":"","seq":0,"time":1700000000.5,"v":1}'
    )
    assert record_digest(data) == "sha256:37d76d391fd506b618b726e33e75779b85949fc705200bede742cf8461122b9a"


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_comes_back(kind: Kind) -> None:
    record = samples.record(kind)
    assert decode_(encode(record)) == record
    assert encode(decode_(encode(record))) == encode(record)


def test_every_kind_has_a_payload() -> None:
    assert set(PAYLOADS) == set(Kind)


def test_further_payload_fields_are_kept() -> None:
    record = samples.record(payload={"reason": "x", "later": [1, {"a": None}]})
    assert decode_(encode(record)).payload["later"] == [1, {"a": None}]


@pytest.mark.parametrize("kind", list(Kind))
def test_each_required_field_is_required(kind: Kind) -> None:
    record = samples.record(kind)
    for name in PAYLOADS[kind]:
        payload = {key: value for key, value in record.payload.items() if key != name}
        broken = dataclasses.replace(record, payload=payload)
        with pytest.raises(UsageError, match=name):
            encode(broken)
        document = json.loads(encode(record))
        del document["payload"][name]
        refused(decode_, canonical.dumps(document), key=KEY, why=name)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seq", -1), ("seq", 1.0), ("seq", True), ("seq", "4"), ("seq", 5), ("generation", -1),
        ("epoch", None),
        ("launch_id", ""), ("launch_id", "x" * 129), ("op_id", "short"), ("op_id", "G" * 32), ("op_id", 1),
        ("prev", ""), ("prev", "sha256:00"), ("prev", None), ("time", "now"), ("time", True), ("payload", []),
        ("payload", None), ("kind", None), ("kind", ["noop"]), ("kind", {}),
    ],
)  # fmt: skip
def test_bad_fields_are_refused(field: str, value: Any) -> None:
    document = json.loads(encode(samples.record()))
    document[field] = value
    refused(decode_, canonical.dumps(document), key=KEY)


def test_fields_missing_or_unknown() -> None:
    good = json.loads(encode(samples.record()))
    for name in good:
        refused(decode_, canonical.dumps({k: v for k, v in good.items() if k != name}), key=KEY)
    refused(decode_, canonical.dumps({**good, "signature": "x"}), key=KEY, why="signature")


@pytest.mark.parametrize("version", [0, 2, "1", None, True, 1.0])
def test_unknown_versions_are_named_and_say_the_way_out(version: Any) -> None:
    document = json.loads(encode(samples.record()))
    document["v"] = version
    with pytest.raises(UnknownVersionError, match="upgrade") as caught:
        decode_(canonical.dumps(document))
    assert caught.value.key == KEY


def test_unknown_kinds_are_newer_versions() -> None:
    document = json.loads(encode(samples.record()))
    document["kind"] = "run.teleported"
    with pytest.raises(UnknownVersionError, match=r"run\.teleported"):
        decode_(canonical.dumps(document))


def test_a_record_in_the_wrong_slot_is_refused() -> None:
    data = encode(samples.record())
    with pytest.raises(FormatError, match="holds record 4"):
        decode(data, key=layout.journal_key(5))
    assert decode(data, key="somewhere/else").seq == 4


def test_only_the_first_record_has_none_before_it() -> None:
    with pytest.raises(UsageError, match="prev"):
        encode(samples.record(prev=""))
    with pytest.raises(UsageError, match="prev"):
        encode(samples.record(seq=0))


def test_a_record_beyond_the_limit_is_not_written() -> None:
    with pytest.raises(UsageError, match="bytes"):
        encode(samples.record(payload={"reason": "x" * (5 * 1024 * 1024)}))


def test_documents_that_are_no_objects() -> None:
    for data in (b"[]", b"null", b'"x"', b"1", b"", b"{}", b"\x80\x04N."):
        refused(decode_, data, key=KEY)


@pytest.mark.parametrize("kind", [Kind.CHECKPOINT_COMMITTED, Kind.GENERATION_STARTED])
def test_any_value_in_the_wrong_place_is_a_typed_error(kind: Kind) -> None:
    for what, document in mutations(json.loads(encode(samples.record(kind)))):
        try:
            decode_(canonical.dumps(document))
        except CorruptError:
            continue
        except Exception as error:  # noqa: BLE001 - reported with the mutation that caused it
            pytest.fail(f"{what}: {error!r}")


def test_truncations_and_flips() -> None:
    survives_damage(decode_, encode(samples.record(Kind.CHECKPOINT_COMMITTED)), key=KEY)


def test_a_flipped_bit_changes_the_digest() -> None:
    data = bytearray(encode(samples.record()))
    before = record_digest(bytes(data))
    data[40] ^= 1
    assert record_digest(bytes(data)) != before
