"""L5. What adapters and plain training loops call.

The names are imported on first use: the arithmetic of the cadence is asked for without torch as well.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from durable_core.session.cadence import Cadence
    from durable_core.session.plain import Drained, DurableSession
    from durable_core.session.restoring import Loaded
    from durable_core.session.run import Run
    from durable_core.session.settings import Settings
    from durable_core.session.status import Status
    from durable_core.session.world import World

_HOME = {
    "Cadence": "cadence",
    "Drained": "plain",
    "DurableSession": "plain",
    "Loaded": "restoring",
    "Run": "run",
    "Settings": "settings",
    "Status": "status",
    "World": "world",
}

__all__ = [
    "Cadence",
    "Drained",
    "DurableSession",
    "Loaded",
    "Run",
    "Settings",
    "Status",
    "World",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
