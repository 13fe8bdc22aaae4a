"""L4. From a root as users write it to the tier behind it."""

from __future__ import annotations

from pathlib import Path

from durable_core.engine import probe
from durable_core.engine.inspect import local_path
from durable_core.tier.base import Tier
from durable_core.tier.posix import PosixTier
from durable_core.tier.remote import is_remote, open_remote


def open_root(root: str | Path) -> Tier:
    """A directory, a ``file://`` URL, or an object store's (``s3://bucket/prefix``).

    ``UnsupportedError`` for any other scheme, and for an object store without its client installed."""
    if is_remote(root):
        return open_remote(str(root), reached=probe.reached)
    return PosixTier(local_path(root), reached=probe.reached)


def named(root: str | Path) -> str:
    """``root`` for another process, whatever its working directory: an absolute path, or the URL."""
    return str(root) if is_remote(root) else str(local_path(root).absolute())
