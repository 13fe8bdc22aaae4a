"""L2. Typed JSON: every value that is not a tensor, exactly, and back, without pickle.

None, true, false, strings, floats, integers within +-2**53 and lists are themselves. A dict whose keys
are strings in sorted order, none starting with ``$``, is an object. Everything else is an object with
one key, its tag: ``{"$tuple": [...]}``, ``{"$dict": [[key, value], ...]}``, ``{"$obj": [name, value]}``.

Only exact types are encoded; a subclass could hide state or behaviour, so it must be registered.
Names in a document are looked up in the registry and nowhere else: nothing is ever imported or
called by name. Decoding allocates in proportion to the document. Values that are shared between
two places come back as two values; a value within itself is refused.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from durable_core.errors import CodecError, FormatError, UsageError
from durable_core.format import codec_builtins as builtins
from durable_core.format import codec_numpy
from durable_core.format.codec_parts import join, listed

T = TypeVar("T")

#: Containers inside containers. Three JSON levels each at most, so ``canonical.MAX_DEPTH`` holds.
MAX_DEPTH = 60

#: Given a value of a type the codec does not know and its path, its tensor key, or ``None``: not mine.
LeafEncoder = Callable[[Any, str], "str | None"]
#: Given a tensor key, the tensor.
LeafDecoder = Callable[[str], Any]

REGISTER_HINT = "durable_core.format.codec.register(type, name, encode, decode) makes it storable"


@dataclass(frozen=True)
class Registered:
    """How values of one type are stored: ``encode`` to a value the codec knows, ``decode`` back."""

    type: type
    name: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


class Registry:
    """Types and defaultdict factories that a document may name."""

    def __init__(self) -> None:
        self._by_type: dict[type, Registered] = {}
        self._by_name: dict[str, Registered] = {}
        self._factories: dict[str, Callable[[], Any]] = {}

    def register(
        self,
        type_: type[T],
        name: str,
        encode: Callable[[T], Any] | None = None,
        decode: Callable[[Any], T] | None = None,
    ) -> None:
        """Make values of exactly ``type_`` storable under ``name``, which stays the same for ever.

        ``encode`` returns a value the codec knows, ``decode`` takes it back; both are left out for an
        ``enum.Enum`` (stored by member name). ``UsageError`` when the name or type is taken by another.
        """
        if (encode is None) != (decode is None):
            raise UsageError(f"registering {name!r}: give both encode and decode, or neither")
        if encode is None or decode is None:
            if not issubclass(type_, enum.Enum):
                raise UsageError(f"registering {name!r}: only an Enum needs no encode and decode")
            entry = Registered(type_, name, lambda member: member.name, lambda name: type_[name])
        else:
            entry = Registered(type_, name, encode, decode)
        for known in (self._by_type.get(type_), self._by_name.get(name)):
            if known is not None and (known.name != name or not _same_type(known.type, type_)):
                clash = f"{known.type!r} as {known.name!r}"
                raise UsageError(f"{type_.__qualname__} as {name!r} clashes with {clash}")
        if (known := self._by_name.get(name)) is not None:
            del self._by_type[known.type]
        self._by_type[type_] = self._by_name[name] = entry

    def register_factory(self, name: str, factory: Callable[[], Any]) -> None:
        """Let ``defaultdict(factory)`` be stored, naming the factory ``name``."""
        if self._factories.setdefault(name, factory) is not factory:
            raise UsageError(f"factory name {name!r} is taken")

    def of_type(self, type_: type) -> Registered | None:
        return self._by_type.get(type_)

    def named(self, name: str) -> Registered | None:
        return self._by_name.get(name)

    def factory_name(self, factory: Callable[[], Any]) -> str | None:
        return next((name for name, known in self._factories.items() if known is factory), None)

    def factory(self, name: str) -> Callable[[], Any] | None:
        return self._factories.get(name)


DEFAULT = Registry()
register = DEFAULT.register
register_factory = DEFAULT.register_factory
for _factory in (list, dict, set, tuple, int, float, str, bool):
    register_factory(_factory.__name__, _factory)


def encode(value: Any, *, leaf: LeafEncoder | None = None, registry: Registry = DEFAULT) -> Any:
    """``value`` as a JSON value for ``canonical.dumps``.

    ``leaf`` is asked about each value of a type the codec does not know; it returns the key that
    stands for it (``{"$tensor": key}``). Raises ``CodecError`` with the path (``optimizer/state/0``) of
    what cannot be stored.
    """
    return Encoder(registry, leaf).encode(value, "", 0)


def decode(
    document: Any,
    *,
    leaf: LeafDecoder | None = None,
    key: str = "<document>",
    registry: Registry = DEFAULT,
) -> Any:
    """The value of a typed JSON document; ``key`` names it in errors.

    Raises ``FormatError`` for a malformed document and ``CodecError`` for a name that is not registered.
    """
    return Decoder(registry, leaf, key).decode(document, "", 0)


class Encoder:
    def __init__(self, registry: Registry, leaf: LeafEncoder | None) -> None:
        self.registry = registry
        self._leaf = leaf
        self._open: set[int] = set()  # containers being encoded, by id

    def encode(self, value: Any, path: str, depth: int) -> Any:
        kind = type(value)
        if value is None or kind is bool:
            return value
        builtin = builtins.ENCODERS.get(kind)
        if builtin is not None and kind not in builtins.CONTAINERS:
            return builtin(self, value, path, depth)
        if depth > MAX_DEPTH:
            raise CodecError(path, f"nested deeper than {MAX_DEPTH} levels")
        if id(value) in self._open:
            raise CodecError(path, "contains itself")
        self._open.add(id(value))
        try:
            if builtin is not None:
                return builtin(self, value, path, depth + 1)
            return self._other(value, path, depth + 1)
        finally:
            self._open.discard(id(value))

    def _other(self, value: Any, path: str, depth: int) -> Any:
        entry = self.registry.of_type(type(value))
        if entry is not None:
            return {"$obj": [entry.name, self.encode(entry.encode(value), path, depth)]}
        tensor_key = self._leaf(value, path) if self._leaf is not None else None
        if tensor_key is not None:
            return {"$tensor": tensor_key}
        found = codec_numpy.encode_by_base(value, path)
        if found is not None:
            return found
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        raise CodecError(path, f"a value of type {name} cannot be stored", hint=REGISTER_HINT)


class Decoder:
    def __init__(self, registry: Registry, leaf: LeafDecoder | None, key: str) -> None:
        self.registry = registry
        self.key = key
        self._leaf = leaf

    def decode(self, document: Any, path: str, depth: int) -> Any:
        if isinstance(document, (str, int, float)) or document is None:
            return document
        if depth > MAX_DEPTH:
            raise self.fault(path, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(document, list):
            return [self.decode(item, join(path, i), depth + 1) for i, item in enumerate(document)]
        if not isinstance(document, dict):
            raise self.fault(path, f"{type(document).__name__} is not JSON")
        tag = next((name for name in document if name.startswith("$")), None)
        if tag is None:
            return {name: self.decode(item, join(path, name), depth + 1) for name, item in document.items()}
        if len(document) != 1:
            raise self.fault(path, f"tag {tag!r} beside other keys")
        return self._tagged(tag, document[tag], path, depth + 1)

    def fault(self, path: str, reason: str) -> FormatError:
        return FormatError(self.key, f"at {path or '<root>'}: {reason}")

    def _tagged(self, tag: str, body: Any, path: str, depth: int) -> Any:
        if tag == "$tensor":
            return self._tensor(body, path)
        builtin = builtins.DECODERS.get(tag)
        if builtin is None and tag != "$obj":
            raise self.fault(path, f"unknown tag {tag!r}")
        try:
            if builtin is not None:
                return builtin(self, body, path, depth)
            return self._registered(body, path, depth)
        except (TypeError, ValueError, LookupError, OverflowError) as error:
            raise self.fault(path, f"malformed {tag}: {error}") from error

    def _tensor(self, body: Any, path: str) -> Any:
        if not isinstance(body, str):
            raise self.fault(path, "a tensor's key is not a string")
        if self._leaf is None:
            raise self.fault(path, "a tensor where none may be")
        return self._leaf(body)

    def _registered(self, body: Any, path: str, depth: int) -> Any:
        name, content = listed(body, 2)
        entry = self.registry.named(name)
        if entry is None:
            raise CodecError(path, f"type {name!r} is not registered here", hint=REGISTER_HINT)
        return entry.decode(self.decode(content, path, depth))


def _same_type(one: type, two: type) -> bool:
    """The same class, or the same class defined again (a notebook cell run twice)."""
    return one is two or (one.__module__, one.__qualname__) == (two.__module__, two.__qualname__)
