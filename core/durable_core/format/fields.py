"""L2. Reading the fields of a document: each with its type, none unknown, errors that name the place."""

from __future__ import annotations

import re
from typing import Any, NoReturn

from durable_core.errors import FormatError, UnknownVersionError
from durable_core.format import canonical, digests, layout

#: No length, offset or count in a document is larger.
MAX_COUNT = 2**63 - 1
UPGRADE = "written by a newer version; upgrade this one"


class Fields:
    """One JSON object in the document ``key``; ``where`` says which."""

    def __init__(self, value: Any, *, key: str, where: str = "the document") -> None:
        self.key = key
        self.where = where
        self.version: int | None = None
        if not isinstance(value, dict):
            self.fail("is not an object")
        self._left: dict[str, Any] = dict(value)

    def fail(self, reason: str) -> NoReturn:
        raise FormatError(self.key, f"{self.where} {reason}")

    def has(self, name: str) -> bool:
        """For a field that may be left out."""
        return name in self._left

    def any(self, name: str) -> Any:
        if name not in self._left:
            self.fail(f"lacks {name!r}")
        return self._left.pop(name)

    def count(self, name: str) -> int:
        value = self.any(name)
        if type(value) is not int or not 0 <= value <= MAX_COUNT:
            self.fail(f"field {name!r} is not an integer from 0 to 2**63 - 1")
        return value

    def count_or_null(self, name: str) -> int | None:
        return self.count(name) if self._left.get(name, 0) is not None else self.any(name)

    def flag(self, name: str) -> bool:
        value = self.any(name)
        if not isinstance(value, bool):
            self.fail(f"field {name!r} is not true or false")
        return value

    def text(self, name: str) -> str:
        value = self.any(name)
        if not isinstance(value, str):
            self.fail(f"field {name!r} is not a string")
        return value

    def matching(self, name: str, pattern: re.Pattern[str]) -> str:
        value = self.text(name)
        if not pattern.fullmatch(value):
            self.fail(f"field {name!r} is not {pattern.pattern}")
        return value

    def digest(self, name: str) -> str:
        return self.matching(name, digests.SHA256)

    def object_key(self, name: str) -> str:
        value = self.any(name)
        if fault := layout.key_fault(value):
            self.fail(f"field {name!r} is a bad key: {fault}")
        return str(value)

    def role(self, name: str) -> str:
        value = self.text(name)
        if not layout.is_role(value):
            self.fail(f"field {name!r} is not a role")
        return value

    def list(self, name: str) -> list[Any]:
        value = self.any(name)
        if not isinstance(value, list):
            self.fail(f"field {name!r} is not a list")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        value = self.any(name)
        if not isinstance(value, dict):
            self.fail(f"field {name!r} is not an object")
        return value

    def lengths(self, name: str) -> tuple[int, ...]:
        """A shape or offsets: at most 64 integers >= 0."""
        value = self.list(name)
        if len(value) > 64 or not all(type(item) is int and 0 <= item <= MAX_COUNT for item in value):
            self.fail(f"field {name!r} is not a list of at most 64 integers >= 0")
        return tuple(value)

    def inner(self, name: str, where: str) -> Fields:
        return Fields(self.any(name), key=self.key, where=where)

    def end(self) -> None:
        """Nothing may be left: an unknown field could mean something."""
        if self._left:
            self.fail(f"has unknown fields {sorted(self._left)}")


def versioned(
    data: bytes, *, key: str, version: int, oldest: int | None = None, limit: int = canonical.DEFAULT_LIMIT
) -> Fields:
    """The document's fields after its ``v``; ``UnknownVersionError`` unless that is ``version``, or one
    since ``oldest`` (``fields.version`` says which)."""
    fields = Fields(canonical.loads(data, key=key, limit=limit), key=key)
    found = fields.any("v")
    if type(found) is not int or not (version if oldest is None else oldest) <= found <= version:
        raise UnknownVersionError(key, f"version {found!r}", hint=UPGRADE)
    fields.version = found
    return fields
