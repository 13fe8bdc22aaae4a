"""L3. Where every tensor of one state lies inside a slot."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from durable_core.errors import CodecError, FormatError
from durable_core.format.parts import slice_fault
from durable_core.format.shard import ITEMSIZE
from durable_core.state.dtypes import TO_NAME
from durable_core.state.slices import flat_begin, slice_bytes, split
from durable_core.types import SliceInfo, SliceKey

#: No machine has more memory than this many bytes; a seal that says so lies.
_MOST = 1 << 48


@dataclass(frozen=True)
class Placed:
    """One tensor's place in a slot: ``begin`` and ``nbytes`` are bytes from the first tensor's first byte."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    nbytes: int

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]


_form = operator.attrgetter("dtype", "shape", "is_cuda")  # in C: asked of every tensor at every save
_Form = tuple[torch.dtype, torch.Size, bool]


class Layout:
    """Tensors back to back. Immutable; equal states share one.

    ``slices``: sorted by key, then in row-major order. ``cuda``: some tensor came from a CUDA device.
    """

    def __init__(self, placed: Mapping[str, Placed], slices: Iterable[SliceKey]) -> None:
        self.placed = dict(placed)
        self.slices = tuple(slices)
        self.nbytes = sum(place.nbytes for place in self.placed.values())
        self.cuda = False
        self._keys: list[str] = []
        self._forms: list[_Form] = []

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Layout:
        """The widest elements first, then by key. ``CodecError`` names a tensor that cannot be stored."""
        forms = _forms(tensors)
        specs = [(key, dtype, tuple(shape)) for key, (dtype, shape, _) in zip(tensors, forms, strict=True)]
        placed: dict[str, Placed] = {}
        begin = 0
        for key, dtype, shape in sorted(specs, key=lambda spec: (-spec[1].itemsize, spec[0])):
            name = TO_NAME.get(dtype)
            if name is None:
                raise CodecError(key, f"tensors of {dtype} cannot be stored", hint="convert it before saving")
            placed[key] = Placed(name, shape, begin, math.prod(shape) * dtype.itemsize)
            begin += placed[key].nbytes
        slices = [
            piece
            for key in sorted(placed)
            for piece in split(key, placed[key].shape, placed[key].itemsize, slice_bytes(placed[key].nbytes))
        ]
        layout = cls(placed, slices)
        layout._keys, layout._forms = list(tensors), forms
        layout.cuda = any(cuda for _, _, cuda in forms)
        return layout

    @classmethod
    def sealed(cls, infos: Iterable[SliceInfo], *, key: str) -> Layout:
        """As a seal has it: ``infos`` in the order of their bytes. ``FormatError`` naming ``key`` when the
        slices of a tensor are not all of it, in one run."""
        placed: dict[str, Placed] = {}
        slices: list[tuple[str, int, SliceKey]] = []
        begin = 0
        for info in infos:
            piece, name = info.slice, info.slice.key
            if fault := slice_fault(info):
                raise FormatError(key, f"slice of {name!r} {fault}")
            if name not in placed:
                nbytes = math.prod(info.global_shape) * ITEMSIZE[info.dtype]
                placed[name] = Placed(info.dtype, info.global_shape, begin, nbytes)
            place = placed[name]
            here = place.begin + flat_begin(piece, place.shape) * place.itemsize
            if (info.dtype, info.global_shape) != (place.dtype, place.shape) or here != begin:
                raise FormatError(key, f"the slices of {name!r} are not in one run")
            slices.append((name, begin, piece))
            begin += info.nbytes
        layout = cls(placed, (piece for _, _, piece in sorted(slices, key=lambda entry: entry[:2])))
        if layout.nbytes != begin or begin > _MOST:
            raise FormatError(key, f"{begin} bytes of slices for tensors of {layout.nbytes}")
        return layout

    def fits(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether ``tensors`` have these keys, in this order, with these dtypes, shapes and devices."""
        return self._keys == list(tensors) and self._forms == _forms(tensors)

    def in_order(self) -> list[tuple[Placed, torch.dtype]]:
        """The places of the tensors in the order in which they were given, and their torch types."""
        return [(self.placed[key], dtype) for key, (dtype, _, _) in zip(self._keys, self._forms, strict=True)]

    def range(self, piece: SliceKey) -> tuple[int, int]:
        """Bytes of a slice, from and to."""
        place = self.placed[piece.key]
        begin = place.begin + flat_begin(piece, place.shape) * place.itemsize
        return begin, begin + math.prod(piece.shape) * place.itemsize


def _forms(tensors: Mapping[str, Tensor]) -> list[_Form]:
    return list(map(_form, tensors.values()))
