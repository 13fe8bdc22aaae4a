"""L5. What an adapter sets on objects of its framework, and takes off again."""

from __future__ import annotations

from typing import Any

_ABSENT: Any = object()


class Wrappers:
    """``remove`` takes them off, the last one first, whatever else happened."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, wrapper: Any) -> None:
        """As attribute ``name`` of ``owner``: an instance, whose class is not touched, or a module."""
        self._undo.append((owner, name, owner.__dict__.get(name, _ABSENT)))
        setattr(owner, name, wrapper)

    def remove(self) -> None:
        while self._undo:
            owner, name, previous = self._undo.pop()
            if previous is _ABSENT:
                owner.__dict__.pop(name, None)
            else:
                setattr(owner, name, previous)
