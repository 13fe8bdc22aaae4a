from __future__ import annotations

import math

import pytest

from durable_core.errors import UsageError
from durable_core.state.fingerprint import compare as compare_fingerprints
from durable_core.state.fingerprint import fingerprint
from durable_core.state.window import Row, Window, compare
from durable_core.types import Promise

REFERENCE = [Row(step, 2.0 / (step + 1), 0.1, 1.5) for step in range(10)]


def next_float(value: float) -> float:
    return math.nextafter(value, math.inf)


def test_bitwise_means_every_bit_of_every_metric() -> None:
    assert compare(REFERENCE, REFERENCE[5:], Promise.BITWISE).ok
    for metric in ("loss", "lr", "grad_norm"):
        changed = Row(**{**vars(REFERENCE[7]), metric: next_float(getattr(REFERENCE[7], metric))})
        verdict = compare(REFERENCE, [REFERENCE[6], changed], Promise.BITWISE)
        assert verdict.ok is False and f"step 7: {metric}" in verdict.reason
        assert compare(REFERENCE, [changed], Promise.EXACT_ORDER).ok
    assert compare([Row(1, 0.0)], [Row(1, -0.0)], Promise.BITWISE).ok is False
    assert compare([Row(1, math.nan)], [Row(1, math.nan)], Promise.BITWISE).ok


def test_exact_order_finds_a_wrong_optimizer_state() -> None:
    assert compare(REFERENCE, [Row(7, REFERENCE[7].loss, 0.1, 4.5)], Promise.EXACT_ORDER).ok is False
    assert compare(REFERENCE, [Row(7, math.nan, 0.1, 1.5)], Promise.EXACT_ORDER).ok is False


def test_weaker_promises_compare_distributions() -> None:
    before = [Row(step, 1.0 + 0.1 * math.sin(step)) for step in range(50)]
    alike = [Row(step, 1.0 + 0.1 * math.sin(step * 1.7)) for step in range(60, 80)]
    worse = [Row(row.step, row.loss + 0.5) for row in alike if row.loss is not None]
    for promise in (Promise.COVERAGE, Promise.DISTRIBUTION):
        assert compare(before, alike, promise).ok
        assert compare(before, worse, promise).ok is False
        assert compare(before, [*alike, Row(90, math.inf)], promise).ok is False


def test_nothing_in_common_is_no_verdict() -> None:
    for promise in Promise:
        assert compare(REFERENCE, [], promise).ok is None
    assert compare(REFERENCE, [Row(99, 1.0)], Promise.BITWISE).ok is None
    assert compare([Row(1)], [Row(1)], Promise.BITWISE).ok is None
    assert compare(REFERENCE, [Row(3, None, 0.1, 1.5)], Promise.BITWISE).ok is False


def test_the_window_keeps_the_newest_rows_and_follows_a_rollback() -> None:
    window = Window(4)
    for row in REFERENCE:
        window.record(row)
    assert [row.step for row in window.rows] == [6, 7, 8, 9]
    window.record(Row(8, 0.5))
    assert [row.step for row in window.rows] == [6, 7, 8]
    other = Window(4)
    other.load_state_dict(window.state_dict())
    assert other.rows == window.rows
    with pytest.raises(UsageError):
        Window(0)


def test_the_fingerprint_is_flat_text_and_differences_are_named() -> None:
    fields = fingerprint()
    assert fields == fingerprint()
    assert all(isinstance(value, str) for value in fields.values())
    assert {"python", "torch", "numpy", "machine", "torch.threads", "torch.matmul_precision"} <= set(fields)
    other = {**fields, "torch": "0.0", "env.NEW": "1"}
    assert compare_fingerprints(fields, fields) == ()
    assert compare_fingerprints(fields, other) == ("env.NEW", "torch")
