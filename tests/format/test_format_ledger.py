"""The ledger: what every step consumed, in objects that any safetensors reader opens."""

from __future__ import annotations

import json
from typing import Any

import format_samples as samples
import numpy as np
import pytest
import safetensors.numpy
from format_attacks import mutations, refused, survives_damage
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_core.errors import CorruptError, FormatError, UnknownVersionError, UsageError
from durable_core.format import canonical
from durable_core.format.ledger import (
    LedgerIndex,
    Row,
    RowFlag,
    decode_index,
    decode_segment,
    encode_index,
    encode_segment,
    index_digest,
)
from durable_core.format.receipt import LedgerSegment

KEY = samples.NAME.ledger("dp0")
INDEX_KEY = samples.NAME.ledger_index
INDEX = LedgerIndex(
    3, 7, 40, 5, {role: LedgerSegment(samples.NAME.ledger(role), samples.SHA, 64) for role in ("dp0", "dp1")}
)


def ids(*values: int) -> Any:
    return np.array(values, np.int64)


ROWS = [
    Row(1, 0, 0, ids(5, 3, 9)),
    Row(1, 0, 1, ids(1)),
    Row(2, 0, 2, ids(), RowFlag.NO_UPDATE),
    Row(3, 1, 0, ids(2**63 - 1, -1)),
]


def segment(data: bytes) -> tuple[Row, ...]:
    return decode_segment(data, key=KEY)


def index(data: bytes) -> LedgerIndex:
    return decode_index(data, key=INDEX_KEY)


def plain(rows: Any) -> list[Any]:
    return [(row.step, row.epoch, row.batch, row.ids.tolist(), row.flags) for row in rows]


def test_rows_come_back() -> None:
    assert plain(segment(encode_segment(ROWS))) == plain(ROWS)
    assert segment(encode_segment([])) == ()
    assert encode_segment(ROWS) == encode_segment(ROWS)


@given(
    st.lists(
        st.builds(
            Row,
            st.integers(0, 2**40),
            st.integers(0, 100),
            st.integers(0, 2**40),
            st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5).map(lambda values: ids(*values)),
            st.sampled_from(list(RowFlag)),
        ),
        max_size=6,
    )
)
@settings(max_examples=100, deadline=None)
def test_any_rows_come_back(rows: list[Row]) -> None:
    assert plain(segment(encode_segment(rows))) == plain(rows)


def test_any_safetensors_reader_opens_it() -> None:
    arrays = safetensors.numpy.load(encode_segment(ROWS))
    assert arrays["ids"].tolist() == [5, 3, 9, 1, 2**63 - 1, -1]
    assert arrays["step"].tolist() == [1, 1, 2, 3]


@pytest.mark.parametrize(
    "row",
    [
        Row(2**63, 0, 0, ids(1)),
        Row(0, 0, 0, np.array([1.5])),
        Row(0, 0, 0, np.array([[1]])),
        Row(0, 0, 0, np.array([2**63], np.uint64)),
        Row(0, 0, 0, np.array(["a"])),
    ],
)
def test_rows_that_do_not_fit_are_not_written(row: Row) -> None:
    with pytest.raises(UsageError):
        encode_segment([row])


def rebuilt(**changes: Any) -> bytes:
    arrays = {**safetensors.numpy.load(encode_segment(ROWS)), **changes}
    return safetensors.numpy.save({name: array for name, array in arrays.items() if array is not None})


@pytest.mark.parametrize(
    "changes",
    [
        {"ids": None},
        {"more": ids(1)},
        {"ids": ids(1, 2)},
        {"step": ids(1)},
        {"step": np.arange(4, dtype=np.float64)},
        {"step": np.arange(4, dtype=np.int32)},
        {"step": np.arange(4).reshape(2, 2)},
        {"step": ids(1, 1, -2, 3)},
        {"count": ids(3, 1, 0, 3)},
        {"count": ids(3, 1, 4, -2)},
        {"count": ids(2**62, 2**62, 2**62, 2**62 + 6)},
        {"count": ids(2**63 - 1, 0, 0, 0)},
    ],
)
def test_malformed_segments_are_refused(changes: dict[str, Any]) -> None:
    refused(segment, rebuilt(**changes), key=KEY)


def test_segments_survive_no_truncation_and_no_flip_untyped() -> None:
    survives_damage(segment, encode_segment(ROWS), key=KEY, stride=3)


def test_the_index_comes_back() -> None:
    data = encode_index(INDEX)
    assert index(data) == INDEX
    assert index_digest(data).startswith("sha256:")


def test_a_segment_of_another_role_is_refused() -> None:
    document = json.loads(encode_index(INDEX))
    document["segments"]["dp0"]["key"] = samples.NAME.ledger("dp1")
    with pytest.raises(FormatError, match="not the ledger of 'dp0'"):
        index(canonical.dumps(document))
    document["segments"]["dp0"]["key"] = "../x"
    with pytest.raises(FormatError, match="bad key"):
        index(canonical.dumps(document))


def test_unknown_versions() -> None:
    document = json.loads(encode_index(INDEX))
    document["v"] = 2
    with pytest.raises(UnknownVersionError):
        index(canonical.dumps(document))


def test_any_value_in_the_wrong_place_is_a_typed_error() -> None:
    for what, document in mutations(json.loads(encode_index(INDEX))):
        try:
            index(canonical.dumps(document))
        except CorruptError:
            continue
        except Exception as error:  # noqa: BLE001 - reported with the mutation that caused it
            pytest.fail(f"{what}: {error!r}")


# --- amounts ------------------------------------------------------------------------------------------


def with_amounts(rows: Any) -> list[Any]:
    return [
        (*row, r.amounts if r.amounts is None else r.amounts.tolist())
        for row, r in zip(plain(rows), rows, strict=True)
    ]


def test_amounts_come_back_and_rows_may_have_none() -> None:
    rows = [
        Row(1, 0, 0, ids(5, 3), amounts=ids(0, 2**40)),
        Row(1, 0, 1, ids(1)),
        Row(2, 0, 1, ids(4), RowFlag.SKIPPED),
        Row(2, 0, 2, ids(1, 1), RowFlag.PADDED, ids(7, 8)),
        Row(3, 0, 3, ids(), amounts=ids()),
    ]
    found = segment(encode_segment(rows))
    assert with_amounts(found)[:4] == with_amounts(rows)[:4]
    assert found[4].amounts is None  # of no ids there are none
    assert (found[2].skipped, found[3].flags) == (True, RowFlag.PADDED)


def test_a_segment_without_amounts_is_what_it_always_was() -> None:
    assert set(safetensors.numpy.load(encode_segment(ROWS))) == {
        "step",
        "epoch",
        "batch",
        "flags",
        "count",
        "ids",
    }
    assert all(row.amounts is None for row in segment(encode_segment(ROWS)))


@pytest.mark.parametrize("amounts", [ids(1), ids(1, -1), np.array([1.0, 2.0])])
def test_amounts_that_are_none_are_refused(amounts: Any) -> None:
    with pytest.raises(UsageError, match="batch 0"):
        encode_segment([Row(1, 0, 0, ids(5, 3), amounts=amounts)])


@pytest.mark.parametrize("column", [ids(1, 2), ids(1, -1, 2, 2), ids(-2, 1, 2, 2)])
def test_a_damaged_column_of_amounts_is_refused(column: Any) -> None:
    rows = [Row(1, 0, 0, ids(5, 3), amounts=ids(1, 1)), Row(1, 0, 1, ids(5, 3), amounts=ids(1, 1))]
    arrays = safetensors.numpy.load(encode_segment(rows))
    with pytest.raises(FormatError, match="amounts"):
        segment(safetensors.numpy.save({**arrays, "amounts": column}))
