"""L3. A fixed number of slots, and the right to stage into one."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Collection, Mapping

from torch import Tensor

from durable_core.errors import DigestMismatchError, UsageError
from durable_core.format import digests
from durable_core.format.seal import Seal
from durable_core.state.snapshots import SlotMemory
from durable_core.state.staging.buffer import Buffer
from durable_core.state.staging.copying import Copy, Pair, copy_now
from durable_core.state.staging.device import Streams
from durable_core.state.staging.layout import Layout
from durable_core.state.staging.staged import Staged
from durable_core.threads import LastingPool
from durable_core.types import CrashPoint

Reached = Callable[[CrashPoint], None]
#: ``read(offset, out)``: fill ``out`` with a snapshot's bytes from ``offset``.
Read = Callable[[int, memoryview], None]

#: Background copies that are compared with the live tensors: the first ones, and a sample afterwards.
COMPARED_FIRST = 2
COMPARED_EVERY = 64

_pools: weakref.WeakSet[SlotPool] = weakref.WeakSet()


class Slot:
    """The right to stage once into one buffer: used up by ``stage`` or ``fill``, or handed back."""

    def __init__(self, pool: SlotPool, buffer: Buffer) -> None:
        self._pool = pool
        self._buffer: Buffer | None = buffer

    def stage(
        self, tensors: Mapping[str, Tensor], *, stable: Collection[str] = (), reached: Reached | None = None
    ) -> Staged:
        """Copy ``tensors`` (dense, any device, any strides) into the slot.

        ``stable``: keys of tensors that nothing but the next update changes. They are copied in the
        background, and ``Staged.settle`` must be called before that update; all others are copied on
        return. ``reached`` is told ``CrashPoint.K3`` half way. When anything fails the slot goes back to
        the pool and the error passes on; ``CodecError`` names a tensor whose dtype cannot be stored,
        ``UsageError`` has the numbers when there is not enough memory.
        """
        buffer = self._taken()
        try:
            layout = self._pool.layout(tensors)
            buffer.prepare(layout)
            staged = self._pool.stage(buffer, layout, tensors, stable, reached)
        except BaseException:
            self.cancel()
            raise
        self._buffer = None
        return staged

    def fill(self, seal: Seal, read: Read) -> Staged:
        """Lay the slot out as ``seal`` says and fill it by ``read``, one slice at a time.

        Every slice is verified once it lies here: ``DigestMismatchError`` names the tensor that differs from
        the seal, ``FormatError`` a seal whose slices are not whole tensors; what ``read`` raises passes
        on. The slot then goes back to the pool, empty. The result is not sealed yet.
        """
        buffer = self._taken()
        key = f"snapshot of {seal.role} at step {seal.step}"
        try:
            layout = Layout.sealed(seal.infos, key=key)
            buffer.prepare(layout)
            buffer.dirty()
            memory = buffer.bytes(layout)
            for info, begin in seal.begins():
                part = memory[begin : begin + info.nbytes]
                read(begin, part)
                if digests.xxh3(part) != info.xxh3:
                    raise DigestMismatchError(key, f"the bytes of {info.slice} are not those sealed")
            staged = Staged(self._pool, buffer, layout)
        except BaseException:
            self.cancel()
            raise
        self._buffer = None
        return staged

    def cancel(self) -> None:
        """Hand the slot back unused. Harmless when repeated, or after ``stage``."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            self._pool.give_back(buffer)

    def _taken(self) -> Buffer:
        buffer = self._buffer
        if buffer is None or not self._pool.owns(buffer):
            raise UsageError("this slot was used already", hint="acquire() one slot per save and process")
        return buffer


class SlotPool:
    """A fixed number of staging slots; the bound on how far saving may lag behind training.

    ``slots`` slots of the size of the state each. With ``memory`` they are files in shared memory, and at
    least two: the newest sealed one is never handed out, so that whenever this process dies, while
    staging too, one whole snapshot is left. Thread-safe: the training thread acquires, the writer's
    thread releases. In a forked child the pool is a new, empty one; the parent's slots are not usable there.
    """

    def __init__(self, slots: int = 2, memory: SlotMemory | None = None) -> None:
        if slots < 1:
            raise UsageError(f"slots must be at least 1, not {slots}")
        if memory is not None and slots < 2:
            raise UsageError("a memory tier needs 2 slots: one is kept while the other is written")
        self._count, self._memory = slots, memory
        #: Why nothing is copied in the background any more.
        self.eager_reason: str | None = None
        self._start()
        _pools.add(self)

    def _start(self) -> None:
        self._buffers = tuple(Buffer(self._memory) for _ in range(self._count))
        self._free = list(self._buffers)
        self._changed = threading.Condition()
        self._closed: bool | None = None  # or whether to remove what comes back
        self._layout: Layout | None = None
        self._thread = LastingPool(max_workers=1, thread_name_prefix="durable-stage")
        self._streams = Streams()
        self._seals = self._background = 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory mapped by all slots."""
        return sum(buffer.nbytes for buffer in self._buffers)

    def prepare(self, tensors: Mapping[str, Tensor], *, capacity: int = 0) -> None:
        """Map and page-fault every free slot for a state like this one: the first save is then not slow.

        ``capacity``: bytes that a slot holds at least, for a state that will grow (an optimizer has no
        moments before its first step). May run on a thread of its own: slots are taken one at a
        time, so that another can be acquired meanwhile. Needs dtypes, shapes and devices only. ``UsageError``
        with the numbers when there is not enough memory.
        """
        layout = self.layout(tensors)
        with self._changed:
            free = list(self._free)
        for buffer in free:
            with self._changed:
                if buffer not in self._free:
                    continue  # acquired since: it prepares itself
                self._free.remove(buffer)
            try:
                buffer.prepare(layout, capacity)
                buffer.views(layout)
            finally:
                self.give_back(buffer)

    def acquire(self, timeout: float | None = 0.0, *, keep: int | None = None) -> Slot | None:
        """A free slot, or ``None`` if none comes free within ``timeout`` seconds (``None``: no limit).

        One without a sealed snapshot if there is one, else the one with the oldest. Never the one with the
        snapshot of step ``keep``, which is the newest that several writers all have; ``None``: the newest.
        """
        with self._changed:
            if self._closed is not None:
                raise UsageError("this pool was closed")
            if not self._changed.wait_for(lambda: self._usable(keep), timeout):
                return None
            buffer = min(self._usable(keep), key=lambda buffer: buffer.sealed_at)
            self._free.remove(buffer)
            return Slot(self, buffer)

    def held(self) -> list[tuple[bool, int | None]]:
        """For each slot whether it is free, and the step of the sealed snapshot in it, if there is one."""
        with self._changed:
            return [(buffer in self._free, buffer.step) for buffer in self._buffers]

    def layout(self, tensors: Mapping[str, Tensor]) -> Layout:
        """The layout for this state; the one made before when nothing about it changed."""
        layout = self._layout
        if layout is None or not layout.fits(tensors):
            layout = self._layout = Layout.of(tensors)
        return layout

    def close(self, *, remove: bool) -> None:
        """Give up every slot, one in use once it is released; ``remove``: with what is sealed in it, because
        the run has ended."""
        with self._changed:
            self._closed = remove
            free, self._free = self._free, []
        for buffer in free:
            buffer.close(remove=remove)
        self._thread.shutdown(wait=True)

    # --- for slots and what is staged in them ------------------------------------------------

    def stage(
        self, buffer: Buffer, layout: Layout, tensors: Mapping[str, Tensor], stable: Collection[str],
        reached: Reached | None,
    ) -> Staged:  # fmt: skip
        """``Slot.stage`` into a prepared buffer."""
        views = buffer.views(layout)
        sources = list(tensors.values())
        later: list[Pair] = []
        if stable and self.eager_reason is None:
            pairs = list(zip(tensors, views, sources, strict=True))
            later = [pair for pair in pairs if pair[0] in stable and _plain(pair[2])]
            behind = {key for key, _, _ in later}
            views = [view for key, view, _ in pairs if key not in behind]
            sources = [source for key, _, source in pairs if key not in behind]
        buffer.dirty()
        half, streams = len(sources) // 2, self._streams if layout.cuda else None
        copy_now(views[:half], sources[:half], streams)
        if reached is not None:
            reached(CrashPoint.K3)
        copy_now(views[half:], sources[half:], streams)
        if not later:
            return Staged(self, buffer, layout)
        compare = self._background < COMPARED_FIRST or self._background % COMPARED_EVERY == 0
        self._background += 1
        parts = self._streams.copy((view, source) for _, view, source in later if source.is_cuda)
        copy = Copy(later, parts, self._thread, keep=compare)
        return Staged(self, buffer, layout, copy, compare=compare)

    def owns(self, buffer: Buffer) -> bool:
        """Not in a forked child, where it is the parent's."""
        return buffer in self._buffers

    def give_back(self, buffer: Buffer) -> None:
        if not self.owns(buffer):
            return
        buffer.abandon()
        with self._changed:
            closed = self._closed
            if closed is None:
                self._free.append(buffer)
                self._changed.notify()
        if closed is not None:
            buffer.close(remove=closed)

    def note_sealed(self, buffer: Buffer, step: int) -> None:
        with self._changed:
            self._seals += 1
            buffer.sealed_at, buffer.step = self._seals, step
            self._changed.notify()  # what was the newest snapshot is not any more

    def distrust(self, reason: str) -> None:
        self.eager_reason = reason

    def _usable(self, keep: int | None) -> list[Buffer]:
        """One snapshot is kept: of several of that step the one sealed last, and not all of them."""
        sealed = [each for each in self._buffers if each.step is not None and keep in (None, each.step)]
        kept = max(sealed, key=lambda buffer: buffer.sealed_at, default=None)
        return [buffer for buffer in self._free if buffer is not kept]


def _plain(source: Tensor) -> bool:
    """Whether the background thread can copy it byte by byte."""
    return (source.is_cpu or source.is_cuda) and not (source.is_conj() or source.is_neg())


def _renew() -> None:
    """In a forked child: the slots are the parent's, its copying thread is not here, and its locks may be
    held by threads that are not here either."""
    for pool in tuple(_pools):
        pool._start()


os.register_at_fork(after_in_child=_renew)
