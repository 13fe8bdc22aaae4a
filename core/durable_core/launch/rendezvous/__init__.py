"""L5. A rendezvous after which a group starts clean: its generation claimed, its store fresh.

``plugin`` is the entry point ``torchrun.handlers: durable``; ``durable launch`` uses the same handler.
"""

from __future__ import annotations

from durable_core.launch.rendezvous.handler import Restart, RunRendezvous
from durable_core.launch.rendezvous.logs import KeptLogs
from durable_core.launch.rendezvous.plugged import create_handler, plugin

__all__ = ["KeptLogs", "Restart", "RunRendezvous", "create_handler", "plugin"]
