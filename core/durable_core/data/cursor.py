"""L3. The cursor: the logical data position after the last committed step, in a few numbers.

It is global: the same on every replica, and independent of worker counts, prefetching and (at one
global batch size) of the number of replicas.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from durable_core.data.layout import REMAINDERS as REMAINDERS
from durable_core.data.layout import Layout as Layout
from durable_core.data.layout import Remainder as Remainder
from durable_core.errors import FormatError, SpecMismatchError, UnknownVersionError, UsageError

VERSION = 2  # written only where it says more than version 1 can: an accumulation
BESIDE = ("source", "plan", "updates", "replicas", "draws")
"""Entries of a loader's state that are not of its cursor."""
MAX_TEXT = 256  # characters of an id or a name: keeps every cursor under 1 KiB


@dataclass(frozen=True)
class Cursor:
    """Where the data stands. ``epoch`` and ``batch`` count from 0; ``batch`` is the next one to train.

    ``size`` is the number of samples in an epoch, or None when nobody knows (a stream);
    ``global_batch`` the samples of one batch over all replicas, or 0 when a batch sampler decides;
    ``consumed_samples`` counts over all replicas on this lineage; ``accumulate`` the batches of an
    optimizer step, where the loader was told.
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
    accumulate: int = 1

    @property
    def version(self) -> int:
        return 1 if self.accumulate == 1 else VERSION

    def __post_init__(self) -> None:
        for name in ("dataset_id", "order"):
            text = getattr(self, name)
            if not text or len(text) > MAX_TEXT or not text.isascii() or not text.isprintable():
                raise UsageError(f"{name} must be 1 to {MAX_TEXT} printable ASCII characters, not {text!r}")
        if not -(1 << 63) <= self.seed < 1 << 64:
            raise UsageError(f"seed {self.seed} does not fit 64 bits")
        if min(self.epoch, self.batch, self.global_batch, self.consumed_samples, self.accumulate - 1) < 0:
            raise UsageError(f"a cursor holds no negative counts: {self}")

    def check_continues(self, now: Cursor, because: str = "") -> None:
        """Raise ``SpecMismatchError``, naming both values, unless ``now`` describes the same data.

        ``because``: what is known to have changed, put before what follows from it.
        The seed is not compared: the recorded one wins (the caller adopts it).
        """
        fields = ("dataset_id", "order", "size", "global_batch", "remainder")
        differing = tuple(name for name in fields if getattr(self, name) != getattr(now, name))
        if differing:
            pairs = ((name, getattr(self, name), getattr(now, name)) for name in differing)
            what = "; ".join(f"{name} was {old!r} and is now {new!r}" for name, old, new in pairs)
            hint = "restore the settings the run was started with, or start another run under another root"
            if differing == ("global_batch",):
                hint = (
                    'keep batch_size x replicas as it was; a loader with promise="exact-order" may change it '
                    "where batch_size x replicas x accumulate stays"
                )
            what = f"{because}: {what}" if because and "dataset_id" in differing else what
            raise SpecMismatchError(f"the data differs from the run's: {what}", fields=differing, hint=hint)

    def rescaled(self, global_batch: int, accumulate: int, samples: int | None) -> Cursor:
        """The same position counted in batches of another size, where an optimizer step keeps its samples.

        ``samples``: of an epoch; 0 where it has no end, None when only the end will tell. Raises
        ``SpecMismatchError`` when a step would have other samples, the position is no whole number
        of such batches, or an epoch would end elsewhere, or might.
        """
        old, new = self.global_batch, global_batch
        was = f"global_batch was {old} with accumulate={self.accumulate}, and is now {new} with {accumulate}"
        way = "keep batch_size x replicas x accumulate as it was, and tell the loader accumulate="
        done = self.batch * old
        if self.remainder == "straddle" and self.size is not None and old:
            done = Layout(self.size, old, "straddle").step(self.epoch, self.batch) * old
        if not old or not new or old * self.accumulate != new * accumulate:
            what = f"an optimizer step would have other samples: {was}"
        elif done % new:
            what = f"the position, {done} samples on, is inside a batch: {was}"
            way = f"go on with global_batch {old} to a position divisible by {new}, and change it there"
        elif samples is None and self.remainder == "drop":
            what = f"what an epoch drops at its end is only known there, and would be other samples: {was}"
            way = "keep batch_size x replicas as it was"
        elif samples is not None and _used(samples, old, self.remainder) != _used(
            samples, new, self.remainder
        ):
            what = f"an epoch would use other samples of its end (remainder {self.remainder!r}): {was}"
            way = "keep batch_size x replicas as it was"
        else:
            epoch, batch = self.epoch, done // new
            if self.remainder == "straddle" and self.size is not None:
                epoch, batch = Layout(self.size, new, "straddle").position(batch)
            return dataclasses.replace(
                self, epoch=epoch, batch=batch, global_batch=new, accumulate=accumulate
            )
        raise SpecMismatchError(what, fields=("global_batch",), hint=way)

    def to_dict(self) -> dict[str, Any]:
        fields = {**dataclasses.asdict(self), "version": self.version}
        if self.version == 1:
            del fields["accumulate"]
        return fields

    def to_json(self) -> str:
        """Canonical JSON, at most 1 KiB."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Cursor:
        """Raises ``UnknownVersionError`` or ``FormatError`` for what is not a cursor."""
        version = value.get("version")
        if type(version) is not int or version not in (1, VERSION):
            raise UnknownVersionError("cursor", f"version {version!r}, known are 1 and {VERSION}")
        fields = {f.name: f.type for f in dataclasses.fields(cls)}
        if version == 1:
            del fields["accumulate"]
        value = {name: item for name, item in value.items() if name != "version"}
        if set(value) != set(fields):
            raise FormatError("cursor", f"fields {sorted(map(str, value))}, not version and {sorted(fields)}")
        for name, kind in fields.items():
            text = name in ("dataset_id", "order", "remainder")
            item = value[name]
            if item is None and kind == "int | None":
                continue
            if type(item) is not (str if text else int):
                raise FormatError("cursor", f"{name} is {item!r}")
        if value["remainder"] not in REMAINDERS:
            raise FormatError("cursor", f"remainder is {value['remainder']!r}")
        try:
            return cls(**cast("dict[str, Any]", dict(value)))
        except UsageError as error:
            raise FormatError("cursor", error.message) from error

    @classmethod
    def from_json(cls, text: str) -> Cursor:
        try:
            value = json.loads(text)
        except ValueError as error:
            raise FormatError("cursor", f"not JSON: {error}") from error
        if not isinstance(value, dict):
            raise FormatError("cursor", f"not an object: {value!r}")
        return cls.from_dict(value)


def _used(size: int, global_batch: int, remainder: Remainder) -> int:
    """Samples that an epoch hands out."""
    if remainder == "drop":
        return size // global_batch * global_batch
    return -(-size // global_batch) * global_batch if remainder == "wrap" else size


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
