"""The cursor and the layout of an epoch."""

from __future__ import annotations

import dataclasses
import json

import pytest

from durable_core.data.cursor import Cursor
from durable_core.errors import (
    FormatError,
    SpecMismatchError,
    UnknownVersionError,
    UsageError,
)

CURSOR = Cursor("sha256:" + "0" * 64, "full_prp_v1", 7, 3, 178, 10**12, 4096, "drop", 10**15)


def test_it_survives_json() -> None:
    assert Cursor.from_json(CURSOR.to_json()) == CURSOR
    stream = dataclasses.replace(CURSOR, size=None, order="stream_v1")
    assert Cursor.from_dict(json.loads(stream.to_json())) == stream


def test_the_largest_is_under_a_kilobyte() -> None:
    big = Cursor("i" * 256, "o" * 256, 2**64 - 1, 2**63, 2**63, 2**63, 2**63, "short", 2**63)
    assert len(big.to_json()) <= 1024
    for text in ("i" * 257, "", "é", "a\nb"):
        with pytest.raises(UsageError, match="dataset_id"):
            dataclasses.replace(big, dataset_id=text)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"version": 3}, UnknownVersionError),
        ({"version": None}, UnknownVersionError),
        ({"epoch": "3"}, FormatError),
        ({"epoch": True}, FormatError),
        ({"epoch": None}, FormatError),
        ({"dataset_id": 3}, FormatError),
        ({"remainder": "keep"}, FormatError),
        ({"extra": 1}, FormatError),
        ({"batch": -1}, FormatError),
        ({"seed": 2**64}, FormatError),
    ],
)
def test_what_is_no_cursor_is_refused(change: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        Cursor.from_dict({**CURSOR.to_dict(), **change})


@pytest.mark.parametrize("text", ["", "[]", "{", "3"])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="cursor"):
        Cursor.from_json(text)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dataset_id", "other"),
        ("order", "sequential_v1"),
        ("size", 5),
        ("global_batch", 8),
        ("remainder", "wrap"),
    ],
)
def test_a_mismatch_names_both_values(field: str, value: object) -> None:
    other = dataclasses.replace(CURSOR, **{field: value})
    with pytest.raises(SpecMismatchError) as caught:
        CURSOR.check_continues(other)
    assert caught.value.fields == (field,)
    assert repr(value) in str(caught.value) and repr(getattr(CURSOR, field)) in str(caught.value)


def test_position_and_seed_are_no_mismatch() -> None:
    CURSOR.check_continues(dataclasses.replace(CURSOR, epoch=0, batch=0, seed=8, consumed_samples=0))


def test_an_accumulation_makes_it_version_2_and_nothing_else_does() -> None:
    cursor = Cursor("d", "full_prp_v1", 1, 2, 3, 100, 8, "short", 64)
    assert cursor.version == 1 and "accumulate" not in cursor.to_dict()  # as earlier versions read it
    more = dataclasses.replace(cursor, accumulate=4)
    assert (more.version, more.to_dict()["accumulate"]) == (2, 4)
    assert Cursor.from_json(more.to_json()) == more and Cursor.from_json(cursor.to_json()) == cursor
    for change in ({"accumulate": 0}, {"accumulate": "4"}, {"version": 1}):
        with pytest.raises((FormatError, UsageError)):
            Cursor.from_dict({**more.to_dict(), **change})


def test_a_position_is_counted_in_other_batches() -> None:
    cursor = Cursor("d", "full_prp_v1", 1, 2, 6, 96, 8, "short", 240, accumulate=2)
    other = cursor.rescaled(16, 1, cursor.size)
    assert (other.batch, other.global_batch, other.accumulate) == (3, 16, 1)
    assert other.rescaled(8, 2, cursor.size) == cursor
