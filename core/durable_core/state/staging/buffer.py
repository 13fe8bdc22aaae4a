"""L3. The reused memory behind a slot: the mapping, and one typed view per tensor of the layout.

The mapping is *shared*, also when it is anonymous: a data-loader worker forked while a slot is in use
must not turn the next save into copy-on-write faults.
"""

from __future__ import annotations

import errno
import mmap

import torch
from torch import Tensor

from durable_core.errors import MemoryShortageError
from durable_core.format.seal import HEADER_BYTES, Seal, SlotState
from durable_core.state import budget
from durable_core.state.slotfile import SlotFile
from durable_core.state.snapshots import SlotMemory
from durable_core.state.staging.device import Pin
from durable_core.state.staging.layout import Layout, Placed

_MADV_POPULATE_WRITE = 23  # Linux 5.14; the mmap module does not name it
_FAULT_STEP = 8 << 20  # madvise holds the GIL: let other threads in between


class Buffer:
    """Anonymous memory, or with ``memory`` a file there, which is made when it is first needed."""

    def __init__(self, memory: SlotMemory | None) -> None:
        self.memory = memory
        #: When it was sealed, as the pool counts; 0 while it holds no whole snapshot.
        self.sealed_at = 0
        #: The step of that snapshot.
        self.step: int | None = None
        self._file: SlotFile | None = None
        self._mapping: mmap.mmap | None = None
        self._begin = 0 if memory is None else HEADER_BYTES
        self._pin: Pin | None = None
        self._views: list[Tensor] = []
        self._layout: Layout | None = None

    @property
    def nbytes(self) -> int:
        """Bytes mapped."""
        return 0 if self._mapping is None else len(self._mapping)

    def prepare(self, layout: Layout, capacity: int = 0) -> None:
        """Map and page-fault for ``layout``, or for ``capacity`` bytes when that is more; grown only.

        What the slot holds does not change. For tensors from CUDA the memory is registered with it.
        ``UsageError`` with the numbers when there is not enough memory.
        """
        wanted = max(layout.nbytes, capacity, mmap.PAGESIZE)
        if self.nbytes < self._begin + wanted:
            self._unmap()  # the old pages go before the new ones come: peak is one buffer, not two
            self._mapping = self._map(wanted)
        if layout.cuda and self._pin is None:
            self._pin = Pin(self._whole())

    def views(self, layout: Layout) -> list[Tensor]:
        """One tensor of the slot's memory for each tensor of the layout, in the order they were given."""
        if layout is not self._layout:
            whole = self._whole()
            self._views = [_typed(whole, place, dtype) for place, dtype in layout.in_order()]
            self._layout = layout
        return self._views

    def bytes(self, layout: Layout) -> memoryview:
        """The tensors' bytes, writable."""
        assert self._mapping is not None
        return memoryview(self._mapping)[self._begin : self._begin + layout.nbytes]

    def dirty(self) -> None:
        """Before the first byte changes: whoever finds this slot after a crash leaves it alone."""
        self.sealed_at, self.step = 0, None
        if self._file is not None:
            self._file.mark(SlotState.DIRTY)

    def abandon(self) -> None:
        """Nobody will seal what is in there."""
        if self._file is not None and self._file.header.state is SlotState.DIRTY:
            self._file.mark(SlotState.EMPTY)

    def seal(self, seal: Seal) -> None:
        assert self._file is not None
        self._file.seal(seal)

    def close(self, *, remove: bool) -> None:
        """Give the memory back; a file stays unless ``remove``."""
        self._unmap()
        file, self._file = self._file, None
        if file is not None:
            (file.remove if remove else file.close)()

    def _map(self, nbytes: int) -> mmap.mmap:
        if self.memory is None:
            return _anonymous(nbytes)
        if self._file is None:
            self._file = self.memory.create()
        mapping = self._file.reserve(nbytes)
        _fault(mapping)
        return mapping

    def _unmap(self) -> None:
        self._views, self._layout = [], None
        pin, self._pin = self._pin, None
        if pin is not None:
            pin.release()
        self._mapping = None

    def _whole(self) -> Tensor:
        assert self._mapping is not None
        return torch.frombuffer(self._mapping, dtype=torch.uint8)[self._begin :]


def _anonymous(nbytes: int) -> mmap.mmap:
    """Anonymous shared memory with every page present; ``UsageError`` when there is not enough."""
    budget.require(nbytes, budget.rooms(None), what="staging")
    try:
        mapping = mmap.mmap(-1, nbytes)
        _fault(mapping)
    except OSError as error:
        raise MemoryShortageError(
            f"cannot reserve {nbytes} bytes of staging memory: {error}",
            hint="use fewer slots, or a machine with more memory",
        ) from error
    return mapping


def _fault(mapping: mmap.mmap) -> None:
    """Every page present and writable; their content stays. A first touch costs three times the copy."""
    nbytes = len(mapping)
    for begin in range(0, nbytes, _FAULT_STEP):
        length = min(_FAULT_STEP, nbytes - begin)
        try:
            mapping.madvise(_MADV_POPULATE_WRITE, begin, length)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # A kernel without the advice: touching each page does the same, slower.
            for page in range(begin, begin + length, mmap.PAGESIZE):
                mapping[page] = mapping[page]


def _typed(whole: Tensor, place: Placed, dtype: torch.dtype) -> Tensor:
    return whole[place.begin : place.begin + place.nbytes].view(dtype).view(place.shape)
