"""L3. Orders that take a setting, as a user asks for them: small descriptions, made real by the loader."""

from __future__ import annotations

from dataclasses import dataclass

from durable_core.data.numbers import whole


@dataclass(frozen=True)
class BlockShuffle:
    """``block_prp_v1``: objects permuted, records permuted within windows of ``window`` objects.

    For data read by the object (shard, row group, file); needs a dataset with ``blocks``, records per object.
    """

    window: int = 8

    def __post_init__(self) -> None:
        object.__setattr__(self, "window", whole("window", self.window, 1))


@dataclass(frozen=True)
class BufferedShuffle:
    """``buffered_v1``: objects permuted, records through a bounded buffer of ``size`` ids, which is state.

    No permutation of all records: how far a record can move is bounded by the buffer. Needs ``blocks``
    too.
    """

    size: int = 1024

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", whole("size", self.size, 1))
