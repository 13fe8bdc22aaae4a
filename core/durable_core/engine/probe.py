"""L4. Named crash points: nothing in production, a place to kill in tests."""

from __future__ import annotations

from collections.abc import Callable

from durable_core.types import CrashPoint

_hook: Callable[[CrashPoint], None] | None = None


def install(hook: Callable[[CrashPoint], None] | None) -> None:
    """Call ``hook`` at every crash point from now on; ``None`` removes it."""
    global _hook
    _hook = hook


def reached(point: CrashPoint) -> None:
    if _hook is not None:
        _hook(point)
