"""L3. A sequence of packs over any sequence of documents, planned from their lengths alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from durable_core.data.order import Ids
from durable_core.data.packing.packer import FIELDS, Pack, Packer
from durable_core.data.packing.policy import Packing
from durable_core.data.sequence import Batch, Sequence, State
from durable_core.errors import OrderError, UnsupportedError, UsageError

CHUNK = 256
"""Documents taken from the inner sequence at once. A state names the chunk by the inner state before
it, and how many of it were packed: so what was taken and not packed needs no memory."""
_BLOCK = 1 << 20  # lengths hashed at once


@dataclass(frozen=True)
class _Chunk:
    before: State
    documents: list[tuple[int, int, int]]  # id, epoch, length
    after: State
    last: bool


class PackedSequence:
    """Each sample is a pack: ``Batch.packs`` groups the pieces, ``begins``/``ends`` are their token ranges.

    The packs depend on the documents' order and lengths only, not on how many are taken at a time. An
    epoch that ends flushes what is open, as ``packing.tail`` says. When ``inner`` carries and an epoch is
    left early, what was open goes on into the next; otherwise it is left with the rest of that epoch.

    State: the inner state, a count, and the packer's residue of references: one document with greedy,
    the open packs with best fit. Around a mixture also ``batch``, the number of batches taken: weights that
    change at a batch do so with the first chunk begun for it, and the documents in hand are packed before.

    Args:
        inner: documents, one piece a sample.
        packing: the policy.
        lengths: integers [documents], tokens of each document, indexed by id; a memory map is fine.
        lengths_id: identity of ``lengths``; None: the digest of its values, read once when asked for.

    Raises:
        UsageError: ``lengths`` is no array of integers; in ``take``, when an id has no length or a
            negative one, or a document is refused for its length.
        UnsupportedError: ``inner`` gives packs already.
    """

    def __init__(
        self,
        inner: Sequence,
        packing: Packing,
        lengths: npt.ArrayLike,
        *,
        lengths_id: str | None = None,
    ) -> None:
        self.inner, self.packing = inner, packing
        self.name = f"{packing.name}:{inner.name}"
        self._lengths = np.asanyarray(lengths)
        if self._lengths.ndim != 1 or self._lengths.dtype.kind not in "iu":
            kind = f"{self._lengths.dtype} {list(self._lengths.shape)}"
            raise UsageError(f"lengths must be integers [documents], not {kind}")
        self._lengths_id = lengths_id
        self._at_batch = getattr(inner, "at_batch", None)
        self._chunk: _Chunk | None = None
        self._live: tuple[State, Packer] | None = None  # the packer whose state that is

    @property
    def carries(self) -> bool:
        return self.inner.carries

    @property
    def description(self) -> Mapping[str, Any]:
        if self._lengths_id is None:
            self._lengths_id = digest_lengths(self._lengths)
        return {
            "name": self.name,
            "packing": self.packing.description,
            "lengths": self._lengths_id,
            "inner": dict(self.inner.description),
        }

    def batches(self, global_batch: int) -> int | None:
        """None: only the end will tell."""
        return None

    def start(self, epoch: int, before: State | None = None) -> State:
        if before is None or not self.carries:
            state = {"inner": self.inner.start(epoch), "used": 0, "packer": Packer(self.packing).state()}
            return state if self._at_batch is None else {**state, "batch": 0}
        inner = before["inner"]
        if before["used"]:  # the epoch was left in the middle of a chunk: what was packed of it stays packed
            inner = self.inner.take(inner, before["used"])[1]
        residue = {**before["packer"], "closing": False}
        return {**before, "inner": self.inner.start(epoch, inner), "used": 0, "packer": residue}

    def take(self, state: State, count: int) -> tuple[Batch, State]:
        packer = self._packer(state)
        inner, used = state["inner"], state["used"]
        packs: list[Pack] = []
        while len(packs) < count:
            pack = packer.pop()
            if pack is not None:
                packs.append(pack)
                continue
            if packer.closing:
                break
            if self._at_batch is not None and not used:
                inner = self._at_batch(inner, state["batch"])
            chunk = self._taken(inner)
            if used < len(chunk.documents):
                packer.offer(*chunk.documents[used])
                used += 1
                continue
            inner, used = chunk.after, 0
            if chunk.last:
                packer.flush()
        after = {**state, "inner": inner, "used": used, "packer": packer.state()}
        if self._at_batch is not None and packs:
            after["batch"] += 1
        self._live = (after, packer)
        return _batch(packs), after

    def with_update(self, state: State, at_batch: int, weights: Mapping[str, Any]) -> State:
        """Other weights for a mixture inside, from a batch on; see ``MixedSequence.with_update``.

        Raises ``UnsupportedError`` where there is none, ``OrderError`` when that batch was taken.
        """
        change = getattr(self.inner, "with_update", None)
        if change is None:
            raise UnsupportedError(f"{self.inner.name} has no weights that could be changed")
        if at_batch < state["batch"]:  # the chunk in hand was begun for a batch before that one
            raise OrderError(f"weights from global batch {at_batch} are too late: it is taken")
        return {**state, "inner": change(state["inner"], at_batch, weights)}

    def _packer(self, state: State) -> Packer:
        """The one that gave ``state``, if that was the last; else a new one. It is given away."""
        live, self._live = self._live, None
        return live[1] if live is not None and live[0] is state else Packer(self.packing, state["packer"])

    def _taken(self, before: State) -> _Chunk:
        chunk = self._chunk
        if chunk is not None and (chunk.before is before or chunk.before == before):
            return chunk
        batch, after = self.inner.take(before, CHUNK)
        if batch.packs is not None or batch.begins is not None:
            raise UnsupportedError(f"{self.inner.name} gives token ranges, which cannot be packed again")
        lengths = self._lengths_of(batch.ids)
        documents = list(zip(batch.ids.tolist(), batch.epochs.tolist(), lengths.tolist(), strict=True))
        self._chunk = chunk = _Chunk(before, documents, after, len(documents) < CHUNK)
        return chunk

    def _lengths_of(self, ids: Ids) -> npt.NDArray[Any]:
        known = len(self._lengths)
        outside = ids[(ids < 0) | (ids >= known)]
        if outside.size:
            raise UsageError(f"document {outside[0]} has no length: there are {known}")
        lengths: npt.NDArray[Any] = self._lengths[ids]
        if lengths.size and lengths.min() < 0:
            wrong = int(np.argmax(lengths < 0))
            raise UsageError(f"document {ids[wrong]} has {lengths[wrong]} tokens")
        return lengths


def digest_lengths(lengths: npt.NDArray[Any]) -> str:
    """SHA-256 of the values as little-endian int64: the same for any integer type."""
    digest = hashlib.sha256()
    for begin in range(0, len(lengths), _BLOCK):
        digest.update(lengths[begin : begin + _BLOCK].astype("<i8").tobytes())
    return f"sha256:{digest.hexdigest()}"


def _batch(packs: list[Pack]) -> Batch:
    table = np.array([value for pack in packs for value in pack], dtype=np.int64).reshape(-1, FIELDS)
    ids, epochs, begins, ends = np.ascontiguousarray(table.T)
    offsets = np.zeros(len(packs) + 1, dtype=np.int64)
    np.cumsum([len(pack) // FIELDS for pack in packs], out=offsets[1:])
    return Batch(ids, epochs, begins, ends, offsets)
