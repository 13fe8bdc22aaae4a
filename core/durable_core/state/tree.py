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

from durable_core.errors import CodecError, FormatError
from durable_core.format import codec
from durable_core.state import registered as registered  # teaches the codec torch's types
from durable_core.state.dtypes import TO_NAME

VERSION = 1
_AS_REAL = {torch.complex128: "complex128", torch.complex32: "complex32"}  # stored as pairs of reals

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
    that is not there, ``CodecError`` for a type that nobody registered.
    """
    if not isinstance(doc, dict) or doc.get("v") != VERSION:
        raise FormatError(key, "not a state document of a version known here")
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
    """The codec's leaf: gives each tensor a key, and the same key to the same memory."""

    def __init__(self, prefix: str) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.notes: dict[str, dict[str, Any]] = {}
        self._prefix = prefix
        self._keys: dict[tuple[Any, ...], str] = {}
        self._kept: list[Tensor] = []  # an address identifies a tensor only while the tensor lives

    def __call__(self, value: Any, path: str) -> str | None:
        if not isinstance(value, Tensor):
            return None
        _refuse(value, path)
        identity = _identity(value)
        known = self._keys.get(identity)
        if known is not None:
            return known
        key = self._fresh(path)
        note = _note(value)
        if note:
            self.notes[key] = note
        plain = value.detach()
        self._kept.append(value)
        self.tensors[key] = torch.view_as_real(plain.resolve_conj()) if value.dtype in _AS_REAL else plain
        self._keys[identity] = key
        return key

    def _fresh(self, path: str) -> str:
        """A key for ``path``; the codec's paths are readable rather than unique (``0`` and ``"0"``)."""
        key = base = f"{self._prefix}/{_escape(path)}"
        count = 1
        while key in self.tensors:
            count += 1
            key = f"{base}~{count}"
        return key


def _refuse(value: Tensor, path: str) -> None:
    """``CodecError`` for a tensor whose bytes do not say all there is to it."""
    name = type(value).__name__
    if type(value) not in (Tensor, torch.nn.Parameter):
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
    if value.dtype not in TO_NAME and value.dtype not in _AS_REAL:
        raise CodecError(path, f"tensors of {value.dtype} cannot be stored", hint="convert it before saving")


def _identity(value: Tensor) -> tuple[Any, ...]:
    if value.numel() == 0:
        return (id(value),)
    view = (value.shape, value.stride(), value.dtype, value.is_conj(), value.is_neg())
    return (value.data_ptr(), value.device, *view, value.requires_grad, type(value))


def _note(value: Tensor) -> dict[str, Any]:
    note: dict[str, Any] = {}
    if value.dtype in _AS_REAL:
        note["dtype"] = _AS_REAL[value.dtype]
    if type(value) is torch.nn.Parameter:
        note["parameter"] = True
    if value.requires_grad:
        note["grad"] = True
    if value.device.type != "cpu":
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
    if path.isalnum() or all(char.isprintable() and char != "@" for char in path):
        return path
    return "".join(char if char.isprintable() and char != "@" else f"%{ord(char):02X}" for char in path)
