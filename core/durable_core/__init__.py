"""durable_core: a training run that is killed at any instant continues as the same run.

The names below are the whole public face; they are imported on first use, so that the protocol and
the command line start without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from durable_core.commit.retention import Retention
    from durable_core.detect.policy import Integrity
    from durable_core.errors import DurableError
    from durable_core.session import DurableSession
    from durable_core.session.places import Disk, Memory, Peer, Tiers
    from durable_core.spec import RunSpec
    from durable_core.spec.goals import Goal
    from durable_core.types import Promise

__version__ = "0.1.0"

_HOME = {
    "Disk": "durable_core.session.places",
    "DurableError": "durable_core.errors",
    "DurableSession": "durable_core.session",
    "Goal": "durable_core.spec.goals",
    "Integrity": "durable_core.detect.policy",
    "Memory": "durable_core.session.places",
    "Peer": "durable_core.session.places",
    "Promise": "durable_core.types",
    "Retention": "durable_core.commit.retention",
    "RunSpec": "durable_core.spec",
    "Tiers": "durable_core.session.places",
}

__all__ = [
    "Disk", "DurableError", "DurableSession", "Goal", "Integrity", "Memory", "Peer", "Promise", "Retention",
    "RunSpec", "Tiers", "__version__",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'durable_core' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
