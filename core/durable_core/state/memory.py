"""L3. Destinations for a restore: tensors whose memory is read into directly, within a budget."""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from durable_core.errors import FormatError
from durable_core.state.dtypes import TO_TORCH

MAX_DIMENSIONS = 64  # torch's own limit
_HUGE = 2 << 20


def alloc(
    claims: Mapping[str, tuple[str, tuple[int, ...]]], *, budget: int, device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """Uninitialised contiguous tensors for ``claims``: key -> (safetensors dtype name, shape).

    The claims come from a document that may lie, so all of them are checked before the first byte is
    allocated: ``FormatError`` for an unknown dtype, a negative or absurd shape, or a total above
    ``budget`` bytes.
    """
    total = 0
    for key, (name, shape) in claims.items():
        total += _claimed_bytes(key, name, shape)
        if total > budget:
            raise FormatError(key, f"claims bring the total to {total} bytes, more than the {budget} allowed")
    tensors = {
        key: torch.empty(shape, dtype=TO_TORCH[name], device=device) for key, (name, shape) in claims.items()
    }
    for tensor in tensors.values():
        _use_huge_pages(tensor)
    return tensors


def writable(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor of any dtype, to be read into. Shares its memory."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def _use_huge_pages(tensor: Tensor) -> None:
    """Memory touched for the first time costs more than the read; in large pages half as much."""
    begin, nbytes = tensor.data_ptr(), tensor.nbytes
    if tensor.device.type != "cpu" or nbytes < 2 * _HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    start = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    whole = (begin + nbytes - start) // mmap.PAGESIZE * mmap.PAGESIZE
    _madvise()(start, whole, mmap.MADV_HUGEPAGE)  # advice: nothing depends on whether it is taken


@functools.cache
def _madvise() -> Callable[[int, int, int], int]:
    call = ctypes.CDLL(None).madvise
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    call.restype = ctypes.c_int
    advise: Callable[[int, int, int], int] = call
    return advise


def _claimed_bytes(key: str, name: str, shape: tuple[int, ...]) -> int:
    dtype = TO_TORCH.get(name)
    if dtype is None:
        raise FormatError(key, f"dtype {name!r} is not one this torch can hold")
    if len(shape) > MAX_DIMENSIONS or any(type(length) is not int or length < 0 for length in shape):
        raise FormatError(key, f"{shape!r} is not a shape")
    return math.prod(shape) * dtype.itemsize
