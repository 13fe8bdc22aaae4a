"""L3. Keyed bijections of [0, n): the arithmetic under every permuted order.

* n <= 65,536: an argsort of one keyed 64-bit word per value. A Feistel network over so few values is
  measurably biased (at n = 5 with 8 rounds, chi-square p = 3e-37), a sort is not.
* larger n: 8 rounds of an alternating Feistel network over Z_a x Z_b, a = ceil(sqrt n),
  b = ceil(n / a), with cycle walking (Black and Rogaway, "Ciphers with arbitrary finite domains",
  2002). The surplus a*b - n is less than a, so a walk beyond one step happens once in ~sqrt n.

The round function and the words come from the 64-bit finaliser of MurmurHash3 (Appleby, public
domain) under BLAKE2b keys: integer arithmetic that we specify here, not a library's bit stream, so
an order stays the same for ever. The golden vectors in the tests pin it; a change needs a new name.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from durable_core.data.keys import hash_fields
from durable_core.data.order.base import Ids

Words = npt.NDArray[np.uint64]

SMALL = 65_536  # up to here a bijection is one sorted table (512 KiB)
WINDOW = 16_384  # values computed at once above that: with its scratch it fits a second-level cache
ROUNDS = 8

# Arrays of no dimension: numpy takes them with less ado than scalars.
_SHIFT = np.array(33, dtype=np.uint64)
_HALF = np.array(32, dtype=np.uint64)
_MIX1 = np.array(0xFF51AFD7ED558CCD, dtype=np.uint64)
_MIX2 = np.array(0xC4CEB9FE1A85EC53, dtype=np.uint64)


def derive_keys(*fields: str | int) -> Words:
    """Eight round keys, uint64 [8], from fields that never alias."""
    return np.frombuffer(hash_fields(*fields, size=8 * ROUNDS), dtype="<u8").astype(np.uint64)


class Bijection:
    """One keyed bijection of [0, size), readable anywhere. One table or window of it is kept.

    ``then`` maps values on their way out (to record ids, say).
    """

    def __init__(self, size: int, keys: Words, then: Callable[[Ids], Ids] | None = None) -> None:
        self.size = size
        self._keys, self._then = keys, then
        self._span = size if size <= SMALL else WINDOW
        self._kept: tuple[int, Ids] | None = None

    def values(self, start: int, stop: int) -> Ids:
        """Values at [start, stop), int64 [stop - start], perhaps read-only; 0 <= start <= stop <= size."""
        if start == stop:
            return np.empty(0, dtype=np.int64)
        parts = []
        for index in range(start // self._span, (stop - 1) // self._span + 1):
            base = index * self._span
            parts.append(self._piece(index)[max(start - base, 0) : stop - base])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _piece(self, index: int) -> Ids:
        if self._kept is not None and self._kept[0] == index:
            return self._kept[1]
        if self.size <= SMALL:
            values = _sorted_table(self.size, self._keys)
        else:
            start = index * self._span
            values = _feistel(start, min(start + self._span, self.size), self.size, self._keys)
        if self._then is not None:
            values = self._then(values)
        values.setflags(write=False)  # slices of it are handed out
        self._kept = (index, values)
        return values


def counter_words(start: int, stop: int, keys: Words) -> Words:
    """One pseudo-random 64-bit word per integer of [start, stop); no two are equal."""
    words = np.arange(start, stop, dtype=np.uint64)
    words += keys[0]
    scratch = np.empty_like(words)
    _mix(words, scratch)
    words ^= keys[1]
    _mix(words, scratch)
    return words


def _sorted_table(size: int, keys: Words) -> Ids:
    return np.argsort(counter_words(0, size, keys)).astype(np.int64)  # no ties, so any sort will do


def _feistel(start: int, stop: int, size: int, keys: Words) -> Ids:
    rows = math.isqrt(size - 1) + 1  # ceil(sqrt(size))
    columns = -(-size // rows)
    values = np.arange(start, stop, dtype=np.uint64)
    _rounds(values, rows, columns, keys)
    limit = np.uint64(size)
    while True:
        outside = np.flatnonzero(values >= limit)
        if not outside.size:
            return values.view(np.int64)
        walking = values[outside]
        _rounds(walking, rows, columns, keys)
        values[outside] = walking


def _rounds(values: Words, rows: int, columns: int, keys: Words) -> None:
    """One pass of the network, in place: a bijection of [0, rows * columns)."""
    a, b = np.array(rows, dtype=np.uint64), np.array(columns, dtype=np.uint64)
    left, right, noise, scratch = np.empty((4, len(values)), dtype=np.uint64)
    np.floor_divide(values, b, out=left)
    np.multiply(left, b, out=right)
    np.subtract(values, right, out=right)
    for index in range(0, ROUNDS, 2):
        _add(left, right, keys[index], a, noise, scratch)
        _add(right, left, keys[index + 1], b, noise, scratch)
    np.multiply(left, b, out=values)
    values += right


def _add(target: Words, other: Words, key: np.uint64, modulus: Words, noise: Words, scratch: Words) -> None:
    """target = (target + F(other)) mod modulus, F the top 32 bits of the mix scaled to [0, modulus)."""
    np.bitwise_xor(other, key, out=noise)
    _mix(noise, scratch, last=False)
    noise >>= _HALF
    noise *= modulus
    noise >>= _HALF
    target += noise
    np.subtract(target, modulus, out=noise)  # below modulus this wraps to a huge number, on purpose
    np.minimum(target, noise, out=target)


def _mix(words: Words, scratch: Words, *, last: bool = True) -> None:
    """MurmurHash3's fmix64, in place; without its ``last`` step the top 32 bits are the same."""
    np.right_shift(words, _SHIFT, out=scratch)
    words ^= scratch
    words *= _MIX1
    np.right_shift(words, _SHIFT, out=scratch)
    words ^= scratch
    words *= _MIX2
    if last:
        np.right_shift(words, _SHIFT, out=scratch)
        words ^= scratch
