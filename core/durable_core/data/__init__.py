"""L3. Data: identity, order, cursor, loader. Names are imported at first use, so that a reader of
cursors and manifests never waits for torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from durable_core.data.cursor import Cursor as Cursor
    from durable_core.data.cursor import Layout as Layout
    from durable_core.data.loader import DurableLoader as DurableLoader
    from durable_core.data.manifest import DatasetManifest as DatasetManifest
    from durable_core.data.order import FullPermutation as FullPermutation
    from durable_core.data.order import Order as Order
    from durable_core.data.order import Sequential as Sequential
    from durable_core.data.rng import SampleRng as SampleRng
    from durable_core.data.rng import sample_rng as sample_rng
    from durable_core.data.sampler import DurableSampler as DurableSampler

_HOME = {
    "Cursor": "cursor",
    "Layout": "cursor",
    "DurableLoader": "loader",
    "DatasetManifest": "manifest",
    "FullPermutation": "order",
    "Order": "order",
    "Sequential": "order",
    "DurableSampler": "sampler",
    "SampleRng": "rng",
    "sample_rng": "rng",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
