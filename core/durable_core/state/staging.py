"""L3. Staging: a sealed copy of the training state in memory that was paid for beforehand.

The training thread pays one memory copy per save and nothing else: the destination is mapped,
page-faulted (a first touch costs three times the copy) and cut into typed views by ``prepare``, off
the hot path, and is used again for every later save. A slot holds tensors back to back in the order
safetensors uses (widest element first, then by key), so there is no padding, every tensor is aligned
to its element, and neighbouring slices can be written with one call.

The mapping is anonymous and *shared*: a data-loader worker forked while a slot is in use must not
turn the next save into copy-on-write faults.
"""

from __future__ import annotations

import errno
import math
import mmap
import operator
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType

import torch
from torch import Tensor

from durable_core.errors import CodecError, UsageError
from durable_core.state.dtypes import TO_NAME
from durable_core.state.slices import SLICE_BYTES, flat_begin, split
from durable_core.types import CrashPoint, SliceKey

_MADV_POPULATE_WRITE = 23  # Linux 5.14; the mmap module does not name it
_FAULT_STEP = 8 << 20  # madvise holds the GIL: let other threads in between

Reached = Callable[[CrashPoint], None]


@dataclass(frozen=True)
class _Placed:
    """One tensor's place in a slot: ``begin`` and ``nbytes`` are bytes from the slot's start."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    nbytes: int


class Layout:
    """Where every tensor of one state lies inside a slot. Immutable; equal states share one."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._keys = list(tensors)
        self._forms = _forms(tensors)
        specs = [
            (key, dtype, tuple(shape)) for key, (dtype, shape) in zip(self._keys, self._forms, strict=True)
        ]
        self.placed: dict[str, _Placed] = {}
        begin = 0
        for key, dtype, shape in sorted(specs, key=lambda spec: (-spec[1].itemsize, spec[0])):
            name = TO_NAME.get(dtype)
            if name is None:
                raise CodecError(key, f"tensors of {dtype} cannot be stored", hint="convert it before saving")
            nbytes = math.prod(shape) * dtype.itemsize
            self.placed[key] = _Placed(name, dtype, shape, begin, nbytes)
            begin += nbytes
        self.nbytes = begin
        self.slices: tuple[SliceKey, ...] = tuple(
            piece
            for key in sorted(self.placed)
            for piece in split(key, self.placed[key].shape, self.placed[key].dtype.itemsize, SLICE_BYTES)
        )

    def fits(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether ``tensors`` have these keys, in this order, with these dtypes and shapes."""
        return self._keys == list(tensors) and self._forms == _forms(tensors)

    def in_order(self) -> list[_Placed]:
        """The places of the tensors in the order in which they were given."""
        return [self.placed[key] for key in self._keys]


_form = operator.attrgetter("dtype", "shape")  # in C: this is asked of every tensor at every save


def _forms(tensors: Mapping[str, Tensor]) -> list[tuple[torch.dtype, torch.Size]]:
    return list(map(_form, tensors.values()))


def _map(nbytes: int) -> mmap.mmap:
    """Anonymous shared memory with every page present; ``UsageError`` when there is not enough."""
    try:
        memory = mmap.mmap(-1, nbytes)
        _fault(memory, nbytes)
    except OSError as error:
        raise UsageError(
            f"cannot reserve {nbytes} bytes of staging memory: {error}",
            hint="use fewer slots, or a machine with more memory",
        ) from error
    return memory


def _fault(memory: mmap.mmap, nbytes: int) -> None:
    for begin in range(0, nbytes, _FAULT_STEP):
        length = min(_FAULT_STEP, nbytes - begin)
        try:
            memory.madvise(_MADV_POPULATE_WRITE, begin, length)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # A kernel without the advice: touching each page does the same, slower.
            for page in range(begin, begin + length, mmap.PAGESIZE):
                memory[page] = 0


class _Buffer:
    """The reused memory behind a slot: the mapping, and one typed view per tensor of the layout."""

    def __init__(self) -> None:
        self.memory: mmap.mmap | None = None
        self.views: list[Tensor] = []
        self._layout: Layout | None = None

    def prepare(self, layout: Layout, capacity: int = 0) -> None:
        """Map (grown only when the layout grows) and cut into views; nothing when already so."""
        wanted = max(layout.nbytes, capacity, mmap.PAGESIZE)
        mapped = 0 if self.memory is None else len(self.memory)
        if layout is self._layout and mapped >= wanted:
            return
        self.views, self._layout = [], None
        if mapped < wanted:
            self.memory = None  # the old pages go before the new ones come: peak is one buffer, not two
            self.memory = _map(wanted)
        assert self.memory is not None
        whole = torch.frombuffer(self.memory, dtype=torch.uint8)
        self.views = [_typed(whole, place) for place in layout.in_order()]
        self._layout = layout

    def sealed(self, layout: Layout) -> memoryview:
        assert self.memory is not None
        return memoryview(self.memory).toreadonly()[: layout.nbytes]


def _typed(whole: Tensor, place: _Placed) -> Tensor:
    return whole[place.begin : place.begin + place.nbytes].view(place.dtype).view(place.shape)


class Staged:
    """Sealed bytes of one state in one slot, until ``release``. Also a context manager.

    Nothing here aliases a live tensor. The views are read-only and zero-copy; they must not be used
    after ``release``, because the slot is then free for the next save.
    """

    def __init__(self, pool: SlotPool, buffer: _Buffer, layout: Layout) -> None:
        self._pool = pool
        self._buffer: _Buffer | None = buffer
        self._layout = layout
        self._memory = buffer.sealed(layout)

    @property
    def slices(self) -> tuple[SliceKey, ...]:
        """Every slice, sorted by key, then in row-major order."""
        return self._layout.slices

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return self._layout.nbytes

    def dtype(self, key: str) -> str:
        """The safetensors dtype name of a logical tensor."""
        return self._layout.placed[key].name

    def global_shape(self, key: str) -> tuple[int, ...]:
        """The whole (global) shape of a logical tensor."""
        return self._layout.placed[key].shape

    def view(self, piece: SliceKey) -> memoryview:
        """The bytes of one slice, zero-copy. ``UsageError`` after ``release``."""
        begin, end = self._range(piece)
        return self._alive()[begin:end]

    def gather(self, pieces: Iterable[SliceKey]) -> list[memoryview]:
        """The bytes of several slices, in the order asked for, with neighbours in memory joined.

        For writing: two thousand small tensors asked for in the slot's own order are one buffer.
        """
        memory = self._alive()
        runs: list[tuple[int, int]] = []
        for piece in pieces:
            begin, end = self._range(piece)
            if runs and runs[-1][1] == begin:
                runs[-1] = (runs[-1][0], end)
            elif begin != end:
                runs.append((begin, end))
        return [memory[begin:end] for begin, end in runs]

    def release(self) -> None:
        """Give the slot back. Harmless when repeated."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            self._pool._give_back(buffer)

    def _alive(self) -> memoryview:
        if self._buffer is None:
            raise UsageError("these staged bytes were released", hint="finish writing before release()")
        return self._memory

    def _range(self, piece: SliceKey) -> tuple[int, int]:
        place = self._layout.placed[piece.key]
        begin = place.begin + flat_begin(piece, place.shape) * place.dtype.itemsize
        return begin, begin + math.prod(piece.shape) * place.dtype.itemsize

    def __enter__(self) -> Staged:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Slot:
    """The right to stage once into one buffer. Used up by ``stage``, or handed back by ``cancel``."""

    def __init__(self, pool: SlotPool, buffer: _Buffer) -> None:
        self._pool = pool
        self._buffer: _Buffer | None = buffer

    def stage(self, tensors: Mapping[str, Tensor], *, reached: Reached | None = None) -> Staged:
        """Copy ``tensors`` (dense, any device, any strides) into the slot and seal them.

        ``reached`` is told ``CrashPoint.K3`` half way. When anything fails the slot goes back to the
        pool and the error passes on; ``CodecError`` names a tensor whose dtype cannot be stored.
        """
        buffer = self._buffer
        if buffer is None:
            raise UsageError("this slot was used already", hint="acquire() one slot per save")
        try:
            layout = self._pool.layout(tensors)
            buffer.prepare(layout)
            sources = list(tensors.values())
            half = len(sources) // 2
            _copy(buffer.views[:half], sources[:half])
            if reached is not None:
                reached(CrashPoint.K3)
            _copy(buffer.views[half:], sources[half:])
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
            self._pool._give_back(buffer)


def _copy(destinations: list[Tensor], sources: list[Tensor]) -> None:
    if sources:
        with torch.no_grad():
            torch._foreach_copy_(destinations, sources)  # one call: 2,000 tensors cost microseconds each


class SlotPool:
    """A fixed number of staging slots; the bound on how far saving may lag behind training.

    ``slots`` slots of the size of the state each. Thread-safe: the training thread acquires, the
    writer's thread releases.
    """

    def __init__(self, slots: int = 2) -> None:
        if slots < 1:
            raise UsageError(f"slots must be at least 1, not {slots}")
        self._buffers = tuple(_Buffer() for _ in range(slots))
        self._free = list(self._buffers)
        self._changed = threading.Condition()
        self._layout: Layout | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of memory mapped by all slots."""
        return sum(len(buffer.memory) for buffer in self._buffers if buffer.memory is not None)

    def prepare(self, tensors: Mapping[str, Tensor], *, capacity: int = 0) -> None:
        """Map and page-fault every free slot for a state like this one: the first save is then not slow.

        ``capacity``: bytes that a slot holds at least, for a state that will grow (an optimizer has no
        moments before its first step). May run on a thread of its own: slots are taken one at a
        time, so that another can be acquired meanwhile. Needs dtypes and shapes only.
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
            finally:
                self._give_back(buffer)

    def acquire(self, timeout: float | None = 0.0) -> Slot | None:
        """A free slot, or ``None`` if none comes free within ``timeout`` seconds (``None``: no limit)."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._free, timeout):
                return None
            return Slot(self, self._free.pop())

    def layout(self, tensors: Mapping[str, Tensor]) -> Layout:
        """The layout for this state; the one made before when nothing about it changed."""
        layout = self._layout
        if layout is None or not layout.fits(tensors):
            layout = self._layout = Layout(tensors)
        return layout

    def _give_back(self, buffer: _Buffer) -> None:
        with self._changed:
            self._free.append(buffer)
            self._changed.notify()
