from __future__ import annotations

import pytest
import torch

from durable_core.errors import FormatError
from durable_core.state.dtypes import TO_TORCH
from durable_core.state.memory import alloc, writable


@pytest.mark.parametrize("name", sorted(TO_TORCH))
@pytest.mark.parametrize("shape", [(), (0, 4), (3, 2)])
def test_bytes_written_to_the_view_are_the_tensor(name: str, shape: tuple[int, ...]) -> None:
    tensor = alloc({"t": (name, shape)}, budget=1024)["t"]
    view = writable(tensor)
    assert not view.readonly and view.nbytes == tensor.numel() * TO_TORCH[name].itemsize
    view[:] = bytes(len(view))
    assert not tensor.reshape(-1).view(torch.uint8).any()
    assert (tensor.dtype, tuple(tensor.shape)) == (TO_TORCH[name], shape)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("F32", (10_000_000_000,)),
        ("F32", (2**40, 2**40)),
        ("F32", (-1,)),
        ("F32", (-2, -2)),
        ("F32", (True,)),
        ("F32", (1,) * 65),
        ("F31", (1,)),
    ],
)
def test_a_claim_that_lies_allocates_nothing(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(FormatError) as caught:
        alloc({"small": ("U8", (1,)), "liar": (name, shape)}, budget=1 << 20)
    assert caught.value.key == "liar"


def test_the_budget_is_for_all_claims_together() -> None:
    claims = {str(i): ("U8", (100,)) for i in range(10)}
    assert len(alloc(claims, budget=1000)) == 10
    with pytest.raises(FormatError):
        alloc(claims, budget=999)
