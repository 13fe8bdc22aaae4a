"""L3. Data: identity, order, cursor, loader. Names are imported at first use, so that a reader of
cursors and manifests never waits for torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from durable_core.data.cache import DataCache as DataCache
    from durable_core.data.cursor import Cursor as Cursor
    from durable_core.data.layout import Layout as Layout
    from durable_core.data.loader import DurableLoader as DurableLoader
    from durable_core.data.loader.packed_stream import PackedStream as PackedStream
    from durable_core.data.loader.window_shuffle import WindowShuffle as WindowShuffle
    from durable_core.data.manifest import DatasetManifest as DatasetManifest
    from durable_core.data.mixture import Mixture as Mixture
    from durable_core.data.order import FullPermutation as FullPermutation
    from durable_core.data.order import Order as Order
    from durable_core.data.order import Sequential as Sequential
    from durable_core.data.packing import Packing as Packing
    from durable_core.data.records import RecordDataset as RecordDataset
    from durable_core.data.rng import SampleRng as SampleRng
    from durable_core.data.rng import sample_rng as sample_rng
    from durable_core.data.sampler import DurableSampler as DurableSampler
    from durable_core.data.shuffle import BlockShuffle as BlockShuffle
    from durable_core.data.shuffle import BufferedShuffle as BufferedShuffle

_HOME = {
    "DataCache": "cache",
    "Cursor": "cursor",
    "Layout": "layout",
    "DurableLoader": "loader",
    "PackedStream": "loader.packed_stream",
    "WindowShuffle": "loader.window_shuffle",
    "DatasetManifest": "manifest",
    "Mixture": "mixture",
    "FullPermutation": "order",
    "Order": "order",
    "Sequential": "order",
    "Packing": "packing",
    "RecordDataset": "records",
    "SampleRng": "rng",
    "sample_rng": "rng",
    "DurableSampler": "sampler",
    "BlockShuffle": "shuffle",
    "BufferedShuffle": "shuffle",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
