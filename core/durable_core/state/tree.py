"""L3. A live state tree as one typed document and a flat map of tensors, and back.

The document is what ``format.codec`` writes, with ``{"$tensor": key}`` where a tensor was. Keys are
paths (``state/model/layers.0.weight``), so a checkpoint reads like the state it came from; they do not
depend on ranks, devices or identities. What safetensors cannot say about a tensor is in ``notes``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from durable_core.errors import CodecError, FormatError, UnknownVersionError
from durable_core.format import codec
from durable_core.state import registered as registered  # teaches the codec torch's types
from durable_core.state.dtypes import TO_NAME

VERSION = 1
_AS_REAL = {torch.complex128: "complex128", torch.complex32: "complex32"}  # stored as pairs of reals
_STORABLE = {*TO_NAME, *_AS_REAL}
_PLAIN_TYPES = {Tensor, torch.nn.Parameter}

Document: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Flat:
    """``doc`` is JSON (for ``format.canonical``); ``tensors`` are the live tensors themselves, not copies."""

    doc: Document
    tensors: dict[str, Tensor]


def flatten(tree: Any, *, prefix: str) -> Flat:
    """Take ``tree`` apart. Every tensor's key is ``prefix``, ``/``, and its escaped path.

    Tensors that are the same memory seen the same way (tied weights) are stored once, under the path met
    first. Raises ``CodecError`` naming the path of a value or a kind of tensor that cannot be stored.
    """
    collector = _Collector(prefix)
    document = codec.encode(tree, leaf=collector)
    return Flat({"v": VERSION, "tree": document, "notes": collector.notes}, collector.tensors)


def rebuild(doc: Document, tensors: Mapping[str, Tensor], *, key: str = "<document>") -> Any:
    """The tree that ``flatten`` took apart, around ``tensors`` (not copied; tied ones are one object again).

    ``key`` names the document in errors. Raises ``FormatError`` for a malformed document or a tensor
    that is not there, ``UnknownVersionError`` for one of another version, ``CodecError`` for a type that
    nobody registered.
    """
    if not isinstance(doc, dict) or type(doc.get("v")) is not int:
        raise FormatError(key, "not a state document")
    if doc["v"] != VERSION:
        raise UnknownVersionError(key, f"a state document of version {doc['v']}, and {VERSION} is known here")
    notes = doc.get("notes")
    if not isinstance(notes, dict):
        raise FormatError(key, "a state document without notes")
    built: dict[str, Tensor] = {}

    def leaf(name: str) -> Tensor:
        if name not in built:
            if name not in tensors:
                raise FormatError(key, f"tensor {name!r} is missing")
            built[name] = _annotated(tensors[name], notes.get(name, {}), name)
        return built[name]

    return codec.decode(doc.get("tree"), leaf=leaf, key=key)


class _Collector:
    """The codec's leaf: gives each tensor a key, and the same key to the same memory.

    It runs on the training thread, once per tensor and save, so attributes that torch computes on
    each access are asked for only where they can matter.
    """

    def __init__(self, prefix: str) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.notes: dict[str, dict[str, Any]] = {}
        self._prefix = prefix
        # By address. An address identifies memory only while its tensor lives, so the tensors are kept.
        self._known: dict[int, list[tuple[Tensor, str]]] = {}

    def __call__(self, value: Any, path: str) -> str | None:
        if not isinstance(value, Tensor):
            return None
        if _is_special(value):
            _refuse(value, path)
        here = self._known.setdefault(value.data_ptr(), [])
        for other, known in here:
            if _same_view(other, value):
                return known
        key = self._fresh(path)
        here.append((value, key))
        plain = value.detach() if value.requires_grad else value
        self.tensors[key] = torch.view_as_real(plain.resolve_conj()) if value.dtype in _AS_REAL else plain
        note = _note(value)
        if note:
            self.notes[key] = note
        return key

    def _fresh(self, path: str) -> str:
        """A key for ``path``; the codec's paths are readable rather than unique (``0`` and ``"0"``)."""
        key = base = f"{self._prefix}/{_escape(path)}"
        count = 1
        while key in self.tensors:
            count += 1
            key = f"{base}~{count}"
        return key


def _is_special(value: Tensor) -> bool:
    """Whether this may be a tensor that ``_refuse`` refuses; false for nearly all."""
    return (
        type(value) not in _PLAIN_TYPES
        or value.layout is not torch.strided
        or value.dtype not in _STORABLE
        or value.is_nested
        or value.is_meta
        or (value.requires_grad and value.grad_fn is not None)
    )


def _refuse(value: Tensor, path: str) -> None:
    """``CodecError`` for a tensor whose bytes do not say all there is to it."""
    if type(value) not in _PLAIN_TYPES:
        name = type(value).__name__
        raise CodecError(path, f"a {name} cannot be stored", hint="save what it wraps as plain tensors")
    if value.is_nested or value.layout is not torch.strided:
        kind = "nested" if value.is_nested else str(value.layout)
        raise CodecError(path, f"a {kind} tensor cannot be stored", hint="save its dense parts")
    if value.is_quantized:
        raise CodecError(path, "a quantized tensor cannot be stored", hint="save int_repr() and its scales")
    if value.is_meta:
        raise CodecError(path, "a meta tensor has no bytes", hint="materialise the module before saving")
    if value.grad_fn is not None:
        raise CodecError(path, "this tensor is part of an autograd graph", hint="detach() it in state_dict()")
    raise CodecError(path, f"tensors of {value.dtype} cannot be stored", hint="convert it before saving")


def _same_view(one: Tensor, two: Tensor) -> bool:
    """The same memory seen the same way, given that both begin at one address."""
    if one is two:
        return True
    if one.numel() == 0 or two.numel() == 0:  # no memory to share
        return False
    return (
        one.shape == two.shape
        and one.stride() == two.stride()
        and one.dtype == two.dtype
        and one.device == two.device
        and one.is_conj() == two.is_conj()
        and one.is_neg() == two.is_neg()
        and one.requires_grad == two.requires_grad
        and type(one) is type(two)
    )


def _note(value: Tensor) -> dict[str, Any]:
    note: dict[str, Any] = {}
    if value.dtype in _AS_REAL:
        note["dtype"] = _AS_REAL[value.dtype]
    if type(value) is torch.nn.Parameter:
        note["parameter"] = True
    if value.requires_grad:
        note["grad"] = True
    if not value.is_cpu:
        note["device"] = value.device.type  # a hint; without the index, which is a rank in disguise
    return note


def _annotated(tensor: Tensor, note: Any, name: str) -> Tensor:
    if not isinstance(note, dict):
        raise FormatError(name, "malformed note")
    if not note:
        return tensor
    if note.get("dtype") in _AS_REAL.values():
        tensor = torch.view_as_complex(tensor)
    grad = note.get("grad") is True
    if note.get("parameter") is True:
        return torch.nn.Parameter(tensor, requires_grad=grad)
    return tensor.detach().requires_grad_() if grad else tensor


def _escape(path: str) -> str:
    """Keys are printable UTF-8; ``@`` is kept for shard names. The codec has escaped ``%`` already."""
    if path.isprintable() and "@" not in path:
        return path
    return "".join(char if char.isprintable() and char != "@" else f"%{ord(char):02X}" for char in path)
