"""L4. One writer's staged slices as the protocol asks for them: hash them, write them as a shard."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

from durable_core.commit.effects import WrittenShard
from durable_core.format import digests, patch, shard
from durable_core.state import changes
from durable_core.state.staging import Staged
from durable_core.threads import LastingPool
from durable_core.tier.base import Buffer, Tier
from durable_core.types import Extent, ObjectInfo, PlacedSlice, SliceInfo, SliceKey

#: Of the bytes, what is hashed to guess how much has not changed, when no earlier version is in memory.
_PROBED_SHARE = 1 / 8
#: A slice of which fewer sampled pages are equal is taken for changed all over.
_SPARSE = 0.5

# One pool for the process: hashing runs beside the write (both release the GIL), never beside itself.
_hashers: LastingPool


def _start_pool() -> None:
    global _hashers
    _hashers = LastingPool(max_workers=1, thread_name_prefix="durable-hash")


_start_pool()
# A forked child has the pool's books but not its thread: what it queued there would wait for ever.
os.register_at_fork(after_in_child=_start_pool)


@dataclass
class _Part:
    """One entry of a shard: a slice, or with ``runs`` a patch of it (``xxh3``: once it is written)."""

    source: SliceKey
    view: memoryview
    runs: tuple[patch.Run, ...] | None = None
    xxh3: str = ""

    @property
    def nbytes(self) -> int:
        return self.view.nbytes if self.runs is None else patch.size(self.runs)

    def patch(self) -> bytearray:
        assert self.runs is not None
        data = bytearray(patch.head(self.runs, self.view.nbytes))
        for begin, length in self.runs:
            data += self.view[begin : begin + length]
        self.xxh3 = digests.xxh3(data)
        return data


class StagedShard:
    """``ShardSource`` over a staged slot. ``own`` maps a key given to this role alone
    (``roles/dp1/state/x``, stored because replicas differ) back to the staged key (``state/x``).

    It may ``follow`` the shard of the parent's save: of slices that changed only here and there, patches are
    then written.
    """

    def __init__(self, staged: Staged, role: str) -> None:
        self._staged = staged
        self._own = f"roles/{role}/"
        self._infos: dict[SliceKey, SliceInfo] = {}
        self._hashing: dict[SliceKey, Future[None]] = {}
        self._previous: Earlier | None = None

    def follow(self, previous: Earlier | None) -> None:
        """``previous``: the shard of the parent's save; it is let go of when it has been compared with."""
        self._previous = previous

    def describe(self) -> tuple[SliceInfo, ...]:
        """Digests of every staged slice, sorted as the slices are."""
        return self._hashed(self._staged.slices)

    def confirm(self) -> None:
        """Wait for the guard; ``StaleSnapshotError`` when the state changed while it was being copied."""
        self._staged.confirmed()

    def estimate(self, pieces: tuple[PlacedSlice, ...]) -> float:
        """The share of the bytes of ``pieces`` that seems unchanged: by sampled pages where the previous
        version is in memory, else by the digests of a few slices."""
        staged = set(self._staged.slices)
        local = {self._local(piece.info.slice): piece for piece in pieces}
        known = [key for key in local if key in staged]
        total = sum(piece.info.nbytes for piece in pieces)
        probes = _spread(known, local, total, count=64)
        shares = self._unchanged(probes)
        if shares is None:
            probes = _spread(known, local, int(total * _PROBED_SHARE), count=16)
            found = zip(probes, self._hashed(probes), strict=True)
            shares = [float(info.xxh3 == local[key].info.xxh3) for key, info in found]
        sizes = [local[key].info.nbytes for key in probes]
        same = sum(share * nbytes for share, nbytes in zip(shares, sizes, strict=True))
        return same / max(1, sum(sizes))

    def write(
        self, tier: Tier, key: str, slices: tuple[SliceKey, ...],
        patchable: Mapping[SliceKey, tuple[PlacedSlice, int]],
    ) -> WrittenShard:  # fmt: skip
        """Header, then the slices' bytes straight from the slot; hashing goes on meanwhile."""
        parts = [self._part(piece, patchable.get(piece)) for piece in slices]
        if self._previous is not None:
            self._previous.let_go()
        header, begins = shard.layout([self._entry(*pair) for pair in zip(slices, parts, strict=True)])
        self._start_hashing(self._staged.slices)
        order = shard.write_order(begins, [part.nbytes for part in parts])
        nbytes = tier.write_object(key, self._bytes(header, [parts[index] for index in order]))
        found = tuple(
            None if part.runs is None else Extent(key, begin, part.nbytes, part.xxh3)
            for part, begin in zip(parts, begins, strict=True)
        )
        return WrittenShard(ObjectInfo(key, nbytes, len(header), digests.xxh3(header)), begins, found)

    def _entry(self, piece: SliceKey, part: _Part) -> shard.Entry:
        key = part.source.key
        name = shard.entry_name(piece, self._staged.global_shape(key))
        if part.runs is not None:
            return f"{name}#patch", "U8", (part.nbytes,), part.nbytes
        return name, self._staged.dtype(key), piece.shape, part.nbytes

    def _bytes(self, header: bytes, parts: list[_Part]) -> Iterator[Buffer]:
        yield header
        whole: list[SliceKey] = []
        for part in parts:
            if part.runs is None:
                whole.append(part.source)
                continue
            yield from self._staged.gather(whole)
            whole = []
            yield part.patch()
        yield from self._staged.gather(whole)

    def _part(self, piece: SliceKey, earlier: tuple[PlacedSlice, int] | None) -> _Part:
        source = self._local(piece)
        part = _Part(source, self._staged.view(source))
        if earlier is None or self._previous is None or part.nbytes < changes.WORTH_BYTES:
            return part
        placed, room = earlier
        with self._previous.look() as before:
            old = None if before is None else before.holds(source, placed.info)
            if old is None or changes.sampled(old, part.view) < _SPARSE:
                return part
            runs = changes.runs(old, part.view, room)
        if runs is not None and patch.size(runs) <= room:
            part.runs = runs
        return part

    def holds(self, piece: SliceKey, info: SliceInfo) -> memoryview | None:
        """The staged bytes of ``piece``, when they are known to be those of ``info``."""
        known = self._infos.get(piece)
        return None if known is None or known.xxh3 != info.xxh3 else self._staged.view(piece)

    def _unchanged(self, pieces: tuple[SliceKey, ...]) -> list[float] | None:
        """The share of each that seems unchanged; ``None`` without the previous version in memory."""
        if self._previous is None:
            return None
        shares: list[float] = []
        for piece in pieces:
            with self._previous.look() as before:
                if before is None:
                    return None
                known = piece in before._infos
                now = self._staged.view(piece)
                shares.append(changes.sampled(before._staged.view(piece), now) if known else 0.0)
        return shares

    def _hashed(self, slices: tuple[SliceKey, ...]) -> tuple[SliceInfo, ...]:
        self._start_hashing(slices)
        for batch in dict.fromkeys(self._hashing[piece] for piece in slices):
            batch.result()
        return tuple(self._infos[piece] for piece in slices)

    def _start_hashing(self, slices: tuple[SliceKey, ...]) -> None:
        """All in one go: to hand one over takes as long as to hash 100 KB."""
        new = [piece for piece in slices if piece not in self._hashing]
        if new:
            self._hashing.update(dict.fromkeys(new, _hashers.submit(self._hash, new)))

    def _hash(self, slices: list[SliceKey]) -> None:
        for piece in slices:
            view, dtype = self._staged.view(piece), self._staged.dtype(piece.key)
            whole = self._staged.global_shape(piece.key)
            digest = digests.xxh3(view), digests.crc32c(view)
            self._infos[piece] = SliceInfo(piece, dtype, whole, view.nbytes, *digest)

    def _local(self, piece: SliceKey) -> SliceKey:
        key = piece.key
        if key.startswith(self._own + "state/"):
            key = key[len(self._own) :]
        return SliceKey(key, piece.offsets, piece.shape)


class Earlier:
    """The shard of the last commit, for as long as its slot, given back by ``release``, is not needed."""

    def __init__(self, shard: StagedShard, release: Callable[[], None]) -> None:
        self._shard: StagedShard | None = shard
        self._release = release
        self._lock = threading.Lock()

    @contextmanager
    def look(self) -> Iterator[StagedShard | None]:
        """The shard, if it is still there; it stays for the block, which somebody may be waiting for."""
        with self._lock:
            yield self._shard

    def let_go(self) -> bool:
        """Whether this call gave the slot back. From any thread."""
        with self._lock:
            held, self._shard = self._shard is not None, None
        if held:
            self._release()
        return held


def _spread(
    keys: list[SliceKey], pieces: Mapping[SliceKey, PlacedSlice], budget: int, *, count: int
) -> tuple[SliceKey, ...]:
    """About ``count`` of ``keys``, the largest and others, of at most ``budget`` bytes but at least one."""
    falling = sorted(keys, key=lambda key: -pieces[key].info.nbytes)
    half = count // 2
    chosen: list[SliceKey] = []
    for key in (*falling[:half], *falling[half :: max(1, len(falling) // half)]):
        nbytes = pieces[key].info.nbytes
        if chosen and nbytes > budget:
            continue
        chosen.append(key)
        budget -= nbytes
    return tuple(chosen)
