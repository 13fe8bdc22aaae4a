"""L3. ``categorical_v1``: independent draws. Draw t is a keyed hash of t, compared with integer thresholds.

Source i is drawn with probability a_i / A, exact to 2^-64: it owns the 64-bit words from
floor(2^64 (a_0 + … + a_{i-1}) / A) up to the next such threshold. No state but t;
a change of weights has a key of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from durable_core.data.order import Ids
from durable_core.data.order.arithmetic import Words, counter_words

_SPACE = 1 << 64


def thresholds(weights: Sequence[int]) -> Words:
    """Where source 1, 2, … begins, uint64 [sources - 1]; without those at the end that have no weight."""
    total = sum(weights)
    bounds = ((below * _SPACE) // total for below in accumulate(weights))
    return np.array([bound for bound in bounds if bound < _SPACE], dtype=np.uint64)


def choose(begins: Words, keys: Words, start: int, count: int) -> Ids:
    """The sources of draws [start, start + count), int64 [count]."""
    words = counter_words(start, start + count, keys)
    return np.searchsorted(begins, words, side="right").astype(np.int64, copy=False)


def scaled(words: Words, size: int) -> Ids:
    """floor(word * size / 2^64): uniform in [0, size) to size / 2^64, int64; size <= 2^48."""
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    upper, lower = words >> half, words & mask
    size_upper, size_lower = np.uint64(size >> 32), np.uint64(size & 0xFFFFFFFF)
    middle = upper * size_lower + (lower * size_lower >> half)
    low = (middle & mask) + lower * size_upper
    ids: Words = upper * size_upper + (middle >> half) + (low >> half)
    return ids.view(np.int64)
