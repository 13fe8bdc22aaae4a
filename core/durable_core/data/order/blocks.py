"""L3. ``block_prp_v1``: an order for data that is read by the object (shard, row group, file).

The objects are permuted, the permuted objects are dealt into ceil(O / S) windows of at most S (as
even as can be, so that no window is a small rest), and the records are permuted within their
window. Position p is answered at once: no buffer has to be filled, saved or restored.

*Mixing distance.* An object may stand anywhere in the epoch. All records of one object stand within
one window, so two of them are never further apart than the window is long: at most S objects' records.
*Locality.* Any run of positions that lies within two neighbouring windows touches at most 2S
objects (as does every run no longer than the shortest window); read in order, no object is needed
again once its window is over. With S >= O there is one window: a full keyed permutation of the records.

Memory is O(objects): 24 bytes each and, in use, one window of positions. A permutation is that of
``arithmetic``: of the objects under the key (name, dataset id, source, S, "objects", epoch, seed), of
the records in window w under (name, dataset id, source, S, "records", epoch, seed, w).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from durable_core.data.order.arithmetic import Bijection, Words, derive_keys
from durable_core.data.order.base import Ids, check_range, checked_size
from durable_core.errors import UsageError

BLOCK_PERMUTATION = "block_prp_v1"
DEFAULT_WINDOW = 8
FEW = 16  # objects up to which comparing with each is faster than a search
MAX_RUNS = 4096  # beyond that a description leaves the sizes out: it goes into every checkpoint

Sizes = npt.ArrayLike


class Blocks:
    """Records per object, in the dataset's order: record ids are dealt to the objects one after another.

    Objects without records are left out: they hold no id, and take no place in a window.
    """

    def __init__(self, sizes: Sizes) -> None:
        given = np.asarray(sizes)
        if given.ndim != 1 or given.size == 0 or not np.issubdtype(given.dtype, np.integer):
            raise UsageError(f"blocks are whole records per object, in one row, not {sizes!r:.80}")
        if given.min() < 0:
            raise UsageError(f"object {int(given.argmin())} has {int(given.min())} records")
        self.size = checked_size(int(given.sum(dtype=np.float64)))  # exact up to the limit, and no overflow
        self.counts: Ids = given[given > 0].astype(np.int64)
        self.begins: Ids = np.cumsum(self.counts) - self.counts
        content = self.counts.astype("<i8").tobytes()
        self.digest = hashlib.blake2b(content, digest_size=8).hexdigest()

    def __len__(self) -> int:
        return len(self.counts)

    def permuted(self, keys: Words) -> Ids:
        """The objects in keyed order, int64 [objects]."""
        return Bijection(len(self), keys).values(0, len(self))

    def runs(self) -> list[list[int]] | None:
        """[[objects, records in each], ...], or None when that is long; ``from_runs`` takes it back."""
        firsts = np.flatnonzero(np.diff(self.counts, prepend=-1))
        if len(firsts) > MAX_RUNS:
            return None
        lengths = np.diff(firsts, append=len(self))
        return [[int(n), int(size)] for n, size in zip(lengths, self.counts[firsts], strict=True)]

    @classmethod
    def from_runs(cls, runs: Iterable[Iterable[int]]) -> Blocks:
        lengths, sizes = np.array(list(runs), dtype=np.int64).reshape(-1, 2).T
        return cls(np.repeat(sizes, lengths))


class _Epoch(NamedTuple):
    number: int
    objects: Ids  # in permuted order
    firsts: Ids  # [windows + 1] places in ``objects`` where the windows begin
    starts: Ids  # [windows + 1] positions where the windows begin


class _Window(NamedTuple):
    epoch: int
    begin: int  # positions
    end: int
    records: Bijection  # of [0, end - begin), giving record ids


class BlockPermutation:
    """``block_prp_v1`` (see the module): random access, O(objects) memory, one window of ids cached.

    Args:
        blocks: records of each object, int64 [objects]; ids count through the objects in this order.
        window: S, the objects whose records are mixed.
    """

    def __init__(
        self,
        blocks: Sizes | Blocks,
        *,
        window: int = DEFAULT_WINDOW,
        dataset_id: str,
        seed: int,
        source: str = "",
    ) -> None:
        if window < 1:
            raise UsageError(f"a window of {window} objects is none", hint="pass window=1 or more")
        self.blocks = blocks if isinstance(blocks, Blocks) else Blocks(blocks)
        self.window = window
        self.size = self.blocks.size
        self.name = f"{BLOCK_PERMUTATION}:{window}:{self.blocks.digest}"
        self.description: dict[str, Any] = {
            "name": self.name, "size": self.size, "dataset_id": dataset_id, "source": source,
            "blocks": self.blocks.runs(),
        }  # fmt: skip
        self._context, self._seed = (BLOCK_PERMUTATION, dataset_id, source, window), seed
        self._epoch: _Epoch | None = None
        self._window: _Window | None = None

    def ids(self, epoch: int, start: int, stop: int) -> Ids:
        check_range(self, epoch, start, stop)
        parts = []
        while start < stop:
            window = self._window_at(epoch, start)
            until = min(stop, window.end)
            parts.append(window.records.values(start - window.begin, until - window.begin))
            start = until
        if len(parts) == 1:
            return parts[0]
        return np.concatenate([np.empty(0, dtype=np.int64), *parts])

    def _plan(self, epoch: int) -> _Epoch:
        if self._epoch is None or self._epoch.number != epoch:
            objects = self.blocks.permuted(derive_keys(*self._context, "objects", epoch, self._seed))
            windows = -(-len(objects) // self.window)
            firsts = np.arange(windows + 1, dtype=np.int64) * len(objects) // windows
            ends = np.cumsum(self.blocks.counts[objects])
            starts = np.concatenate([np.zeros(1, dtype=np.int64), ends[firsts[1:] - 1]])
            self._epoch = _Epoch(epoch, objects, firsts, starts)
        return self._epoch

    def _window_at(self, epoch: int, position: int) -> _Window:
        kept = self._window
        if kept is not None and kept.epoch == epoch and kept.begin <= position < kept.end:
            return kept
        plan = self._plan(epoch)
        window = int(np.searchsorted(plan.starts, position, side="right")) - 1
        begin, end = plan.starts[window : window + 2].tolist()
        objects = plan.objects[plan.firsts[window] : plan.firsts[window + 1]]
        ends = np.cumsum(self.blocks.counts[objects])
        shifts = self.blocks.begins[objects] - (ends - self.blocks.counts[objects])
        keys = derive_keys(*self._context, "records", epoch, self._seed, window)
        records = Bijection(end - begin, keys, partial(_record_ids, ends, shifts))
        self._window = _Window(epoch, begin, end, records)
        return self._window


def _record_ids(ends: Ids, shifts: Ids, places: Ids) -> Ids:
    """Places in a window as record ids: object i of it holds places below ``ends[i]``, ``shifts[i]`` off."""
    if len(ends) > FEW:
        return places + shifts[np.searchsorted(ends, places, side="right")]
    which = np.zeros(len(places), dtype=np.int8)
    for end in ends[:-1]:
        which += (places >= end).view(np.int8)
    return places + shifts[which]
