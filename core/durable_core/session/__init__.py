"""L5. What adapters and plain training loops call."""

from durable_core.session.cadence import Cadence
from durable_core.session.plain import Drained, DurableSession
from durable_core.session.run import Loaded, Run
from durable_core.session.settings import Settings
from durable_core.session.status import Status
from durable_core.session.world import World

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
