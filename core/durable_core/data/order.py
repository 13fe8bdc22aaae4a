"""L3. The order: a versioned pure function (dataset id, seed, epoch, position) -> sample id.

``full_prp_v1`` is a *full keyed permutation*: a pseudo-random bijection of [0, n) that needs no
memory that grows with n and answers for any position at once. It is keyed, not uniform: at most
2^512 of the n! permutations can occur.

* n <= 65,536: a stable argsort of one keyed 64-bit word per id. A Feistel network over so few
  values is measurably biased (at n = 5 with 8 rounds, chi-square p = 3e-37), a sort is not.
* larger n: 8 rounds of an alternating Feistel network over Z_a x Z_b, a = ceil(sqrt n),
  b = ceil(n / a), with cycle walking (Black and Rogaway, "Ciphers with arbitrary finite domains",
  2002). The surplus a*b - n is less than a, so a walk beyond one step happens once in ~sqrt n.

The round function and the words come from the 64-bit finaliser of MurmurHash3 (Appleby, public
domain) under BLAKE2b keys: integer arithmetic that we specify here, not a library's bit stream, so
an order stays the same for ever. The golden vectors in the tests pin it; a change needs a new name.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import numpy.typing as npt

from durable_core.data.keys import hash_fields
from durable_core.errors import UnsupportedError, UsageError

Ids = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

FULL_PERMUTATION = "full_prp_v1"
SEQUENTIAL = "sequential_v1"
SMALL = 65_536  # up to here one epoch is one sorted table (512 KiB)
WINDOW = 16_384  # positions permuted at once above that: the fastest size per id
MAX_SIZE = 1 << 48  # keeps the bias of the 32-bit range reduction below 2^-8
ROUNDS = 8


class Order(Protocol):
    """Which sample stands at a logical position of an epoch. Pure: same arguments, same ids."""

    @property
    def name(self) -> str:
        """The versioned name; two orders with one name agree for ever."""

    @property
    def size(self) -> int:
        """Samples in an epoch."""

    def ids(self, epoch: int, start: int, stop: int) -> Ids:
        """Sample ids at positions [start, stop), shape (stop - start,); 0 <= start <= stop <= size."""


class Sequential:
    """The identity: position p holds sample p."""

    name = SEQUENTIAL

    def __init__(self, size: int) -> None:
        self.size = _checked_size(size)

    def ids(self, epoch: int, start: int, stop: int) -> Ids:
        _check_range(self, epoch, start, stop)
        return np.arange(start, stop, dtype=np.int64)


class FullPermutation:
    """``full_prp_v1`` (see the module): random access, one window of ids cached."""

    name = FULL_PERMUTATION

    def __init__(self, size: int, *, dataset_id: str, seed: int, source: str = "") -> None:
        self.size = _checked_size(size)
        self._context = (dataset_id, source, seed)
        self._span = size if size <= SMALL else WINDOW
        self._cached: tuple[int, int, Ids] | None = None

    def ids(self, epoch: int, start: int, stop: int) -> Ids:
        _check_range(self, epoch, start, stop)
        if start == stop:
            return np.empty(0, dtype=np.int64)
        first, last = start // self._span, (stop - 1) // self._span
        parts = []
        for window in range(first, last + 1):
            base = window * self._span
            parts.append(self._window(epoch, window)[max(start - base, 0) : stop - base])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _window(self, epoch: int, window: int) -> Ids:
        cached = self._cached
        if cached is not None and cached[0] == epoch and cached[1] == window:
            return cached[2]
        keys = self._keys(epoch)
        if self.size <= SMALL:
            ids = _sorted_table(self.size, keys)
        else:
            start = window * self._span
            ids = _feistel(start, min(start + self._span, self.size), self.size, keys)
        ids.setflags(write=False)  # slices of it are handed out
        self._cached = (epoch, window, ids)
        return ids

    def _keys(self, epoch: int) -> Words:
        dataset_id, source, seed = self._context
        digest = hash_fields(self.name, dataset_id, source, epoch, seed, size=8 * ROUNDS)
        return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


def make_order(name: str, size: int, *, dataset_id: str, seed: int, source: str = "") -> Order:
    """The order called ``name``. Raises ``UnsupportedError`` for one this version does not know."""
    if name == FULL_PERMUTATION:
        return FullPermutation(size, dataset_id=dataset_id, seed=seed, source=source)
    if name == SEQUENTIAL:
        return Sequential(size)
    raise UnsupportedError(
        f"unknown order {name!r}; known are {FULL_PERMUTATION!r} and {SEQUENTIAL!r}",
        hint="install the version of this library that wrote it",
    )


def wrapped_ids(order: Order, epoch: int, start: int, stop: int) -> tuple[int, ...]:
    """Ids at positions [start, stop), start < 2 * size, where position ``size`` is position 0 again."""
    size = order.size
    if stop <= size:
        return tuple(order.ids(epoch, start, stop).tolist())
    inside = order.ids(epoch, min(start, size), size).tolist()
    beyond = order.ids(epoch, max(start - size, 0), stop - size).tolist()
    return (*inside, *beyond)


# --- arithmetic (wraps modulo 2^64 on purpose) ----------------------------------------------

_SHIFT = np.uint64(33)
_HALF = np.uint64(32)
_MIX1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX2 = np.uint64(0xC4CEB9FE1A85EC53)


def _mix(words: Words) -> Words:
    """MurmurHash3's fmix64, in place."""
    words ^= words >> _SHIFT
    words *= _MIX1
    words ^= words >> _SHIFT
    words *= _MIX2
    words ^= words >> _SHIFT
    return words


def _sorted_table(size: int, keys: Words) -> Ids:
    words = _mix(np.arange(size, dtype=np.uint64) + keys[0])
    words = _mix(words ^ keys[1])  # a bijection of the counter: no two words are equal
    return np.argsort(words, kind="stable").astype(np.int64)


def _feistel(start: int, stop: int, size: int, keys: Words) -> Ids:
    rows = math.isqrt(size - 1) + 1  # ceil(sqrt(size))
    columns = -(-size // rows)
    limit = np.uint64(size)
    values = _rounds(np.arange(start, stop, dtype=np.uint64), rows, columns, keys)
    while True:
        outside = np.flatnonzero(values >= limit)
        if not outside.size:
            return values.view(np.int64)
        values[outside] = _rounds(values[outside], rows, columns, keys)


def _rounds(values: Words, rows: int, columns: int, keys: Words) -> Words:
    """One pass of the network: a bijection of [0, rows * columns)."""
    a, b = np.uint64(rows), np.uint64(columns)
    left: Words = values // b
    right = values - left * b
    for index in range(0, ROUNDS, 2):
        left = _add(left, right, keys[index], a)
        right = _add(right, left, keys[index + 1], b)
    joined: Words = left * b + right
    return joined


def _add(target: Words, other: Words, key: np.uint64, modulus: np.uint64) -> Words:
    """(target + F(other)) mod modulus, F the top 32 bits of the mix scaled to [0, modulus)."""
    noise = _mix(other ^ key)
    noise >>= _HALF
    noise *= modulus
    noise >>= _HALF
    noise += target
    reduced: Words = np.minimum(noise, noise - modulus)  # below modulus the difference wraps to huge
    return reduced


def _checked_size(size: int) -> int:
    if not 1 <= size <= MAX_SIZE:
        raise UsageError(f"an order needs 1 to {MAX_SIZE} samples, not {size}")
    return size


def _check_range(order: Order, epoch: int, start: int, stop: int) -> None:
    if epoch < 0 or not 0 <= start <= stop <= order.size:
        raise UsageError(f"positions [{start}, {stop}) of epoch {epoch} are outside [0, {order.size})")
