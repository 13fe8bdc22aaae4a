"""Ways to damage a document, and the rule of every decoder: refuse it, typed, named, in little memory."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from durable_core.errors import CodecError, CorruptError

#: Bytes beyond a few copies of the document: what Python needs for the error itself.
SLACK = 1_000_000

Decoder = Callable[[bytes], Any]


def refused(decode: Decoder, data: bytes, *, key: str, why: str | None = None) -> CorruptError:
    """``decode`` raises a ``CorruptError`` for ``data`` that names ``key``, and allocates little."""
    tracemalloc.start()
    try:
        with pytest.raises(CorruptError, match=why) as caught:
            decode(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.key == key and key in str(caught.value)
    assert peak < SLACK + 40 * len(data), f"{peak} bytes allocated for a document of {len(data)}"
    return caught.value


def survives_damage(decode: Decoder, data: bytes, *, key: str, stride: int = 1) -> None:
    """Truncated anywhere it is refused; with a bit flipped anywhere it is refused or has another value."""
    for end in range(0, len(data), stride):
        with pytest.raises(CorruptError):
            decode(data[:end])
    for at in range(0, len(data), stride):
        damaged = bytearray(data)
        damaged[at] ^= 1 << (at % 8)
        try:
            decode(bytes(damaged))
        except (CorruptError, CodecError):
            continue


def mutations(document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The document with each of its values, at any depth, replaced by what does not belong there."""
    numbers = [-1, 2**63, 10**30, 1.5]
    strangers = [None, True, *numbers, "", "../../etc/passwd", [], {}, [[]], {"$obj": ["os.system", "x"]}]
    for path in _paths(document):
        for stranger in strangers:
            yield f"{path} = {stranger!r}", _replaced(document, path, stranger)
        yield f"{path} missing", _replaced(document, path, _MISSING)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    children: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, (dict, list)):
        children = value.items() if isinstance(value, dict) else enumerate(value)
    for name, child in children:
        yield (*path, name)
        yield from _paths(child, (*path, name))


_MISSING = object()


def _replaced(value: Any, path: tuple[Any, ...], stranger: Any) -> Any:
    copy = json.loads(json.dumps(value))
    target = copy
    for name in path[:-1]:
        target = target[name]
    if stranger is _MISSING:
        del target[path[-1]]
    else:
        target[path[-1]] = stranger
    return copy


class Bomb:
    """Unpickling this leaves a file behind."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return Path.write_text, (self.trace, "executed")


def pickle_bombs(trace: Path) -> list[bytes]:
    """A pickle that leaves ``trace`` behind, in every protocol."""
    return [pickle.dumps(Bomb(trace), protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
