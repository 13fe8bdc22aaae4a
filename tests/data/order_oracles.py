"""The permuted orders again, one position at a time in plain Python, from the words of their docstrings."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

MASK = (1 << 64) - 1


def keys(*fields: str | int) -> list[int]:
    digest = hashlib.blake2b(digest_size=64)
    for field in fields:
        text = str(field).encode()
        kind = b"i" if isinstance(field, int) else b"s"
        digest.update(kind + len(text).to_bytes(8, "little") + text)
    raw = digest.digest()
    return [int.from_bytes(raw[i : i + 8], "little") for i in range(0, 64, 8)]


def mix(word: int) -> int:
    word ^= word >> 33
    word = word * 0xFF51AFD7ED558CCD & MASK
    word ^= word >> 33
    word = word * 0xC4CEB9FE1A85EC53 & MASK
    return word ^ word >> 33


def counter_word(counter: int, k: Sequence[int]) -> int:
    return mix(mix(counter + k[0] & MASK) ^ k[1])


def bijection(size: int, k: Sequence[int], position: int, rounds: int = 8) -> int:
    """What stands at ``position`` of the keyed bijection of [0, size)."""
    if size <= 65_536:
        words = [counter_word(i, k) for i in range(size)]
        return sorted(range(size), key=words.__getitem__)[position]
    rows = math.isqrt(size)
    rows += rows * rows < size
    columns = -(-size // rows)
    value = position
    while True:
        left, right = divmod(value, columns)
        for i in range(0, rounds, 2):
            left = (left + ((mix(right ^ k[i]) >> 32) * rows >> 32)) % rows
            right = (right + ((mix(left ^ k[i + 1]) >> 32) * columns >> 32)) % columns
        value = left * columns + right
        if value < size:
            return value


def full(size: int, epoch: int, position: int, *, dataset_id: str, seed: int, source: str = "") -> int:
    return bijection(size, keys("full_prp_v1", dataset_id, source, epoch, seed), position)


def block(
    blocks: Sequence[int],
    epoch: int,
    position: int,
    *,
    window: int,
    dataset_id: str,
    seed: int,
    source: str = "",
) -> int:
    context = ("block_prp_v1", dataset_id, source, window)
    ids, start = [], 0
    for records in blocks:
        if records:
            ids.append(range(start, start + records))
        start += records
    k = keys(*context, "objects", epoch, seed)
    order = [bijection(len(ids), k, i) for i in range(len(ids))]
    windows = -(-len(ids) // window)
    for w in range(windows):
        members = order[w * len(ids) // windows : (w + 1) * len(ids) // windows]
        inside = sum(len(ids[o]) for o in members)
        if position < inside:
            at = bijection(inside, keys(*context, "records", epoch, seed, w), position)
            for o in members:
                if at < len(ids[o]):
                    return ids[o][at]
                at -= len(ids[o])
        position -= inside
    raise IndexError(position)


def buffered(blocks: Sequence[int], epoch: int, *, buffer: int, dataset_id: str, seed: int) -> list[int]:
    """A whole epoch."""
    context = ("buffered_v1", dataset_id, "", buffer)
    ids, start = [], 0
    for records in blocks:
        if records:
            ids.append(range(start, start + records))
        start += records
    k = keys(*context, "objects", epoch, seed)
    stream = [i for o in range(len(ids)) for i in ids[bijection(len(ids), k, o)]]
    held, coming, out = stream[:buffer], stream[buffer:], []
    k = keys(*context, "draws", epoch, seed)
    for position in range(len(stream)):
        place = (counter_word(position, k) >> 32) * len(held) >> 32
        out.append(held[place])
        if coming:
            held[place] = coming.pop(0)
        else:
            held[place] = held[-1]
            held.pop()
    return out
