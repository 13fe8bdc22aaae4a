"""Canonical JSON: one value, one byte string, and a reader that believes nothing."""

from __future__ import annotations

import json
import math
import tracemalloc
from typing import Any

import pytest
from format_attacks import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_core.errors import CodecError, FormatError
from durable_core.format import canonical

KEY = "some/document.json"
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def loads(data: bytes) -> Any:
    return canonical.loads(data, key=KEY)


@given(json_values)
@settings(max_examples=150, deadline=None)
def test_round_trip_and_one_form(value: Any) -> None:
    data = canonical.dumps(value)
    again = loads(data)
    assert again == value and canonical.dumps(again) == data
    assert data.isascii()


def test_the_form() -> None:
    value = {"b": [1, 1.0, -0.0, 1e22, 0.1], "a": None, "ä": "\x7f\u2028\U0001f600", "": {}}
    assert canonical.dumps(value) == (
        b'{"":{},"a":null,"b":[1,1.0,-0.0,1e+22,0.1],"\\u00e4":"\\u007f\\u2028\\ud83d\\ude00"}'
    )
    assert math.copysign(1, loads(b"-0.0")) == -1


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, {1: 2}, {None: 1}, {True: 1}, [{"a": {2: 1}}], {1}, b"x", object()],
)
def test_what_is_not_json_is_not_written(value: Any) -> None:
    with pytest.raises(CodecError):
        canonical.dumps(value)


def test_a_value_within_itself_is_not_written() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(CodecError):
        canonical.dumps(value)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "strict JSON"),
        (b"{", "strict JSON"),
        (b"{}x", "Extra data"),
        (b"{}{}", "Extra data"),
        (b"{}\x00", "Extra data"),
        (b'{"a":1,"a":2}', "twice"),
        (b'[{"x":{"a":1,"b":2,"a":1}}]', "twice"),
        (b'{"a":1,"\\u0061":2}', "twice"),
        (b"NaN", "not JSON"),
        (b"[Infinity]", "not JSON"),
        (b'{"a":-Infinity}', "not JSON"),
        (b"1e999", "beyond a double"),
        (b"[-1e400]", "beyond a double"),
        (b'"\xff"', "utf-8"),
        (b'"\xed\xa0\x80"', "utf-8"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b"'a'", "strict JSON"),
        (b"[1,]", "strict JSON"),
        (b"01", "Extra data"),
        (b'"a\nb"', "control character"),
        (b"1" * 5000, "digits|limit"),
    ],
)
def test_what_is_not_strict_is_refused(data: bytes, why: str) -> None:
    refused(loads, data, key=KEY, why=why)


@pytest.mark.parametrize("depth", [201, 1_000, 50_000])
@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"]":'])
def test_deep_nesting_is_refused_without_recursion(depth: int, opening: bytes) -> None:
    closing = {b"[": b"]", b'{"a":': b"}", b'[{"]":': b"}]"}[opening]
    refused(loads, opening * depth + b"1" + closing * depth, key=KEY, why="nested deeper than 200")
    refused(loads, opening * depth, key=KEY, why="nested deeper than 200")


def test_depth_is_measured_outside_strings() -> None:
    brackets = "[{" * 500
    for text in (brackets, '\\"' + brackets, "\\" + brackets + '"', '"' + brackets + "\\\\"):
        value = {"a": [text, {text: 1}]}
        assert loads(canonical.dumps(value)) == value
    at_the_limit = json.loads("[" * 200 + "]" * 200)
    assert loads(canonical.dumps(at_the_limit)) == at_the_limit
    with pytest.raises(CodecError, match="200"):
        canonical.dumps([at_the_limit])


@given(st.text(alphabet='"\\[]{}a,:', max_size=60), st.integers(190, 210))
@settings(max_examples=200, deadline=None)
def test_depth_with_any_string_inside(text: str, depth: int) -> None:
    data = b"[" * depth + json.dumps(text).encode() + b"]" * depth
    if depth > canonical.MAX_DEPTH:
        with pytest.raises(FormatError, match="nested"):
            loads(data)
    else:
        value = loads(data)
        for _ in range(depth):
            (value,) = value
        assert value == text


def test_size_beyond_the_limit_is_refused_unread() -> None:
    data = b"[" + b"1," * 1000 + b"1]"
    assert len(canonical.loads(data, key=KEY, limit=len(data))) == 1001
    with pytest.raises(FormatError, match="limit"):
        canonical.loads(data, key=KEY, limit=len(data) - 1)


def test_a_hostile_string_costs_linear_time_and_memory() -> None:
    data = b'["' + b'\\"[' * 300_000
    tracemalloc.start()
    with pytest.raises(FormatError):
        loads(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * len(data)
