"""L5. From a root as users write it to the tier behind it."""

from __future__ import annotations

from pathlib import Path

from durable_core.engine import probe
from durable_core.engine.inspect import local_path
from durable_core.tier.base import Tier
from durable_core.tier.posix import PosixTier


def open_tier(root: str | Path) -> Tier:
    """A directory, or a ``file://`` URL. ``UnsupportedError`` for any other scheme."""
    return PosixTier(local_path(root), reached=probe.reached)
