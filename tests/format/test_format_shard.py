"""Shards: any safetensors reader opens them, and a hostile header is refused before it costs anything."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from format_attacks import mutations, refused, survives_damage
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_core.errors import CorruptError, FormatError, UsageError
from durable_core.format import canonical, shard
from durable_core.types import SliceKey

KEY = "checkpoints/g000001-c00000001-00000000/shard-dp0.safetensors"
Entry = tuple[str, str, tuple[int, ...], int]


def build(entries: list[Entry], align: int = 4096) -> bytes:
    """A whole shard; each tensor's bytes are its index."""
    header, begins = shard.layout(entries, align=align)
    data = bytearray(header)
    for i in shard.write_order(begins, [entry[3] for entry in entries]):
        assert len(data) == begins[i]
        data += bytes([i]) * entries[i][3]
    return bytes(data)


def entry(name: str, dtype: str, *shape: int) -> Entry:
    return name, dtype, shape, shard.nbytes_of(dtype, shape)


@st.composite
def entries(draw: st.DrawFn) -> list[Entry]:
    names = draw(st.lists(st.text(min_size=1, max_size=8), unique=True, max_size=8))
    dtypes = st.sampled_from(sorted(shard.ITEMSIZE))
    shapes = st.lists(st.integers(0, 4), max_size=4)
    return [entry(name, draw(dtypes), *draw(shapes)) for name in names if name != "__metadata__"]


@given(entries(), st.sampled_from([8, 64, 4096]))
@settings(max_examples=150, deadline=None)
def test_the_real_library_reads_every_byte(tensors: list[Entry], align: int) -> None:
    data = build(tensors, align)
    found = dict(safetensors.deserialize(data))
    assert set(found) == {name for name, *_ in tensors}
    for i, (name, dtype, shape, nbytes) in enumerate(tensors):
        assert (found[name]["dtype"], found[name]["shape"]) == (dtype, list(shape))
        assert bytes(found[name]["data"]) == bytes([i]) * nbytes


@given(entries(), st.sampled_from([8, 64, 4096]))
@settings(max_examples=150, deadline=None)
def test_aligned_without_gaps_and_parsed_back(tensors: list[Entry], align: int) -> None:
    data = build(tensors, align)
    header, begins = shard.layout(tensors, align=align)
    assert len(header) % align == 0
    for (_, dtype, _, _), begin in zip(tensors, begins, strict=True):
        assert begin % shard.ITEMSIZE[dtype] == 0
    parsed = {e.name: e for e in shard.parse_header(data[: len(header)], len(data), key=KEY)}
    for (name, dtype, shape, nbytes), begin in zip(tensors, begins, strict=True):
        assert parsed[name] == shard.HeaderEntry(name, dtype, shape, begin, nbytes)
    assert shard.header_length(data[:8], len(data), key=KEY) == len(header)


def test_torch_views_it_without_copying() -> None:
    """Torch refuses a view of misaligned bytes: small items must come after large ones."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import load

    tensors = [entry("mask", "BOOL", 3), entry("w", "F32", 2, 2), entry("n", "I64"), entry("h", "BF16", 3)]
    found = load(build(tensors))
    assert found["w"].dtype == torch.float32 and found["w"].shape == (2, 2)
    assert found["mask"].tolist() == [False] * 3


def test_what_the_library_writes_is_parsed() -> None:
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([1, 2], np.int64)}
    data = safetensors.numpy.save(arrays, metadata={"by": "them"})
    parsed = {e.name: e for e in shard.parse_header(data, len(data), key=KEY)}
    for name, array in arrays.items():
        found = parsed[name]
        assert data[found.begin : found.begin + found.nbytes] == array.tobytes()


def test_names_of_slices() -> None:
    assert shard.entry_name(SliceKey("m/w", (0, 0), (4, 3)), (4, 3)) == "m/w"
    assert shard.entry_name(SliceKey("m/w", (2, 0), (2, 3)), (4, 3)) == "m/w[2:4,0:3]"
    assert shard.entry_name(SliceKey("m/s", (), ()), ()) == "m/s"


@pytest.mark.parametrize(
    "bad",
    [
        [("a", "F32", (2,), 4)],
        [("a", "F99", (2,), 8)],
        [("a", "F32", (1,), 4), ("a", "F32", (1,), 4)],
        [("__metadata__", "F32", (1,), 4)],
        [("a", "U8", (1,) * 65, 1)],
    ],
)
def test_layout_refuses(bad: list[Entry]) -> None:
    with pytest.raises(UsageError):
        shard.layout(bad)


@pytest.mark.parametrize("align", [0, 1, 3, 12, -8])
def test_layout_refuses_odd_alignments(align: int) -> None:
    with pytest.raises(UsageError, match="align"):
        shard.layout([], align=align)


# --- attacks -------------------------------------------------------------------------------


def parse(data: bytes) -> Any:
    return shard.parse_header(data, len(data), key=KEY)


def with_header(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def tensor(dtype: Any = "U8", shape: Any = (4,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 7,
        struct.pack("<Q", 0),
        struct.pack("<Q", 10**10) + b"{}",
        struct.pack("<Q", 2**64 - 1) + b"{}",
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 3) + b"{}",
        with_header(b"[]"),
        with_header(b" {}"),
        with_header(b"null"),
        with_header(b"{}x"),
        with_header(b'{"a":1}'),
        with_header(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}}'),
        with_header({"a": tensor(dtype="U9")}, b"1234"),
        with_header({"a": tensor(dtype=None)}, b"1234"),
        with_header({"a": tensor(dtype=["U8"])}, b"1234"),
        with_header({"a": {**tensor(), "more": 1}}, b"1234"),
        with_header({"a": tensor(shape=[5])}, b"1234"),
        with_header({"a": tensor(shape=[-4])}, b"1234"),
        with_header({"a": tensor(shape=[-2, -2])}, b"1234"),
        with_header({"a": tensor(shape=[2.0, 2])}, b"1234"),
        with_header({"a": tensor(shape=[True, 4])}, b"1234"),
        with_header({"a": tensor(shape=4)}, b"1234"),
        with_header({"a": tensor(shape=[1] * 64 + [4])}, b"1234"),
        with_header({"a": tensor(shape=[2**62, 2**62])}, b"1234"),
        with_header({"a": tensor(shape=[2**64, 0], offsets=[0, 0])}),
        with_header({"a": tensor(shape=[10**10], offsets=[0, 10**10])}, b"1234"),
        with_header({"a": tensor(offsets=[4, 0])}, b"1234"),
        with_header({"a": tensor(offsets=[-4, 0])}, b"1234"),
        with_header({"a": tensor(offsets=[0])}, b"1234"),
        with_header({"a": tensor(offsets=[0, 4, 8])}, b"1234"),
        with_header({"a": tensor(offsets=[1, 5])}, b"12345"),
        with_header({"a": tensor()}, b"12345"),
        with_header({"a": tensor()}, b"123"),
        with_header({"a": tensor(), "b": tensor()}, b"1234"),
        with_header({"a": tensor(), "b": tensor(offsets=[3, 7])}, b"1234567"),
        with_header({"a": tensor(), "b": tensor(offsets=[5, 9])}, b"123456789"),
        with_header({"__metadata__": {"a": 1}}),
        with_header({"__metadata__": []}),
        with_header(b'{"a":' * 1000 + b"1" + b"}" * 1000),
    ],
)
def test_hostile_headers_are_refused(data: bytes) -> None:
    refused(parse, data, key=KEY)


def test_a_header_that_is_not_all_there() -> None:
    data = build([entry("a", "F32", 2)])
    with pytest.raises(FormatError, match="of a header"):
        shard.parse_header(data[:100], len(data), key=KEY)
    with pytest.raises(FormatError, match="claims a header"):
        shard.header_length(data[:8], 100, key=KEY)


def test_any_value_in_the_wrong_place_is_a_typed_error() -> None:
    header = {"a": tensor(shape=[4]), "b": tensor("F32", [1], [4, 8])}
    for what, document in mutations(json.loads(json.dumps(header))):
        try:
            parse(with_header(canonical.dumps(document), b"12345678"))
        except CorruptError:
            continue
        except Exception as error:  # noqa: BLE001 - reported with the mutation that caused it
            pytest.fail(f"{what}: {error!r}")


def test_truncations_and_flips() -> None:
    survives_damage(parse, build([entry("a", "F32", 2), entry("b", "BOOL", 3)], align=8), key=KEY)
