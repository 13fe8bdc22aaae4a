"""Durable training for Accelerate: not built yet.

The names this package will export are reserved, and using one says so and names what works today.
"""

from __future__ import annotations

from typing import NoReturn

from durable_core.errors import UnsupportedError

_PLANNED = ("Accelerator", "attach")


def __getattr__(name: str) -> NoReturn:
    if name in _PLANNED:
        raise UnsupportedError(
            f"accelerate_durable.{name} is not built yet",
            hint="use durable_core.DurableSession in the loop, or lightning_durable.DurableCheckpoint",
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
