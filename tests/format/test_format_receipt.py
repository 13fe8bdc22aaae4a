"""Offers and receipts: round trips, and every way to lie in one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import format_samples as samples
import pytest
from format_attacks import mutations, refused, survives_damage

from durable_core.errors import CorruptError, FormatError, UnknownVersionError, UsageError
from durable_core.format import canonical, digests
from durable_core.format.receipt import (
    Offer,
    Receipt,
    decode_offer,
    decode_receipt,
    document_digest,
    encode_offer,
    encode_receipt,
)
from durable_core.types import Extent, PlacedSlice

OFFER_KEY = samples.NAME.offer("dp0")
RECEIPT_KEY = samples.NAME.receipt("dp0")
Change = Callable[[dict[str, Any]], None]


def offer_of(data: bytes) -> Offer:
    return decode_offer(data, key=OFFER_KEY)


def receipt_of(data: bytes) -> Receipt:
    return decode_receipt(data, key=RECEIPT_KEY)


def test_they_come_back() -> None:
    assert offer_of(encode_offer(samples.OFFER)) == samples.OFFER
    assert receipt_of(encode_receipt(samples.RECEIPT)) == samples.RECEIPT
    bare = dataclasses.replace(samples.RECEIPT, ledger=None, placed=(), objects=(), documents={})
    assert receipt_of(encode_receipt(bare)) == bare


def test_document_digests_are_of_canonical_bytes() -> None:
    assert document_digest({"b": 1, "a": 2}) == digests.sha256(b'{"a":2,"b":1}')
    assert samples.RECEIPT.document_digests.keys() == samples.RECEIPT.documents.keys()


def changed(change: Change) -> bytes:
    document = json.loads(encode_receipt(samples.RECEIPT))
    change(document)
    return canonical.dumps(document)


def put(*path: Any) -> Change:
    """Set the value at a path; the last item is the value."""
    *names, value = path

    def change(document: Any) -> None:
        for name in names[:-1]:
            document = document[name]
        document[names[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (put("role", "dp1"), "not the receipt of"),
        (put("role", "DP"), "role"),
        (put("generation", 4), "generation 4"),
        (put("c", 8), "c 8"),
        (put("what", "offer"), "not a receipt"),
        (put("documents", "role", 3), "digests"),
        (put("documents", {}), "digests"),
        (put("document_digests", "role", samples.SHA), "digests"),
        (put("document_digests", "role", "x"), "sha256"),
        (put("placed", 0, "begin", 0), "overlaps"),
        (put("placed", 0, "begin", 10**6), "gap|beyond"),
        (put("placed", 0, "object", samples.NAME.shard("dp1")), "not listed"),
        (put("placed", 0, "object", "../../etc/passwd"), "bad key"),
        (put("placed", 0, "nbytes", 23), "bytes for F32"),
        (put("placed", 0, "nbytes", 10**10), "bytes for F32"),
        (put("placed", 0, "shape", [3, 3]), "bytes for F32"),
        (put("placed", 0, "offsets", [3, 0]), "leaves the tensor"),
        (put("placed", 0, "offsets", [0]), "different lengths"),
        (put("placed", 0, "dtype", "F31"), "unknown dtype"),
        (put("placed", 0, "xxh3", "0"), "xxh3"),
        (put("placed", 0, "crc32c", "XXXXXXXX"), "crc32c"),
        (put("placed", 0, "key", ""), "no tensor key"),
        (put("offered", 0, "begin", 1), "unknown fields"),
        (put("objects", 0, "nbytes", 10**10), "accounted for"),
        (put("objects", 0, "nbytes", 1), "header of"),
        (put("objects", 0, "header_bytes", 0), "gap"),
        (put("objects", 0, "header_bytes", 2**63), "integer"),
        (put("objects", []), "not listed"),
        (put("ledger", {}), "lacks"),
        (put("ledger", "key", "a/../b"), "bad key"),
        (put("ledger", "samples", -1), "integer"),
        (put("more", 1), "unknown fields"),
    ],
)
def test_lies_are_refused(change: Change, why: str) -> None:
    refused(receipt_of, changed(change), key=RECEIPT_KEY, why=why)


def test_things_listed_twice_are_refused() -> None:
    receipt = samples.RECEIPT
    for twice in (
        dataclasses.replace(receipt, offered=receipt.offered + receipt.offered[:1]),
        dataclasses.replace(receipt, objects=receipt.objects * 2),
        dataclasses.replace(receipt, placed=receipt.placed + receipt.placed[:1]),
    ):
        with pytest.raises((FormatError, UsageError)):
            receipt_of(encode_receipt(twice))


@pytest.mark.parametrize("version", [0, 3, None, True])
def test_unknown_versions(version: Any) -> None:
    for encode, decode, what in (
        (encode_offer, offer_of, samples.OFFER),
        (encode_receipt, receipt_of, samples.RECEIPT),
    ):
        document = json.loads(encode(what))  # type: ignore[operator]
        document["v"] = version
        with pytest.raises(UnknownVersionError):
            decode(canonical.dumps(document))  # type: ignore[operator]


def test_a_bad_slice_is_not_signed() -> None:
    bad = samples.W0._replace(nbytes=5)
    with pytest.raises(UsageError, match="bytes for F32"):
        encode_offer(dataclasses.replace(samples.OFFER, slices=(bad,)))
    with pytest.raises(UsageError, match="role"):
        encode_receipt(dataclasses.replace(samples.RECEIPT, role="rank 0"))


def test_any_value_in_the_wrong_place_is_a_typed_error() -> None:
    for what, document in mutations(json.loads(encode_receipt(samples.RECEIPT))):
        try:
            receipt_of(canonical.dumps(document))
        except CorruptError:
            continue
        except Exception as error:  # noqa: BLE001 - reported with the mutation that caused it
            pytest.fail(f"{what}: {error!r}")


def test_truncations_and_flips() -> None:
    survives_damage(offer_of, encode_offer(samples.OFFER), key=OFFER_KEY, stride=3)
    survives_damage(receipt_of, encode_receipt(samples.RECEIPT), key=RECEIPT_KEY, stride=7)


def test_what_is_planned_on_a_base_is_version_two() -> None:
    """A patch on an old object, and a second copy, as receipts tell of them."""
    receipt = samples.RECEIPT
    w0, empty = receipt.placed
    (own,) = receipt.objects
    old = samples.OLD_OBJECT.key
    patch = Extent(own.key, w0.begin, 24, digests.xxh3(b"patch"))
    patched = PlacedSlice(w0.info, old, 5_000, (patch,), digests.xxh3(b"base"))
    frozen = samples.OLD_PLACED
    twin = frozen._replace(twin=Extent(own.key, w0.begin + 24, 20, frozen.info.xxh3))
    based = dataclasses.replace(
        receipt,
        placed=(patched, empty._replace(begin=w0.begin), twin),
        objects=(dataclasses.replace(own, nbytes=own.nbytes + 20),),
        base=samples.SHA,
    )
    data = encode_receipt(based)
    assert receipt_of(data) == based and json.loads(data)["v"] == 2
    refused(receipt_of, encode_receipt(dataclasses.replace(based, base=None)), key=RECEIPT_KEY, why="no base")
    elsewhere = twin._replace(twin=twin.twin._replace(object=samples.NAME.shard("dp1")))  # type: ignore[type-var]
    stray = dataclasses.replace(based, placed=(*based.placed[:2], elsewhere))
    refused(receipt_of, encode_receipt(stray), key=RECEIPT_KEY, why="not listed")
    for what, document in mutations(json.loads(data)):
        try:
            receipt_of(canonical.dumps(document))
        except CorruptError as error:
            assert error.key == RECEIPT_KEY, what
    offer = dataclasses.replace(samples.OFFER, base=samples.SHA)
    assert offer_of(encode_offer(offer)) == offer and json.loads(encode_offer(offer))["v"] == 2
    for spoilt in ({"base": None}, {"base": "x"}, {"v": 1}):
        document = {**json.loads(encode_offer(offer)), **spoilt}
        refused(offer_of, canonical.dumps(document), key=OFFER_KEY)
