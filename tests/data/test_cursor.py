"""The cursor and the layout of an epoch."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_core.data.cursor import REMAINDERS, Cursor, Layout
from durable_core.errors import (
    FormatError,
    SpecMismatchError,
    UnknownVersionError,
    UnsupportedError,
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
        ({"version": 2}, UnknownVersionError),
        ({"version": None}, UnknownVersionError),
        ({"epoch": "3"}, FormatError),
        ({"epoch": True}, FormatError),
        ({"epoch": None}, FormatError),
        ({"dataset_id": 3}, FormatError),
        ({"remainder": "keep"}, FormatError),
        ({"extra": 1}, FormatError),
        ({"batch": -1}, UsageError),
        ({"seed": 2**64}, UsageError),
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


def test_step_10000_is_batch_178_of_the_fourth_epoch() -> None:
    layout = Layout(size=3274 * 32, global_batch=32, remainder="drop")
    assert layout.batches == 3274
    epoch, batch = layout.position(10_000)
    assert (epoch + 1, batch) == (4, 178)  # both counted from 1: the batch just trained is the 178th


@given(size=st.integers(1, 200), batch=st.integers(1, 50), replicas=st.integers(1, 7))
def test_shares_of_replicas_are_the_global_batch(size: int, batch: int, replicas: int) -> None:
    for remainder in REMAINDERS:
        try:
            layout = Layout(size, batch, remainder)
        except UsageError:
            assert (remainder == "drop" and batch > size) or (remainder == "wrap" and batch > 2 * size)
            continue
        positions: list[int] = []
        for k in range(layout.batches):
            shares = [layout.share(k, r, replicas) for r in range(replicas)]
            assert [a for a, _ in shares] == [layout.interval(k)[0], *(b for _, b in shares[:-1])]
            assert shares[-1][1] == layout.interval(k)[1]
            assert max(b - a for a, b in shares) - min(b - a for a, b in shares) <= 1
            positions += range(*layout.interval(k))
        whole = {"drop": size // batch * batch, "short": size, "wrap": -(-size // batch) * batch}
        assert positions == list(range(whole[remainder]))


def test_uneven_shares_and_nonsense_are_refused() -> None:
    Layout(10, 4, "short").check_shares(2)
    with pytest.raises(UnsupportedError, match=r"2 samples.*4 replicas.*drop_last"):
        Layout(10, 4, "short").check_shares(4)
    for size, batch, remainder in (
        (0, 1, "drop"),
        (5, 0, "drop"),
        (5, 6, "drop"),
        (5, 2, "keep"),
        (2, 5, "wrap"),
    ):
        with pytest.raises(UsageError):
            Layout(size, batch, remainder)
    with pytest.raises(UsageError, match="outside"):
        Layout(10, 4, "drop").interval(2)
