"""Patches: what they say comes back, and nothing else is believed."""

from __future__ import annotations

import struct

import pytest
from format_attacks import refused, survives_damage
from hypothesis import given
from hypothesis import strategies as st

from durable_core.errors import FormatError
from durable_core.format import patch

KEY = "checkpoints/g000001-c00000002-0123abcd/shard-dp0.safetensors"
RUNS = ((0, 3), (5, 1), (7, 3))
OLD, NEW = b"abcdefghij", b"ABCdeFgHIJ"


def made(runs=RUNS, new=NEW, nbytes=10):
    return patch.head(runs, nbytes) + b"".join(new[begin : begin + length] for begin, length in runs)


def applied(data, old=OLD):
    out = bytearray(old)
    patch.apply(data, memoryview(out), key=KEY)
    return bytes(out)


def test_it_comes_back():
    assert applied(made()) == NEW and len(made()) == patch.size(RUNS)
    assert applied(made((), OLD)) == OLD


@given(st.binary(max_size=60), st.data())
def test_any_change_comes_back(old, data):
    new = data.draw(st.binary(min_size=len(old), max_size=len(old)))
    runs = []
    for at, (before, after) in enumerate(zip(old, new, strict=True)):
        if before != after:
            if runs and sum(runs[-1]) == at:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((at, 1))
    assert applied(made(runs, new, len(old)), old) == new


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "of 0 bytes"),
        (made()[:23], "of 23 bytes"),
        (b"X" + made()[1:], "not a patch"),
        (made(nbytes=11), "for 11 bytes"),
        (made()[:-1], "runs of 7 bytes"),
        (made() + b"x", "runs of 7 bytes"),
        (struct.pack("<8sQQ", b"DPATCH1\0", 10, 2**62), "claims"),
        (made(((5, 1), (0, 3))), "run of 3 bytes at 0"),
        (made(((0, 3), (2, 3))), "run of 3 bytes at 2"),
        (made(((0, 3), (3, 3))), "run of 3 bytes at 3"),
        (made(((0, 3), (5, 0))), "run of 0 bytes"),
        (made(((8, 3),), NEW + b"x"), "run of 3 bytes at 8"),
        (patch.head(((2**63, 2**63),), 10), "in 10"),
    ],
)
def test_lies_are_refused_before_anything_changes(data, why):
    out = bytearray(OLD)
    refused(lambda raw: patch.apply(raw, memoryview(out), key=KEY), data, key=KEY, why=why)
    assert out == OLD


def test_damage_is_refused_or_changes_the_result():
    survives_damage(applied, made(), key=KEY)
    with pytest.raises(FormatError):
        applied(made(), OLD + b"x")
