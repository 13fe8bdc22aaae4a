"""A tree taken apart, written as canonical JSON and raw bytes, and put together again is the same tree."""

from __future__ import annotations

import collections
import math
import random
import struct
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_core.errors import CodecError, FormatError
from durable_core.format import canonical, codec
from durable_core.state.dtypes import TO_NAME, TO_TORCH
from durable_core.state.memory import alloc, writable
from durable_core.state.staging import SlotPool
from durable_core.state.tree import flatten, rebuild


def through_bytes(tree: Any) -> Any:
    """flatten -> staged bytes and canonical JSON -> fresh memory -> rebuild."""
    flat = flatten(tree, prefix="state")
    document = canonical.loads(canonical.dumps(flat.doc), key="doc")
    slot = SlotPool(1).acquire()
    assert slot is not None
    with slot.stage(flat.tensors) as staged:
        claims = {key: (staged.dtype(key), staged.global_shape(key)) for key in flat.tensors}
        tensors = alloc(claims, budget=staged.nbytes)
        for key, tensor in tensors.items():
            joined = b"".join(staged.view(piece) for piece in staged.slices if piece.key == key)
            writable(tensor)[:] = joined
    return rebuild(document, tensors)


def same(one: Any, two: Any) -> bool:
    """Equal in type and in every bit (NaN payloads and signed zeros included)."""
    if type(one) is not type(two):
        return False
    if isinstance(one, torch.Tensor):
        if (one.dtype, one.shape, one.requires_grad) != (two.dtype, two.shape, two.requires_grad):
            return False
        pair = (one.detach().resolve_conj(), two.detach().resolve_conj())
        raw = [t.contiguous().reshape(-1).view(torch.uint8) for t in pair]
        return bool(torch.equal(*raw))
    if isinstance(one, float):
        return struct.pack("<d", one) == struct.pack("<d", two)
    if isinstance(one, complex):
        return same([one.real, one.imag], [two.real, two.imag])
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()
    if isinstance(one, dict):
        return [*map(repr, one)] == [*map(repr, two)] and all(same(one[k], two[k]) for k in one)
    if isinstance(one, (list, tuple, collections.deque)):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)


def some_bits(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    count = math.prod(shape) * dtype.itemsize
    raw = torch.arange(count, dtype=torch.int64).mul(37).add(11).remainder(256).to(torch.uint8)
    if dtype is torch.bool:
        raw = raw.remainder(2)
    return raw.view(dtype).reshape(shape)


@pytest.mark.parametrize("name", sorted(TO_TORCH))
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (4, 3)])
def test_every_dtype_and_shape_comes_back_bit_for_bit(name: str, shape: tuple[int, ...]) -> None:
    tensor = some_bits(TO_TORCH[name], shape)
    assert same(through_bytes({"t": tensor})["t"], tensor)


@pytest.mark.parametrize("dtype", [torch.complex128, torch.complex64])
def test_complex_and_conjugate_tensors_come_back(dtype: torch.dtype) -> None:
    tensor = torch.complex(torch.arange(6.0).double(), -torch.arange(6.0).double()).to(dtype).reshape(2, 3)
    back = through_bytes([tensor, tensor.conj(), tensor[0, 0]])
    assert same(back, [tensor, tensor.conj(), tensor[0, 0]])


def test_views_of_any_stride_come_back_as_values() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    views = [base.t(), base[:, ::2], base[1], base[2:3].expand(5, 6), base.flip(0)]
    back = through_bytes(views)
    assert all(torch.equal(a, b) for a, b in zip(views, back, strict=True))


def test_tied_tensors_are_stored_once_and_come_back_as_one_object() -> None:
    weight = torch.randn(4, 4)
    tree = {"encoder": weight, "decoder": weight.detach(), "other": weight.t(), "part": weight[:2]}
    flat = flatten(tree, prefix="state")
    assert sorted(flat.tensors) == ["state/encoder", "state/other", "state/part"]
    back = rebuild(flat.doc, flat.tensors)
    assert back["encoder"] is back["decoder"]
    assert back["encoder"] is not back["other"]


def test_equal_values_in_different_memory_are_not_tied() -> None:
    flat = flatten([torch.zeros(3), torch.zeros(3), torch.zeros(0), torch.zeros(0)], prefix="x")
    assert len(flat.tensors) == 4


class Fresh:
    """Its tensor exists only while it is encoded."""

    def __init__(self, number: float) -> None:
        self.number = number


codec.register(
    Fresh,
    "tests.Fresh",
    lambda value: torch.full((64,), value.number),
    lambda tensor: Fresh(float(tensor[0])),
)


def test_an_address_used_again_during_flatten_is_not_a_tie() -> None:
    # Temporaries of one size tend to reuse one address as soon as the one before is dropped.
    back = through_bytes([Fresh(float(i)) for i in range(50)])
    assert [value.number for value in back] == [float(i) for i in range(50)]


def test_parameters_and_gradient_flags_come_back() -> None:
    tree = {
        "trained": torch.nn.Parameter(torch.ones(2)),
        "frozen": torch.nn.Parameter(torch.ones(2), requires_grad=False),
        "leaf": torch.ones(2, requires_grad=True),
        "plain": torch.ones(2),
    }
    back = through_bytes(tree)
    assert same(back, tree)
    assert back["trained"].is_leaf and back["leaf"].is_leaf


def test_keys_are_readable_and_unique_whatever_the_names() -> None:
    one = lambda: torch.zeros(1)  # noqa: E731
    tree = {
        "model": {"layers.0.weight": one(), "a/b": one(), "a": {"b": one()}, "c%2Fd": one()},
        "opt": {0: one(), "0": one(), 1.5: one(), (1, 2): one(), True: one(), None: one(), "": one()},
        "odd": {"a@0": one(), "line\nbreak": one(), "\ud800": one(), "ü": one(), "..": one()},
    }
    flat = flatten(tree, prefix="state")
    assert len(flat.tensors) == 16
    assert "state/model/layers.0.weight" in flat.tensors
    assert "state/opt/0" in flat.tensors
    for key in flat.tensors:
        key.encode()
        assert "@" not in key and key.isprintable()
    assert flatten(tree, prefix="state").tensors.keys() == flat.tensors.keys()
    assert same(rebuild(flat.doc, flat.tensors), tree)


REFUSED: dict[str, Any] = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "meta": lambda: torch.empty(3, device="meta"),
    "graph": lambda: torch.ones(2, requires_grad=True) * 2,
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "subclass": lambda: torch.ones(2).as_subclass(type("Masked", (torch.Tensor,), {})),
    "function": lambda: lambda: None,
    "object": object,
}


@pytest.mark.parametrize("what", sorted(REFUSED))
@pytest.mark.filterwarnings("ignore")
def test_what_bytes_cannot_say_is_refused_by_path(what: str) -> None:
    with pytest.raises(CodecError) as caught:
        flatten({"opt": {"state": [1, REFUSED[what]()]}}, prefix="state")
    assert caught.value.path == "opt/state/1"


def test_small_torch_values_and_generators_come_back() -> None:
    tree = {
        "types": [torch.float32, torch.bfloat16, torch.strided, torch.channels_last, torch.Size([2, 3])],
        "device": torch.device("cuda", 1),
        "counter": collections.Counter({3: 2}),
    }
    assert same(through_bytes(tree), tree)

    streams = {
        "torch": torch.Generator().manual_seed(5),
        "python": random.Random(5),
        "numpy": [
            np.random.Generator(kind(5)) for kind in (np.random.PCG64, np.random.Philox, np.random.MT19937)
        ],
        "old": np.random.RandomState(5),
    }
    streams["python"].gauss(0, 1)  # type: ignore[attr-defined]
    streams["old"].standard_normal()  # type: ignore[attr-defined]
    back = through_bytes(streams)

    def draw(tree: Any) -> list[Any]:
        return [
            torch.rand(4, generator=tree["torch"]).tolist(),
            [tree["python"].gauss(0, 1) for _ in range(3)],
            [generator.random(3).tolist() for generator in tree["numpy"]],
            tree["old"].standard_normal(3).tolist(),
        ]

    assert draw(back) == draw(streams)


def test_a_document_that_lies_is_a_format_error() -> None:
    flat = flatten({"a": torch.ones(2)}, prefix="state")
    with pytest.raises(FormatError, match="state/a"):
        rebuild(flat.doc, {})
    for change in ({"v": 99}, {"v": None}, {"notes": None}, {"notes": {"state/a": 1}}, {"tree": {"$x": 1}}):
        doc = {**flat.doc, **change}
        with pytest.raises(FormatError):
            rebuild(doc, flat.tensors)


leaves = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=20)
    | st.complex_numbers()
    | st.builds(
        some_bits,
        st.sampled_from(sorted(TO_NAME, key=str)),
        st.lists(st.integers(0, 3), max_size=3).map(tuple),
    )
)  # fmt: skip
keys = st.text() | st.integers() | st.booleans() | st.none() | st.tuples(st.integers(), st.text())
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=3).map(collections.OrderedDict)
    ),
    max_leaves=12,
)


@settings(max_examples=120, deadline=None)
@given(trees)
def test_any_tree_comes_back(tree: Any) -> None:
    assert same(through_bytes(tree), tree)
