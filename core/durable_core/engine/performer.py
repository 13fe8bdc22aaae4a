"""L4. Runs protocol programs: performs each effect they yield on a real tier."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from durable_core.clock import Clock
from durable_core.commit import effects as fx
from durable_core.engine import probe
from durable_core.errors import DurableError, ObjectNotFoundError, UsageError
from durable_core.tier.base import Tier
from durable_core.types import PlacedSlice, SliceInfo, SliceKey

T = TypeVar("T")


class ShardSource(Protocol):
    """What one writer has staged: the performer's answer to ``Describe``, ``Confirm`` and ``WriteShard``."""

    def describe(self) -> tuple[SliceInfo, ...]: ...

    def confirm(self) -> None: ...

    def estimate(self, pieces: tuple[PlacedSlice, ...]) -> float: ...

    def write(
        self, tier: Tier, key: str, slices: tuple[SliceKey, ...],
        patchable: Mapping[SliceKey, tuple[PlacedSlice, int]],
    ) -> fx.WrittenShard: ...  # fmt: skip


class Performer:
    """Performs effects on ``tier``; with ``read_only`` it refuses every effect that writes.

    ``landing``: where shards are written first and looked for first, when that is not ``tier``; ``swept``:
    where objects are listed and deleted, likewise.
    """

    def __init__(
        self, tier: Tier, clock: Clock, *, source: ShardSource | None = None, read_only: bool = False,
        landing: Tier | None = None, swept: Tier | None = None,
    ) -> None:  # fmt: skip
        self.tier = tier
        self.clock = clock
        self.source = source
        self.read_only = read_only
        self.landing = landing or tier
        self.swept = swept or tier
        self._table: dict[type, Callable[[Any], Any]] = {
            fx.Get: self._get,
            fx.PutIfAbsent: lambda e: self.tier.put_if_absent(e.key, e.data),
            fx.SyncTail: lambda e: None if self.read_only else self.tier.sync_tail(e.prefix),
            fx.Size: self._size,
            fx.ListKeys: lambda e: tuple(self.swept.list(e.prefix)),
            fx.Delete: lambda e: self.swept.delete(e.key),
            fx.Describe: lambda e: self._staged().describe(),
            fx.Confirm: lambda e: self._staged().confirm(),
            fx.Estimate: lambda e: self._staged().estimate(e.pieces),
            fx.WriteShard: lambda e: self._staged().write(self.landing, e.key, e.slices, e.patchable),
            fx.Now: lambda e: self.clock.monotonic(),
            fx.WallTime: lambda e: self.clock.now(),
            fx.Wait: lambda e: self.clock.sleep(e.seconds),
            fx.NewId: lambda e: self.clock.new_id(),
            fx.Reached: lambda e: probe.reached(e.point),
        }

    def run(self, program: fx.Program[T]) -> T:
        """Run to the end. Whatever a failed effect raises is thrown into the program."""
        try:
            effect = next(program)
            while True:
                try:
                    result = self._perform(effect)
                except DurableError as failure:
                    effect = program.throw(failure)
                else:
                    effect = program.send(result)
        except StopIteration as done:
            value: T = done.value
            return value

    def with_source(self, source: ShardSource) -> Performer:
        return Performer(self.tier, self.clock, source=source, read_only=self.read_only, landing=self.landing)

    def at_home(self) -> Performer:
        """The same, with shards written to ``tier`` itself."""
        return Performer(self.tier, self.clock, source=self.source, read_only=self.read_only)

    def _perform(self, effect: fx.Effect) -> Any:
        if self.read_only and isinstance(effect, (fx.PutIfAbsent, fx.Delete, fx.WriteShard)):
            raise UsageError(f"{type(effect).__name__} on a root opened for reading")
        return self._table[type(effect)](effect)

    def _get(self, effect: fx.Get) -> bytes | None:
        try:
            return self.tier.get(effect.key)
        except ObjectNotFoundError:
            return None

    def _size(self, effect: fx.Size) -> int | None:
        for tier in dict.fromkeys((self.landing, self.tier)):
            try:
                return tier.size(effect.key)
            except ObjectNotFoundError:
                continue
        return None

    def _staged(self) -> ShardSource:
        if self.source is None:
            raise UsageError("this program needs staged state, and none was given")
        return self.source
