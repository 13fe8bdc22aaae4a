"""Digests: published vectors, any buffer, no copies."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_core.format import digests


def test_published_vectors() -> None:
    assert digests.sha256(b"abc") == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert digests.xxh3(b"") == "99aa06d3014798d86001c324468d497f"
    assert digests.crc32c(b"123456789") == "e3069283"
    assert digests.crc32c(b"") == "00000000"


def test_their_forms_match() -> None:
    assert digests.SHA256.fullmatch(digests.sha256(b"x"))
    assert digests.XXH3.fullmatch(digests.xxh3(b"x"))
    assert digests.CRC32C.fullmatch(digests.crc32c(b"x"))


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_parts_hash_like_the_whole(parts: list[bytes]) -> None:
    hasher = digests.SliceHasher()
    for part in parts:
        hasher.update(part)
    whole = b"".join(parts)
    assert (hasher.xxh3, hasher.crc32c) == (digests.xxh3(whole), digests.crc32c(whole))


@pytest.mark.parametrize("digest", [digests.sha256, digests.xxh3, digests.crc32c])
def test_buffers_of_any_kind_are_not_copied(digest: object) -> None:
    array = np.zeros(4_000_000, np.float32)
    tracemalloc.start()
    found = digest(array.data)  # type: ignore[operator]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == digest(array.tobytes()) == digest(bytearray(array.tobytes()))  # type: ignore[operator]
    assert peak < 100_000
