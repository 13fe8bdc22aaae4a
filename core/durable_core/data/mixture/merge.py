"""L3. Batches one after another, and samples of a batch in another order, with their pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from durable_core.data.order import Ids
from durable_core.data.sequence import Batch
from durable_core.errors import UsageError


def joined(parts: Sequence[Batch]) -> Batch:
    """One batch after another, as one. At least one part."""
    if len(parts) == 1:
        return parts[0]
    ids = np.concatenate([part.ids for part in parts])
    epochs = np.concatenate([part.epochs for part in parts])
    begins, ends = _ranges(parts)
    if all(part.packs is None for part in parts):
        return Batch(ids, epochs, begins, ends)
    return Batch(ids, epochs, begins, ends, _packs(np.concatenate([_pieces(part) for part in parts])))


def reordered(batch: Batch, rows: Ids) -> Batch:
    """Sample j of the result is sample ``rows[j]`` of ``batch``."""
    packs, at = None, rows
    if batch.packs is not None:
        counts = np.diff(batch.packs)[rows]
        packs = _packs(counts)
        at = np.repeat(batch.packs[rows] - packs[:-1], counts) + np.arange(packs[-1])
    begins = None if batch.begins is None else batch.begins[at]
    ends = None if batch.ends is None else batch.ends[at]
    return Batch(batch.ids[at], batch.epochs[at], begins, ends, packs)


def _pieces(batch: Batch) -> Ids:
    """Pieces of each sample, int64 [samples]."""
    return np.ones(len(batch.ids), dtype=np.int64) if batch.packs is None else np.diff(batch.packs)


def _packs(counts: Ids) -> Ids:
    packs = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=packs[1:])
    return packs


def _ranges(parts: Sequence[Batch]) -> tuple[Ids | None, Ids | None]:
    begins = [part.begins for part in parts if part.begins is not None]
    ends = [part.ends for part in parts if part.ends is not None]
    if not begins and not ends:
        return None, None
    if len(begins) != len(parts) or len(ends) != len(parts):
        raise UsageError("some sources give token ranges and some whole records", hint="pack all or none")
    return np.concatenate(begins), np.concatenate(ends)
