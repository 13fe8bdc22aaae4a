"""L3. A loader that counts what was trained, not what was fetched."""

from durable_core.data.loader.loader import DurableLoader

__all__ = ["DurableLoader"]
