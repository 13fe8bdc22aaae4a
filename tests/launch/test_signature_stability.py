"""Equal faults have equal signatures, whatever differs by chance; others have others."""

from __future__ import annotations

import subprocess
import sys

import pytest

from durable_core.launch.signature import frame, normalized, signature


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Connection closed by peer [127.0.0.1]:40123", "Connection closed by peer [10.0.0.7]:9"),
        ("tried to allocate 2.00 GiB at 0x7f12ab", "tried to allocate 3.5 GiB at 0xdeadbeef"),
        ("no file '/tmp/a1/b.pt'", "no file '/home/x/c.pt'"),
        ("GET s3://bucket/a/1 failed", "GET https://host/b/2 failed"),
        ("op 0123456789abcdef0123456789abcdef", "op fedcba9876543210fedcba9876543210"),
        ("node 6f1f1f8e-0d3b-4a6e-9a53-7a2f1e0c9d11 left", "node 11111111-0d3b-4a6e-9a53-7a2f1e0c9d11 left"),
        ("loss is -1.5e-7", "loss is 3"),
        ("first line\nsecond 1", "first line\nother"),
    ],
)
def test_what_differs_by_chance_does_not_count(one: str, other: str) -> None:
    assert normalized(one) == normalized(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Connection closed", "Connection refused"),
        ("layer1 has no weight", "layer2 has no weight"),
        ("yes/no", "yes/maybe"),
    ],
)
def test_what_differs_by_kind_counts(one: str, other: str) -> None:
    assert normalized(one) != normalized(other)


def test_frames_count_by_file_and_function_without_lines_and_directories() -> None:
    assert (
        frame("/a/b/train.py:12:step")
        == frame("/c/train.py, line 99:step")
        == frame("train.py:step")
        == "train.py:step"
    )


def test_each_part_counts() -> None:
    base = ("ValueError", "bad", ("a.py:f",), 5, "s/1.tar")
    known = signature(*base)
    for i, other in enumerate(("TypeError", "worse", ("a.py:g",), 6, "s/2.tar")):
        assert signature(*base[:i], other, *base[i + 1 :]) != known  # type: ignore[arg-type]
    assert known.endswith(" ValueError in a.py:f at step 5 (s/1.tar)")


def test_it_is_the_same_in_another_process() -> None:
    code = "from durable_core.launch.signature import signature; print(signature('E', 'm 1', ('a.py:f',), 3))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == signature("E", "m 2", ("/x/a.py:4:f",), 3)
