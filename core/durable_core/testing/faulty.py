"""L6. Tiers that fail on purpose: any operation, in any of the ways stores fail, and lost fsyncs."""

from __future__ import annotations

import enum
import fnmatch
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from durable_core.clock import Clock, SystemClock
from durable_core.errors import InDoubt, TierError, TierUnavailable
from durable_core.tier.base import DEFAULT_LIMIT, Buffer, Tier, byte_view
from durable_core.tier.memory import MemoryTier

T = TypeVar("T")


class SimulatedDeath(BaseException):
    """The process died here. No ``Exception``: nothing that handles errors may survive it."""


class FaultKind(str, enum.Enum):
    BEFORE = "fails, not applied"
    AFTER = "applied, then fails as if it had not been: a store that breaks the contract"
    TORN = "half of it: a write reaches the name by half and the process dies, a read is silently short"
    SLOW = "takes `seconds` of the injected clock, then works"
    LOST_ACK = "applied, acknowledgement lost: InDoubt"
    LOST_REQUEST = "not applied, nobody knows: InDoubt"


@dataclass(frozen=True)
class Fault:
    """The calls ``at``, ``at + 1``, … (``times`` of them, from 1) among those whose operation and key match.

    ``op`` and ``key`` are patterns with ``*``; operations are named as in ``Tier``. ``error`` makes what
    ``BEFORE`` and ``AFTER`` raise.
    """

    kind: FaultKind
    at: int = 1
    times: int = 1
    op: str = "*"
    key: str = "*"
    error: Callable[[str], TierError] = TierUnavailable
    seconds: float = 0.0

    def matches(self, op: str, key: str) -> bool:
        return fnmatch.fnmatchcase(op, self.op) and fnmatch.fnmatchcase(key, self.key)


@dataclass
class _Counted:
    fault: Fault
    seen: int = 0

    def is_due(self) -> bool:
        return self.fault.at <= self.seen < self.fault.at + self.fault.times


class FaultyTier(Tier):
    """``inner``, with ``faults``. ``calls`` records every (operation, key), faulty or not."""

    def __init__(self, inner: Tier, faults: Sequence[Fault] = (), *, clock: Clock | None = None) -> None:
        self.location = f"faulty {inner.location}"
        self.inner = inner
        self.calls: list[tuple[str, str]] = []
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._faults = [_Counted(fault) for fault in faults]

    def add(self, fault: Fault) -> None:
        """One more fault; it counts calls from now on."""
        with self._lock:
            self._faults.append(_Counted(fault))

    def get(self, key: str, *, limit: int = DEFAULT_LIMIT) -> bytes:
        def half() -> bytes:
            data = self.inner.get(key, limit=limit)
            return data[: len(data) // 2]

        return self._read("get", key, lambda: self.inner.get(key, limit=limit), half)

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        def half() -> None:
            view = byte_view(out)
            self.inner.read_into(key, offset, view[: len(view) // 2])

        self._read("read_into", key, lambda: self.inner.read_into(key, offset, out), half)

    def size(self, key: str) -> int:
        return self._read("size", key, lambda: self.inner.size(key), lambda: self.inner.size(key) // 2)

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        return self._write(
            "put_if_absent", key, lambda: self.inner.put_if_absent(key, data), lambda: self._tear(key, [data])
        )

    def put(self, key: str, data: Buffer) -> None:
        self._write("put", key, lambda: self.inner.put(key, data), lambda: self._tear(key, [data]))

    def write_object(self, key: str, parts: Iterable[Buffer]) -> int:
        return self._write(
            "write_object", key, lambda: self.inner.write_object(key, parts), lambda: self._tear(key, parts)
        )

    def delete(self, key: str) -> None:
        self._write("delete", key, lambda: self.inner.delete(key), lambda: None)

    def list(self, prefix: str) -> Iterator[str]:
        return self._read("list", prefix, lambda: self.inner.list(prefix), lambda: iter(()))

    def sync_tail(self, prefix: str) -> None:
        self._write("sync_tail", prefix, lambda: self.inner.sync_tail(prefix), lambda: None)

    def probe(self) -> None:
        self._read("probe", "", self.inner.probe, self.inner.probe)

    def collect_residue(self, *, limit: int = 1000) -> int:
        def work() -> int:
            return self.inner.collect_residue(limit=limit)

        return self._write("collect_residue", "", work, lambda: None)

    def _read(self, op: str, key: str, work: Callable[[], T], half: Callable[[], T]) -> T:
        fault = self._due(op, key)
        if fault is not None and fault.kind is FaultKind.TORN:
            return half()
        return self._perform(fault, op, key, work)

    def _write(self, op: str, key: str, work: Callable[[], T], half: Callable[[], None]) -> T:
        fault = self._due(op, key)
        if fault is not None and fault.kind is FaultKind.TORN:
            half()
            raise SimulatedDeath(f"in the middle of {op} {key}")
        return self._perform(fault, op, key, work)

    def _perform(self, fault: Fault | None, op: str, key: str, work: Callable[[], T]) -> T:
        if fault is None:
            return work()
        said = f"injected fault: {op} {key}"
        if fault.kind is FaultKind.SLOW:
            self._clock.sleep(fault.seconds)
            return work()
        if fault.kind in (FaultKind.AFTER, FaultKind.LOST_ACK):
            work()
        if fault.kind in (FaultKind.LOST_ACK, FaultKind.LOST_REQUEST):
            raise InDoubt(said)
        raise fault.error(said)

    def _due(self, op: str, key: str) -> Fault | None:
        """The first fault whose turn this call is; all matching faults count it."""
        with self._lock:
            self.calls.append((op, key))
            matching = [counted for counted in self._faults if counted.fault.matches(op, key)]
            for counted in matching:
                counted.seen += 1
            return next((counted.fault for counted in matching if counted.is_due()), None)

    def _tear(self, key: str, parts: Iterable[Buffer]) -> None:
        whole = b"".join(bytes(part) for part in parts)
        self.inner.put_if_absent(key, whole[: len(whole) // 2])


class LyingStore(MemoryTier):
    """A file system that loses power: what is visible, and what of it is on the medium.

    Each flag left out is one fsync left out by the writer: ``sync_files`` (of the temporary, before it
    is named), ``sync_directory`` (after it is named), ``sync_parents`` (of a new directory's parent).
    ``crash()`` loses the power. With all flags on, what was acknowledged survives.
    """

    def __init__(
        self,
        name: str = "lying",
        *,
        sync_files: bool = True,
        sync_directory: bool = True,
        sync_parents: bool = True,
    ) -> None:
        super().__init__(name)
        self._sync_files = sync_files
        self._sync_directory = sync_directory
        self._sync_parents = sync_parents
        self._medium: dict[str, bytes] = {}  # names and contents that survive
        self._torn: set[str] = set()  # names whose contents were never fsynced
        self._parents = {""}  # directories whose own names survive

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        created = super().put_if_absent(key, data)
        if created:
            self._written(key, named_durably=self._sync_directory)
        return created

    def put(self, key: str, data: Buffer) -> None:
        super().put(key, data)
        self._written(key, named_durably=False)

    def write_object(self, key: str, parts: Iterable[Buffer]) -> int:
        nbytes = super().write_object(key, parts)
        self._written(key, named_durably=self._sync_directory)
        return nbytes

    def sync_tail(self, prefix: str) -> None:
        super().sync_tail(prefix)
        with self._lock:
            self._sync(prefix.rpartition("/")[0], parents=True)

    def crash(self, survives: Callable[[str], bool] = lambda key: False) -> None:
        """Lose the power. What was never made durable is lost, except where ``survives(key)``."""
        with self._lock:
            after: dict[str, bytes] = {}
            for key in sorted(self._objects.keys() | self._medium.keys()):
                if key in self._medium and _directory(key) in self._parents:
                    after[key] = self._medium[key]
                elif key in self._objects and survives(key):
                    data = self._objects[key]
                    after[key] = data[: len(data) // 2] if key in self._torn else data
            self._objects = after
            self._medium = dict(after)
            self._parents = {"", *map(_directory, after)}
            self._torn.clear()

    def _written(self, key: str, *, named_durably: bool) -> None:
        with self._lock:
            if not self._sync_files:
                self._torn.add(key)
            if named_durably:
                self._sync(_directory(key), parents=self._sync_parents)

    def _sync(self, directory: str, *, parents: bool) -> None:
        """fsync of a directory: its names as they are now, deletions too, reach the medium."""
        if parents:
            self._parents.add(directory)
        self._medium = {key: data for key, data in self._medium.items() if _directory(key) != directory}
        for key, data in self._objects.items():
            if _directory(key) == directory:
                self._medium[key] = data[: len(data) // 2] if key in self._torn else data


def _directory(key: str) -> str:
    return key.rpartition("/")[0]
