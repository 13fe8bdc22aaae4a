"""L3. ``buffered_v1``: objects in keyed order, read one after another through a bounded shuffle buffer.

This is *not* a permutation in which any record may stand anywhere, and never called one. The buffer
holds B ids; each step hands out one of them, drawn by a keyed counter, and the next id of the stream
takes its place; at the end of the epoch the buffer runs empty. Every record comes once in an epoch.

*Mixing distance.* Against its place in the stream a record comes at most B - 1 places early. It is
late without bound, but with fast falling odds: in the steady state it waits w steps in the buffer
with probability (1 - 1/B)^(w - 1) / B, so B on average, and is displaced by about B (standard deviation).
Records of one object stay near one another: choose B as several objects' worth, or ``block_prp_v1``,
which mixes S objects evenly and has nothing to save. What this order has for it is that one
object is open at a time.

The state is the epoch, the position and the ids in the buffer: 8 to 16 bytes of JSON per id. It is pure
and goes with the batch, so a kill with a filled buffer costs nothing. Memory: O(objects) besides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from durable_core.data.order.arithmetic import counter_words, derive_keys
from durable_core.data.order.base import Ids
from durable_core.data.order.blocks import Blocks, Sizes
from durable_core.data.order.make import check_name, needed_blocks, read_description, recorded_number
from durable_core.data.sequence import Batch, State
from durable_core.errors import FormatError, UsageError

BUFFERED = "buffered_v1"
MAX_STATE = 1 << 20  # bytes: the ids in the buffer are part of every checkpoint, as JSON

_HALF = np.uint64(32)


class BufferedSequence:
    """``buffered_v1`` (see the module), a ``Sequence``.

    Args:
        blocks: records of each object, int64 [objects]; ids count through the objects in this order.
        buffer: B, the ids held; one that holds the whole epoch is full after reading all of it.

    Raises ``UsageError`` for a buffer whose ids would take more than ``MAX_STATE`` in each checkpoint.
    """

    carries = False

    def __init__(
        self, blocks: Sizes | Blocks, *, buffer: int, dataset_id: str, seed: int, source: str = ""
    ) -> None:
        if buffer < 1:
            raise UsageError(f"a shuffle buffer holds 1 id or more, not {buffer}")
        self.blocks = blocks if isinstance(blocks, Blocks) else Blocks(blocks)
        _check_state(buffer, self.blocks.size)
        self.buffer = buffer
        self.size = self.blocks.size
        self.name = f"{BUFFERED}:{buffer}:{self.blocks.digest}"
        self.description: Mapping[str, Any] = {
            "name": self.name, "size": self.size, "dataset_id": dataset_id, "source": source,
            "blocks": self.blocks.runs(),
        }  # fmt: skip
        self._context, self._seed = (BUFFERED, dataset_id, source, buffer), seed
        self._objects: tuple[int, Ids, Ids] | None = None  # epoch, objects in order, ends of each

    @classmethod
    def from_description(
        cls, description: Mapping[str, Any], *, seed: int, blocks: Sizes | Blocks | None = None
    ) -> BufferedSequence:
        """What ``description`` was taken from; ``blocks`` as for ``order_from``, and the same errors."""
        given = read_description(description)
        known = blocks if given.blocks is None else given.blocks
        whole = needed_blocks(given.name, given.size, known)
        buffer = recorded_number(given.name)
        made = cls(whole, buffer=buffer, dataset_id=given.dataset_id, seed=seed, source=given.source)
        check_name(made.name, given.name)
        return made

    def batches(self, global_batch: int) -> int | None:
        return -(-self.size // global_batch)

    def start(self, epoch: int, before: State | None = None) -> State:
        filled = self._stream(epoch, 0, min(self.buffer, self.size))
        return {"epoch": epoch, "position": 0, "buffer": filled.tolist()}

    def take(self, state: State, count: int) -> tuple[Batch, State]:
        """Raises ``FormatError`` for a state that is not one of this sequence's."""
        epoch, position, buffer = state["epoch"], state["position"], list(state["buffer"])
        read = position + len(buffer)  # ids taken from the stream so far
        if len(buffer) != min(self.buffer, self.size - position):
            raise FormatError("sequence", f"{len(buffer)} ids in the buffer at position {position}")
        end = min(position + count, self.size)
        draws = self._draws(epoch, position, end).tolist()
        coming = self._stream(epoch, read, min(read + end - position, self.size)).tolist()
        ids = []
        for draw, fresh in zip(draws, coming, strict=False):
            ids.append(buffer[draw])
            buffer[draw] = fresh
        for draw in draws[len(coming) :]:  # nothing more comes: the last one fills the hole
            ids.append(buffer[draw])
            last = buffer.pop()
            if draw < len(buffer):
                buffer[draw] = last
        batch = Batch(np.array(ids, dtype=np.int64), np.full(len(ids), epoch, dtype=np.int64))
        return batch, {"epoch": epoch, "position": end, "buffer": buffer}

    def _draws(self, epoch: int, start: int, stop: int) -> Ids:
        """Which place of the buffer is handed out at each position: the top 32 bits of a word, scaled."""
        words = counter_words(start, stop, derive_keys(*self._context, "draws", epoch, self._seed))
        held = np.minimum(self.buffer, self.size - np.arange(start, stop)).astype(np.uint64)
        words >>= _HALF
        words *= held
        words >>= _HALF
        return words.astype(np.int64)

    def _stream(self, epoch: int, start: int, stop: int) -> Ids:
        """Record ids [start, stop) as they are read: objects in keyed order, each from its first record."""
        if self._objects is None or self._objects[0] != epoch:
            objects = self.blocks.permuted(derive_keys(*self._context, "objects", epoch, self._seed))
            self._objects = (epoch, objects, np.cumsum(self.blocks.counts[objects]))
        _, objects, ends = self._objects
        places = np.arange(start, stop, dtype=np.int64)
        which = np.searchsorted(ends, places, side="right")
        object_of = objects[which]
        ids: Ids = self.blocks.begins[object_of] + places - (ends[which] - self.blocks.counts[object_of])
        return ids


def _check_state(buffer: int, size: int) -> None:
    each = len(str(size - 1)) + 1  # its digits, and a comma
    held = min(buffer, size)
    if held * each > MAX_STATE:
        raise UsageError(
            f"a shuffle buffer of {held} ids would be {held * each} bytes of each checkpoint",
            hint=f"use {MAX_STATE // each} or fewer here, or BlockShuffle, which mixes more and has no state",
        )
