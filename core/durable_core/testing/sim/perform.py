"""Performing effects on the simulated store, with faults between any two of them."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping
from typing import Any

from durable_core.commit import effects as fx
from durable_core.errors import DurableError, InDoubt, TierError, TierFull, TierUnavailable
from durable_core.format import digests, layout
from durable_core.testing.invariants import Auditor
from durable_core.testing.sim import content
from durable_core.testing.sim.process import Process, Status
from durable_core.testing.sim.store import Overwrite, SimStore, Stage, Write
from durable_core.types import ObjectInfo


class Performing:
    """The half of the world that steps processes; ``World`` is the half that schedules them."""

    chance: random.Random
    weather: Any
    store: SimStore
    auditor: Auditor
    calm: bool
    tracing: bool

    def __init__(self) -> None:
        self.processes: list[Process] = []
        self.loose: list[Write] = []
        self.clock = 0.0
        self.log: list[str] = []
        self._ids = 0
        self._instant: Mapping[type, Callable[[Process, Any], Any]] = {
            fx.NewId: lambda process, effect: self._new_id(),
            fx.Now: lambda process, effect: self.clock,
            fx.WallTime: lambda process, effect: self.clock,
            fx.Confirm: lambda process, effect: None,
            fx.Estimate: lambda process, effect: self.chance.random(),
            fx.Describe: lambda process, effect: content.describe(process.script.staged),
        }
        self._stepped: Mapping[type, Callable[[Process, Any], Any]] = {
            fx.Get: lambda process, effect: self.store.get(effect.key),
            fx.Size: lambda process, effect: self._size(effect.key),
            fx.ListKeys: lambda process, effect: tuple(self.store.keys(effect.prefix)),
            fx.SyncTail: lambda process, effect: self.store.sync(effect.prefix),
            fx.Delete: self._delete,
        }

    def trace(self, message: str) -> None:
        if self.tracing:
            self.log.append(f"{self.clock:8.3f} {message}")

    def complain(self, message: str) -> None:
        raise NotImplementedError

    # -- one step

    def _runnable(self, process: Process) -> bool:
        return process.wake <= self.clock

    def step(self, process: Process) -> None:
        """Perform the effect a process is at, and run it up to its next one."""
        if process.write is not None:
            self._continue_write(process, process.write)
            return
        effect = process.effect
        if effect is None:
            self._resume(process, None)
            return
        if isinstance(effect, fx.Wait):
            self._resume(process, None)
        elif isinstance(effect, (fx.PutIfAbsent, fx.WriteShard)):
            self._begin_write(process, effect)
        elif self._unlucky(self.weather.unavailable):
            self._fail(process, TierUnavailable(f"{type(effect).__name__} failed"))
        else:
            self._resume(process, self._stepped[type(effect)](process, effect))

    def _resume(self, process: Process, answer: Any, error: TierError | None = None) -> None:
        """Give the program its answer; what needs no store is answered on the spot."""
        program = process.program
        try:
            effect = program.throw(error) if error is not None else program.send(answer)
            while True:
                instant = self._instant.get(type(effect))
                if instant is not None:
                    effect = program.send(instant(process, effect))
                elif isinstance(effect, fx.Reached):
                    if self._unlucky(self.weather.kill_at_point):
                        self.kill(process, f"killed at {effect.point.name}")
                        return
                    if self._unlucky(self.weather.pause_at_point):
                        self.trace(f"{process.label} is stopped at {effect.point.name}")
                        process.status = Status.PAUSED
                    effect = program.send(None)
                else:
                    break
        except StopIteration as done:
            process.status, process.outcome = Status.ENDED, done.value
            self.trace(f"{process.label} ends: {process.outcome}")
            return
        except DurableError as bad:
            process.status, process.outcome = Status.ENDED, f"died: {bad}"
            self.complain(f"{process.label} dies of {type(bad).__name__}: {bad}")
            return
        process.effect = effect
        if isinstance(effect, fx.Wait):
            process.wake = self.clock + effect.seconds

    def _fail(self, process: Process, error: TierError) -> None:
        self.trace(f"{process.label}: {type(process.effect).__name__} -> {type(error).__name__}")
        self._resume(process, None, error)

    # -- writes

    def _begin_write(self, process: Process, effect: fx.PutIfAbsent | fx.WriteShard) -> None:
        if self.store.full:
            self._fail(process, TierFull("no space left"))
            return
        if self._unlucky(self.weather.unavailable):
            self._fail(process, TierUnavailable("refused"))
            return
        if not isinstance(effect, fx.WriteShard):
            write = Write(effect.key, effect.data, exclusive=not isinstance(effect, Overwrite))
            self._check_slot(process, effect.key)
            self.trace(f"{process.label} puts {effect.key}")
        else:
            data, _, _ = content.pack(process.script.staged, process.script.role, effect.slices)
            write = Write(effect.key, data, exclusive=False)
            self.trace(f"{process.label} writes {effect.key}")
        process.write = write
        if not self._unlucky(self.weather.slow_writes):
            while process.write is write and process.status is Status.READY:
                self._continue_write(process, write)

    def _continue_write(self, process: Process, write: Write) -> None:
        """One stage further, or the acknowledgement is lost on the way."""
        if self._unlucky(self.weather.lose_ack):
            process.write = None
            if not write.answered and not self.weather.posix:
                self.loose.append(write)
            elif write.stage is Stage.SENT and self.chance.random() < 0.5:
                self.store.advance(write)  # it was applied, but not synced
            self._fail(process, InDoubt(f"no answer for {write.key}"))
            return
        if not write.answered:
            self.store.advance(write)
        if write.answered:
            process.write = None
            self._resume(process, self._answer(process, write))

    def _answer(self, process: Process, write: Write) -> Any:
        effect = process.effect
        if not isinstance(effect, fx.WriteShard):
            return write.created
        data, header, begins = content.pack(process.script.staged, process.script.role, effect.slices)
        return fx.WrittenShard(ObjectInfo(write.key, len(data), header, digests.xxh3(data[:header])), begins)

    def _check_slot(self, process: Process, key: str) -> None:
        """Nothing is appended past a slot that is empty, or by a process that has been refused."""
        seq = layout.parse_journal_key(key)
        if seq is None:
            return
        if process.refused:
            self.complain(f"{process.label} was refused, and appends all the same")
        if seq > 0 and self.store.get(layout.journal_key(seq - 1)) is None:
            self.complain(f"{process.label} appends to slot {seq} while slot {seq - 1} is empty")
        if seq > 0 and not self.store.is_durable(layout.journal_key(seq - 1)):
            self.complain(f"{process.label} builds slot {seq} on one that a power loss can take away")

    def kill(self, process: Process, how: str) -> None:
        """SIGKILL. On one host a write dies with its process; a request to a remote store does not."""
        self.trace(f"{process.label} is {how}")
        process.status, process.outcome = Status.KILLED, how
        if process.write is not None and not self.weather.posix:
            self.loose.append(process.write)
        process.write = None
        process.program.close()

    # -- answers

    def _size(self, key: str) -> int | None:
        data = self.store.get(key)
        return None if data is None else len(data)

    def _delete(self, process: Process, effect: fx.Delete) -> None:
        why = self.auditor.may_delete(effect.key)
        self.trace(f"{process.label} deletes {effect.key}")
        if why:
            self.complain(f"{process.label} deletes {effect.key}: {why}")
        self.store.delete(effect.key)

    def _new_id(self) -> str:
        self._ids += 1
        return hashlib.blake2b(str(self._ids).encode(), digest_size=16).hexdigest()

    def _unlucky(self, rate: float) -> bool:
        return rate > 0.0 and not self.calm and self.chance.random() < rate
