"""L5. From a root as users write it to the tier behind it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from durable_core.engine import probe
from durable_core.errors import UnsupportedError
from durable_core.tier.base import Tier
from durable_core.tier.posix import PosixTier


def open_tier(root: str | Path) -> Tier:
    """A directory, or a ``file://`` URL. ``UnsupportedError`` for any other scheme."""
    text = str(root)
    if "://" in text:
        url = urlsplit(text)
        if url.scheme != "file":
            raise UnsupportedError(
                f"{url.scheme}:// roots are not supported yet", hint="use a directory on a POSIX filesystem"
            )
        text = unquote(url.path)
    return PosixTier(Path(text).expanduser(), reached=probe.reached)
