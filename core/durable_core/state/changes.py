"""L3. Where two versions of the same bytes differ, at the grain of a page.

Rows of an embedding that were not looked up keep their bytes, and so do their moments; at a grain of a
mebibyte everything looks changed all the same. Nothing is allocated in proportion to the bytes compared,
and numpy compares without the interpreter's lock.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

GRAIN = 4096
#: Bytes compared at a time: both versions and the result stay in the processor's cache.
_CHUNK = 1 << 18
#: Pages looked at to guess how much has changed.
SAMPLES = 32
#: Smaller slices are not worth an index and a guess.
WORTH_BYTES = 64 << 10

_Words = npt.NDArray[np.uint64]


def runs(old: memoryview, new: memoryview, limit: int) -> tuple[tuple[int, int], ...] | None:
    """The runs ``(begin, length)`` of bytes that hold every difference, in whole pages but for the end.

    ``None`` as soon as more than ``limit`` bytes differ: the bytes are then better written whole.
    """
    if old.nbytes != new.nbytes:
        return None
    found: list[tuple[int, int]] = []
    total = 0
    for begin in range(0, new.nbytes, _CHUNK):
        end = min(begin + _CHUNK, new.nbytes)
        for page in np.flatnonzero(_changed_pages(old[begin:end], new[begin:end])).tolist():
            at = begin + page * GRAIN
            length = min(GRAIN, new.nbytes - at)
            total += length
            if found and found[-1][0] + found[-1][1] == at:
                found[-1] = (found[-1][0], found[-1][1] + length)
            else:
                found.append((at, length))
        if total > limit:
            return None
    return tuple(found)


def sampled(old: memoryview, new: memoryview) -> float:
    """A guess of the share of pages that are equal, from ``SAMPLES`` pages spread over the bytes."""
    if old.nbytes != new.nbytes:
        return 0.0
    pages = new.nbytes // GRAIN
    if pages == 0:
        return float(old == new)
    looked = np.arange(min(SAMPLES, pages)) * pages // min(SAMPLES, pages)
    a, b = (_words(np.frombuffer(data, np.uint8)[: pages * GRAIN]) for data in (old, new))
    equal = a.reshape(-1, GRAIN // 8)[looked] == b.reshape(-1, GRAIN // 8)[looked]
    return float(equal.all(axis=1).mean())


def _changed_pages(old: memoryview, new: memoryview) -> npt.NDArray[np.bool_]:
    a, b = np.frombuffer(old, np.uint8), np.frombuffer(new, np.uint8)
    whole = a.nbytes // GRAIN * GRAIN
    differing = (_words(a[:whole]) != _words(b[:whole])).reshape(-1, GRAIN // 8).any(axis=1)
    if whole == a.nbytes:
        return np.asarray(differing)
    return np.append(differing, bool((a[whole:] != b[whole:]).any()))


def _words(data: npt.NDArray[np.uint8]) -> _Words:
    return data.view(np.uint64)
