"""L3. The bytes of one state in one slot, from the copy to the release."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Protocol

from durable_core.errors import StaleSnapshotError, UsageError
from durable_core.format.seal import Seal
from durable_core.state.staging.buffer import Buffer
from durable_core.state.staging.copying import Copy
from durable_core.state.staging.layout import Layout
from durable_core.types import SliceKey


class Owner(Protocol):
    """The pool, as its staged bytes see it."""

    def give_back(self, buffer: Buffer) -> None: ...

    def note_sealed(self, buffer: Buffer, step: int) -> None: ...

    def distrust(self, reason: str) -> None: ...


class Staged:
    """Bytes of one state in one slot, until ``release``. Also a context manager.

    The views are read-only and zero-copy; they must not be used after ``release``, because the slot is
    then free for the next save.

    With a copy in the background the bytes may be read (hashed, written) as soon as they are there, but
    they are *known* to be the state of the boundary only when the guard, ``settle``, has run on
    the training thread before the next update: until then nothing that counts may be made of them (no
    seal, no receipt). ``confirmed`` waits for that. Where no comparison was due, it rests on the guard
    having run before anything changed a tensor that was declared stable.
    """

    def __init__(
        self, owner: Owner, buffer: Buffer, layout: Layout, copy: Copy | None = None, *, compare: bool = False
    ) -> None:
        self._owner = owner
        self._buffer: Buffer | None = buffer
        self._layout = layout
        self._memory = buffer.bytes(layout).toreadonly()
        self._copy, self._compare = copy, compare
        self._void: str | None = None
        self._decided = threading.Event()
        self._process = os.getpid()
        if copy is None:
            self._decided.set()

    @property
    def slices(self) -> tuple[SliceKey, ...]:
        """Every slice, sorted by key, then in row-major order."""
        return self._layout.slices

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return self._layout.nbytes

    @property
    def void(self) -> str | None:
        """Why these bytes are not the state of the boundary; ``None`` as far as is known."""
        return self._void

    def dtype(self, key: str) -> str:
        """The safetensors dtype name of a logical tensor."""
        return self._layout.placed[key].dtype

    def global_shape(self, key: str) -> tuple[int, ...]:
        """The whole (global) shape of a logical tensor."""
        return self._layout.placed[key].shape

    def view(self, piece: SliceKey) -> memoryview:
        """The bytes of one slice, zero-copy, once they are copied.

        ``UsageError`` after ``release``, ``StaleSnapshotError`` when they are void.
        """
        begin, end = self._layout.range(piece)
        return self._copied()[begin:end]

    def gather(self, pieces: Iterable[SliceKey]) -> list[memoryview]:
        """The bytes of several slices, in the order asked for, with neighbours in memory joined.

        For writing: two thousand small tensors asked for in the slot's own order are one buffer. Errors
        as ``view``.
        """
        memory = self._copied()
        runs: list[tuple[int, int]] = []
        for piece in pieces:
            begin, end = self._layout.range(piece)
            if runs and runs[-1][1] == begin:
                runs[-1] = (runs[-1][0], end)
            elif begin != end:
                runs.append((begin, end))
        return [memory[begin:end] for begin, end in runs]

    # --- the guard ---------------------------------------------------------------------------

    def settle(self) -> None:
        """The guard: on the training thread, before anything may change a tensor declared stable.

        Waits for the copy in the background (on CUDA the current stream waits, and not the host). When torch
        counts a write to a live tensor, or a comparison is due and finds other bytes, the bytes are ``void``
        and the pool stages eagerly from then on. Harmless when repeated, and when everything was copied at
        once. When no update follows, whoever waits for the save calls it first (a flush, a close).
        """
        if self._decided.is_set() or os.getpid() != self._process:
            return
        copy = self._copy
        assert copy is not None
        try:
            copy.hold()
            key = copy.touched()
            if key is None and self._compare and copy.wait() is None:
                key = copy.difference()
            if key is not None and not copy.cancelled:
                self._void = f"{key!r} changed between the boundary and the next update"
                self._owner.distrust(self._void)
        except BaseException as error:
            self._void = f"the guard failed: {error!r}"  # whoever waits for the verdict must get one
            raise
        finally:
            copy.forget()
            self._decided.set()

    def confirmed(self, timeout: float | None = None) -> bool:
        """Wait until the guard has run: whether it has within ``timeout`` seconds (``None``: no limit).

        ``StaleSnapshotError`` when the bytes are void. Not for the training thread, which runs the guard.
        """
        if not self._decided.wait(timeout):
            return False
        self._refuse_void()
        return True

    # --- the end -----------------------------------------------------------------------------

    def seal(self, seal: Seal) -> None:
        """Make these bytes a snapshot that outlives this process. ``seal.infos`` may come in any order.

        ``UsageError`` before ``confirmed``, without shared memory, for another run or role, or for infos
        that are not those of the slices; ``StaleSnapshotError`` when the bytes are void; ``TierFull`` when
        there is no memory for the seal. After an error the slot is not sealed.
        """
        self._copied()
        buffer = self._buffer
        if buffer is None or buffer.memory is None:
            raise UsageError("anonymous memory cannot be sealed", hint="SlotPool(memory=SlotMemory(run_id))")
        if not self.confirmed(0.0):
            raise UsageError("these bytes are not known to be whole", hint="settle(), then seal()")
        memory = buffer.memory
        if seal.run_id != memory.run_id or memory.role not in (None, seal.role):
            theirs, ours = (seal.run_id, seal.role), (memory.run_id, memory.role)
            raise UsageError(f"a seal of {theirs} in slots of {ours} (run, role)")
        infos = {info.slice: info for info in seal.infos}
        if len(infos) != len(seal.infos) or infos.keys() != set(self.slices):
            raise UsageError("a seal's infos are those of every staged slice, once each")
        in_place = sorted(self.slices, key=self._layout.range)
        buffer.seal(dataclasses.replace(seal, infos=tuple(infos[piece] for piece in in_place)))
        self._owner.note_sealed(buffer, seal.step)

    def discard(self) -> None:
        """Give the slot back with nothing sealed in it: what was sealed shall never be adopted."""
        if self._buffer is not None and os.getpid() == self._process:
            self._buffer.dirty()
        self.release()

    def release(self) -> None:
        """Give the slot back; what was sealed stays so until the slot is used again. Harmless when repeated.

        A copy still under way is ended first.
        """
        buffer, self._buffer = self._buffer, None
        if buffer is None or os.getpid() != self._process:
            return
        if self._copy is not None:
            self._copy.cancel()
        if not self._decided.is_set():
            self._void = self._void or "released before the guard had run"
            self._decided.set()
        self._owner.give_back(buffer)

    def _copied(self) -> memoryview:
        if self._buffer is None or os.getpid() != self._process:
            raise UsageError("these staged bytes were released", hint="finish writing before release()")
        self._refuse_void()
        return self._memory

    def _refuse_void(self) -> None:
        error = None if self._copy is None else self._copy.wait()
        if error is not None:
            raise StaleSnapshotError(f"the copy in the background failed: {error!r}") from error
        if self._void is not None:
            raise StaleSnapshotError(self._void, hint="the next save stages everything at once")

    def __enter__(self) -> Staged:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
