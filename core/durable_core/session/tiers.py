"""L5. The tier behind a root, under the name that sessions know it by."""

from __future__ import annotations

from durable_core.engine.roots import open_root as open_tier

__all__ = ["open_tier"]
