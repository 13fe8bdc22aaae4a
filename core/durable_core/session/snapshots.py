"""L5. Snapshots: what is staged at a boundary, and what keeps it besides a checkpoint.

A snapshot is sealed in this host's memory as soon as it is known to be whole, and then sent to the peers, on
a thread of its own: a checkpoint that is still being written must not hold up the next seal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from durable_core import events
from durable_core.clock import Clock
from durable_core.commit.request import SaveRequest
from durable_core.engine import probe, sealing
from durable_core.engine.staged import StagedShard
from durable_core.engine.worker import Errands, Job
from durable_core.errors import DurableError, MemoryShortageError, StaleSnapshotError
from durable_core.format.seal import Seal
from durable_core.session.status import Board
from durable_core.session.world import World
from durable_core.state.staging import Slot, SlotPool, Staged
from durable_core.types import CrashPoint


class Lease:
    """A staged slot that several jobs read; it is free again when the last of them is done."""

    def __init__(self, staged: Staged) -> None:
        self.staged = staged
        self._users = 1
        self._lock = threading.Lock()

    def hold(self) -> Callable[[], None]:
        """One more user; the answer ends that use."""
        with self._lock:
            self._users += 1
        return self.release

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self.staged.release()


@dataclass(frozen=True)
class Keeping:
    """Where snapshots are kept: ``memory`` seals them in the pool's own slots; ``peers`` are sent theirs.

    ``memory_every`` and ``peer_every``: steps between two snapshots, ``None``: one with each checkpoint.
    """

    memory: bool = False
    memory_every: int | None = None
    peers: tuple[sealing.PeerStore, ...] = ()
    peer_every: int | None = None

    @property
    def any(self) -> bool:
        return self.memory or bool(self.peers)

    @property
    def extra_slots(self) -> int:
        """Slots beyond those of the checkpoints: one that stays sealed while a newer one is staged and an
        older one is still being written, one that is being sent."""
        return int(self.memory and self.memory_every is not None) + int(bool(self.peers))

    @property
    def rhythms(self) -> tuple[int | None, ...]:
        return self.memory_every, self.peer_every


class Snapshots:
    """The staging slots of one writer. Everything but ``_seal`` happens on the training thread."""

    def __init__(self, pool: SlotPool, clock: Clock, world: World, board: Board, keeping: Keeping) -> None:
        self._pool, self._clock, self._world, self._board = pool, clock, world, board
        self.keeping = keeping
        self._unsettled: Staged | None = None
        self._errands = Errands("durable-sealer") if keeping.any else None
        self._sender = Errands("durable-sender") if keeping.peers else None

    def due(self, step: int) -> bool:
        """Whether this boundary is worth a snapshot although no checkpoint is due."""
        return any(every is not None and step % every == 0 for every in self.keeping.rhythms)

    def prepare(self, tensors: Mapping[str, Tensor]) -> None:
        """Map and page-fault the free slots, in the background."""

        def prepare() -> None:
            try:
                self._pool.prepare(tensors)
            except MemoryShortageError as error:  # the save that needs it will say so where it matters
                self._board.emit(events.SnapshotFailed(self._clock.now(), -1, "memory", error.message))

        threading.Thread(target=prepare, name="durable-prepare", daemon=True).start()

    def acquire(
        self, spare: Callable[[], bool], *, room: bool, checkpoint: bool, patient: bool
    ) -> tuple[Slot | None, bool]:
        """A free slot, if every writer has one, and whether all of them have ``room`` for a checkpoint.

        ``spare`` gives back a slot that is only held to be compared with, if there is one. A ``checkpoint``
        waits for snapshots that are being sealed: they must not crowd it out, and sealing takes no longer
        than memory does. ``patient``: it waits for writes as well.
        """
        several = len(self._world.roles) > 1
        if self._errands is not None and several:
            self._errands.drain()
            if sum(free for free, _ in self._pool.held()) < 2:
                spare()  # the one that is free may be the one to be kept
        slot = self._pool.acquire(0.0)
        if slot is None and spare():
            slot = self._pool.acquire(0.0)
        if slot is None and checkpoint and self._errands is not None:
            self._errands.drain()
            spare()
            slot = self._pool.acquire(0.0)
        if slot is None and patient:
            self._board.count("delayed")
            slot = self._pool.acquire(None)
        if not several:
            return slot, room
        if slot is not None:
            slot.cancel()
        return self._agreed(room)

    def _agreed(self, room: bool) -> tuple[Slot | None, bool]:
        """With several writers: the newest snapshot that *all* of them have sealed is never given up.

        It is the newest of those common to all, not each one's own newest: a writer that could not seal
        its part of a step must not cost the others the step before. All have waited for their seals.
        """
        given_up = self._board.given_up
        mine = {"room": room, "slots": self._pool.held(), "given_up": given_up.told()}
        rows = self._world.all_gather(mine)
        given_up.heard(one for row in rows for one in row["given_up"])
        sealed = [{step for _, step in row["slots"] if step is not None} for row in rows]
        common = max(set.intersection(*sealed), default=None)
        usable = all(_can_spare(row["slots"], common) for row in rows)
        slot = self._pool.acquire(None, keep=common) if usable else None
        return slot, all(row["room"] for row in rows)

    def stage(self, slot: Slot, tensors: Mapping[str, Tensor], stable: frozenset[str]) -> Lease:
        """Copy what may change before the next update now, and the ``stable`` rest in the background."""
        staged = slot.stage(tensors, stable=stable, reached=probe.reached)
        if stable or self.keeping.memory_every is not None:
            self._unsettled = staged
        return Lease(staged)

    @property
    def unsettled(self) -> bool:
        return self._unsettled is not None

    def settle(self) -> None:
        """The guard: before anything may change what is still being copied.

        Where memory has a cadence of its own it waits for the seal too: without it a fast loop would run
        away from its snapshots, and a crash would cost more than the steps declared.
        """
        staged, self._unsettled = self._unsettled, None
        if staged is None:
            return
        staged.settle()
        if staged.void:
            self._board.count("voided")
        if self._errands is not None and self.keeping.memory_every is not None:
            self._errands.drain()

    def keep(
        self, lease: Lease, shard: StagedShard, request: SaveRequest, head: tuple[int, int] | None, *,
        checkpoint: bool,
    ) -> None:  # fmt: skip
        """Seal this snapshot, and send it to the peers, in the background. ``head``: (c, step) of the
        newest commit whose rows the request no longer needs; ``checkpoint``: it becomes one too."""
        if self._errands is None:
            return

        def failed(error: DurableError) -> None:
            now = self._clock.now()
            if isinstance(error, StaleSnapshotError):
                self._board.emit(events.SnapshotVoided(now, request.step, error.message))
            else:
                self._board.emit(events.SnapshotFailed(now, request.step, "memory", str(error)))

        every = self.keeping.peer_every
        send = self._sender is not None and (checkpoint if every is None else request.step % every == 0)
        work = partial(self._seal, lease, shard, request, head, send)
        self._errands.submit(Job(f"seal {request.step}", work, failed, lease.hold()))

    def _seal(
        self, lease: Lease, shard: StagedShard, request: SaveRequest, head: tuple[int, int] | None,
        send: bool,
    ) -> None:  # fmt: skip
        seal = sealing.seal_of(request, shard.describe(), head)
        shard.confirm()
        if self.keeping.memory:
            lease.staged.seal(seal)
            probe.reached(CrashPoint.K5)
            self._board.sealed("memory", request.step)
        if self._sender is None or not send:
            return
        if self._sender.pending:
            self._board.count("pushes_skipped")  # the network is behind: the next snapshot will do
            return
        work = partial(self._send, seal, lease)
        self._sender.submit(Job(f"send {request.step}", work, self._raise, lease.hold()))

    def _send(self, seal: Seal, lease: Lease) -> None:
        for store in self.keeping.peers:
            try:
                store.push(seal, lease.staged, self._clock.new_id()[:8])
            except DurableError as error:
                self._board.emit(events.SnapshotFailed(self._clock.now(), seal.step, store.name, str(error)))
            else:
                self._board.sealed("peer", seal.step)

    def _raise(self, error: DurableError) -> None:
        raise error

    def drain(self, timeout: float | None = None) -> bool:
        """Until every snapshot staged so far is kept, or has failed."""
        self.settle()
        done = [worker.drain(timeout) for worker in self._workers()]
        return all(done)

    def raise_bug(self) -> None:
        for worker in self._workers():
            if worker.bug is not None:
                raise worker.bug

    def close(self, timeout: float | None) -> bool:
        self.settle()
        done = [worker.close(timeout) for worker in self._workers()]  # each of them, whatever the first says
        return all(done)

    def _workers(self) -> tuple[Errands, ...]:
        return tuple(worker for worker in (self._errands, self._sender) if worker is not None)


def _can_spare(slots: list[tuple[bool, int | None]], common: int | None) -> bool:
    """Whether a writer with these slots has a free one beside the snapshot of step ``common``."""
    others = any(free and (step is None or step != common) for free, step in slots)
    return others or sum(free for free, step in slots if step == common) > 1
