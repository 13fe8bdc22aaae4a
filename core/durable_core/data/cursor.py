"""L3. The cursor: the logical data position after the last committed step, in a few numbers.

It is global: the same on every replica, and independent of worker counts, prefetching and (at one
global batch size) of the number of replicas.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from durable_core.errors import (
    FormatError,
    SpecMismatchError,
    UnknownVersionError,
    UnsupportedError,
    UsageError,
)

Remainder = Literal["drop", "short", "wrap"]
REMAINDERS: tuple[Remainder, ...] = ("drop", "short", "wrap")
VERSION = 1
MAX_TEXT = 256  # characters of an id or a name: keeps every cursor under 1 KiB


@dataclass(frozen=True)
class Layout:
    """How an epoch of ``size`` positions is cut into global batches; a batch never straddles epochs.

    ``remainder`` says what becomes of the last ``size % global_batch`` positions: ``drop`` leaves
    them out, ``short`` makes a smaller last batch, ``wrap`` fills the last batch up with the first
    positions of the same epoch (those samples are then seen twice in it, by declaration).
    """

    size: int
    global_batch: int
    remainder: Remainder

    def __post_init__(self) -> None:
        if self.size < 1 or self.global_batch < 1:
            raise UsageError(f"size {self.size} and global batch {self.global_batch} must be at least 1")
        if self.remainder not in REMAINDERS:
            raise UsageError(f"remainder {self.remainder!r} is not one of {', '.join(REMAINDERS)}")
        if self.remainder == "wrap" and self.global_batch > 2 * self.size:
            raise UsageError(
                f"a batch of {self.global_batch} would hold each of {self.size} samples more than twice",
                hint="lower batch_size",
            )
        if self.batches == 0:
            raise UsageError(
                f"{self.size} samples do not fill one global batch of {self.global_batch}, and the "
                "remainder is dropped: an epoch would be empty",
                hint="lower batch_size or keep the last batch (drop_last=False)",
            )

    @property
    def batches(self) -> int:
        """Global batches in one epoch."""
        if self.remainder == "drop":
            return self.size // self.global_batch
        return -(-self.size // self.global_batch)

    @property
    def tail(self) -> int:
        """Samples in the last global batch of an epoch."""
        last = self.interval(self.batches - 1)
        return last[1] - last[0]

    def interval(self, batch: int) -> tuple[int, int]:
        """Positions [start, stop) of a global batch; under ``wrap`` stop may exceed ``size``."""
        if not 0 <= batch < self.batches:
            raise UsageError(f"batch {batch} is outside [0, {self.batches})")
        start = batch * self.global_batch
        stop = start + self.global_batch
        return start, min(stop, self.size) if self.remainder == "short" else stop

    def share(self, batch: int, replica: int, replicas: int) -> tuple[int, int]:
        """The contiguous part of a global batch that one replica takes; the parts differ by at most one."""
        start, stop = self.interval(batch)
        count = stop - start
        return start + count * replica // replicas, start + count * (replica + 1) // replicas

    def check_shares(self, replicas: int) -> None:
        """Raise ``UnsupportedError`` unless every batch can be shared evenly by that many replicas."""
        for count in (self.global_batch, self.tail):
            if count % replicas:
                raise UnsupportedError(
                    f"a batch of {count} samples cannot be shared evenly by {replicas} replicas",
                    hint='use drop_last=True, or remainder="wrap" to fill it with samples seen twice',
                )

    def position(self, step: int) -> tuple[int, int]:
        """(epoch, next batch in it) after ``step`` batches from the very beginning; both from 0."""
        return divmod(step, self.batches)


@dataclass(frozen=True)
class Cursor:
    """Where the data stands. ``epoch`` and ``batch`` count from 0; ``batch`` is the next one to train.

    ``size`` is the number of samples in an epoch, or None when nobody knows (a stream);
    ``global_batch`` the samples of one batch over all replicas, or 0 when a batch sampler decides;
    ``consumed_samples`` counts over all replicas on this lineage.
    """

    dataset_id: str
    order: str
    seed: int
    epoch: int
    batch: int
    size: int | None
    global_batch: int
    remainder: Remainder
    consumed_samples: int = 0
    version: int = VERSION

    def __post_init__(self) -> None:
        for name in ("dataset_id", "order"):
            text = getattr(self, name)
            if not text or len(text) > MAX_TEXT or not text.isascii() or not text.isprintable():
                raise UsageError(f"{name} must be 1 to {MAX_TEXT} printable ASCII characters, not {text!r}")
        if not -(1 << 63) <= self.seed < 1 << 64:
            raise UsageError(f"seed {self.seed} does not fit 64 bits")
        if min(self.epoch, self.batch, self.global_batch, self.consumed_samples) < 0:
            raise UsageError(f"a cursor holds no negative counts: {self}")

    def check_continues(self, now: Cursor) -> None:
        """Raise ``SpecMismatchError``, naming both values, unless ``now`` describes the same data.

        The seed is not compared: the recorded one wins (the caller adopts it).
        """
        fields = ("dataset_id", "order", "size", "global_batch", "remainder")
        differing = tuple(name for name in fields if getattr(self, name) != getattr(now, name))
        if differing:
            pairs = ((name, getattr(self, name), getattr(now, name)) for name in differing)
            what = "; ".join(f"{name} was {old!r} and is now {new!r}" for name, old, new in pairs)
            hint = "restore the settings the run was started with, or start another run under another root"
            if differing == ("global_batch",):
                hint = "keep batch_size x replicas as it was, or start another run under another root"
            raise SpecMismatchError(f"the data differs from the run's: {what}", fields=differing, hint=hint)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """Canonical JSON, at most 1 KiB."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Cursor:
        """Raises ``UnknownVersionError`` or ``FormatError`` for what is not a cursor."""
        if value.get("version") != VERSION:
            raise UnknownVersionError("cursor", f"version {value.get('version')!r}, known is {VERSION}")
        fields = {f.name: f.type for f in dataclasses.fields(cls)}
        if set(value) != set(fields):
            raise FormatError("cursor", f"fields {sorted(value)}, expected {sorted(fields)}")
        for name, kind in fields.items():
            text = name in ("dataset_id", "order", "remainder")
            item = value[name]
            if item is None and kind == "int | None":
                continue
            if type(item) is not (str if text else int):
                raise FormatError("cursor", f"{name} is {item!r}")
        if value["remainder"] not in REMAINDERS:
            raise FormatError("cursor", f"remainder is {value['remainder']!r}")
        return cls(**cast("dict[str, Any]", dict(value)))

    @classmethod
    def from_json(cls, text: str) -> Cursor:
        try:
            value = json.loads(text)
        except ValueError as error:
            raise FormatError("cursor", f"not JSON: {error}") from error
        if not isinstance(value, dict):
            raise FormatError("cursor", f"not an object: {value!r}")
        return cls.from_dict(value)


def identity(data: Any, declared: str | None = None) -> tuple[str, bool]:
    """(dataset id, whether it stands for the content): declared, the dataset's own, or unverified."""
    own = declared if declared is not None else getattr(data, "dataset_id", None)
    if own is not None:
        return str(own), True
    size = length(data)
    return f"unverified:{class_name(data)}:{'unsized' if size is None else size}", False


def class_name(item: Any) -> str:
    """The name of its class as an id may hold it: ASCII and short."""
    return type(item).__name__.encode("ascii", "backslashreplace").decode()[:128]


def length(item: Any) -> int | None:
    """``len(item)``, or None for what has no length, or only seems to have one."""
    try:
        return len(item)
    except (TypeError, NotImplementedError):
        return None
