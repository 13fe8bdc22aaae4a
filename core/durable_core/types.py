"""L0. Frozen value types and enumerations that every layer shares.

What there are thousands of in a save (slices, and where they lie) are named tuples, which are made, compared
and hashed several times as fast as dataclasses.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class Promise(str, enum.Enum):
    """What a resume guarantees, strongest first; each implies the ones after it."""

    BITWISE = "bitwise"
    EXACT_ORDER = "exact-order"
    COVERAGE = "coverage"
    DISTRIBUTION = "distribution"

    @property
    def strength(self) -> int:
        return {"bitwise": 3, "exact-order": 2, "coverage": 1, "distribution": 0}[self.value]

    def implies(self, other: Promise) -> bool:
        return self.strength >= other.strength


class CrashPoint(str, enum.Enum):
    """Instants at which a process may die; REQUIREMENTS §6.4 says what a reader then sees."""

    K0 = "before allocate"
    K1 = "allocate appended, acknowledgement not seen"
    K2 = "allocated, before staging"
    K3 = "in the middle of staging"
    K4 = "staged, not sealed by all writers"
    K5 = "sealed by all writers, nothing durable"
    K6 = "in the middle of writing a shard"
    K7 = "shard written, not yet fsynced"
    K8 = "some writers finished"
    K9 = "all receipts written, before verify"
    K10 = "verified, before the manifest"
    K11 = "in the middle of writing the manifest"
    K12 = "manifest durable, no commit record"
    K13 = "commit record sent, acknowledgement not seen"
    K14 = "commit sent by a stale writer"
    K15 = "commit durable, hint not updated"
    K16 = "hint written by a slower, older writer"
    K17 = "committed in some tiers only"
    K18 = "in the middle of a collection"
    K19 = "damaged after the commit"
    K20 = "coordinator dead, other writers alive"
    K21 = "storage acknowledged and lost"


class CheckpointState(str, enum.Enum):
    ALLOCATED = "allocated"
    COMMITTED = "committed"
    CORRUPT = "corrupt"
    RETIRED = "retired"
    ABORTED = "aborted"
    ABANDONED = "abandoned"  # committed, but not on the lineage of the head


@dataclass(frozen=True)
class Token:
    """The right to write: learnt once at start, never re-read (FENCE-11)."""

    generation: int
    launch_id: str


class SliceKey(NamedTuple):
    """One slice of one logical tensor.

    ``key`` is logical (a path such as ``model/layers.0.weight``), never a rank. ``offsets`` and
    ``shape`` place the slice inside the tensor's global shape (elements, one per dimension).
    """

    key: str
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


class SliceInfo(NamedTuple):
    """What a writer says of one slice: where it belongs and what its bytes hash to.

    ``dtype`` is the safetensors name (``F32``, ``BF16``, ``I64``, …); ``global_shape`` that of the
    whole tensor; ``nbytes`` the length; ``xxh3`` 32 hex digits (xxh3-128), ``crc32c`` 8.
    """

    slice: SliceKey
    dtype: str
    global_shape: tuple[int, ...]
    nbytes: int
    xxh3: str
    crc32c: str


class Extent(NamedTuple):
    """A run of bytes of one object, from byte ``begin`` of it, and their xxh3-128."""

    object: str
    begin: int
    nbytes: int
    xxh3: str


class PlacedSlice(NamedTuple):
    """A slice and where it lies: ``begin`` is the byte offset from the start of the object.

    With ``patches`` (``format.patch``) those bytes, whose digest is then ``base_xxh3``, become the slice
    by applying the patches in order. ``twin``: a second copy of an unpatched slice, in another object.
    """

    info: SliceInfo
    object: str
    begin: int
    patches: tuple[Extent, ...] = ()
    base_xxh3: str = ""
    twin: Extent | None = None

    @property
    def base(self) -> Extent:
        return Extent(self.object, self.begin, self.info.nbytes, self.base_xxh3 or self.info.xxh3)

    @property
    def extents(self) -> tuple[Extent, ...]:
        """Everything that is stored of it: the base first, then the patches, or the twin."""
        return (self.base, *self.patches, *(() if self.twin is None else (self.twin,)))


@dataclass(frozen=True)
class ObjectInfo:
    """One immutable shard object: key, total bytes, bytes and xxh3-128 of the header before the data."""

    key: str
    nbytes: int
    header_bytes: int
    header_xxh3: str


@dataclass(frozen=True)
class Traits:
    """What one tier is good for.

    ``survives``: the failure domains whose loss it outlives (``process``, ``host``, ``rack``, ``cluster``,
    ``region``); ``shares_fate``: what it falls with besides (``credentials``, ``metadata_service``,
    ``control_plane``, ``storage_system``). ``capacity_bytes`` and ``bytes_per_second``: ``None`` when not
    known. ``every``: it gets every so many checkpoints; ``keep``: how many it holds (``None``: as the run).
    ``volatile``: what it holds goes with the power.
    """

    survives: frozenset[str]
    shares_fate: frozenset[str] = frozenset()
    capacity_bytes: int | None = None
    bytes_per_second: float | None = None
    every: int = 1
    keep: int | None = None
    volatile: bool = False
