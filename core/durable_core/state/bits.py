"""L3. A digest of tensors that is computed where they lie: equal bits give equal digests, on every device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from durable_core.format import digests

#: bytes of an element -> the integers that its bits are read as
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def sums(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, int]:
    """For each name the sum of the tensor's elements read as integers, modulo 2**64.

    Sums of integers do not depend on their order, so they are the same on all devices. One element that
    differs always shows; differences that cancel do not. Every tensor is read once and nothing is copied but
    one number each, together: a device is waited for once.
    """
    names, found = [], []
    for name, tensor in tensors:
        names.append(name)
        found.append(_sum(tensor))
    if not found:
        return {}
    device = found[0].device
    return dict(zip(names, torch.stack([one.to(device) for one in found]).tolist(), strict=True))


def digest(of: Mapping[str, int]) -> str:
    """One digest of ``sums``: 32 hex digits."""
    return digests.xxh3(repr(sorted(of.items())).encode())


def gradients(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """The digest of the gradients; those that have none are left out."""
    return digest(sums((name, tensor.grad) for name, tensor in tensors if tensor.grad is not None))


@torch.no_grad()
def _sum(tensor: Tensor) -> Tensor:
    flat = tensor.detach()
    if flat.layout is not torch.strided:
        flat = flat.to_dense()
    if flat.is_complex():
        flat = torch.view_as_real(flat)
    flat = flat.contiguous().view(-1)
    return flat.view(_INTEGERS[flat.element_size()]).sum(dtype=torch.int64)
