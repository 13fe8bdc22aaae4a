"""L4. One writer's staged slices as the protocol asks for them: hash them, write them as a shard."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from durable_core.commit.effects import WrittenShard
from durable_core.format import digests, shard
from durable_core.state.staging import Staged
from durable_core.tier.base import Buffer, Tier
from durable_core.types import ObjectInfo, SliceInfo, SliceKey

# One pool for the process: hashing runs beside the write (both release the GIL), never beside itself.
_hashers: ThreadPoolExecutor


def _start_pool() -> None:
    global _hashers
    _hashers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="durable-hash")


_start_pool()
# A forked child has the pool's books but not its thread: what it queued there would wait for ever.
os.register_at_fork(after_in_child=_start_pool)


class StagedShard:
    """``ShardSource`` over a staged slot. ``own`` maps a key given to this role alone
    (``roles/dp1/state/x``, stored because replicas differ) back to the staged key (``state/x``)."""

    def __init__(self, staged: Staged, role: str) -> None:
        self._staged = staged
        self._own = f"roles/{role}/"
        self._infos: dict[SliceKey, Future[SliceInfo]] = {}

    def describe(self) -> tuple[SliceInfo, ...]:
        """Digests of every staged slice, sorted as the slices are."""
        self._start_hashing(self._staged.slices)
        return tuple(self._infos[piece].result() for piece in self._staged.slices)

    def confirm(self) -> None:
        """Everything was copied before ``stage`` returned."""

    def write(self, tier: Tier, key: str, slices: tuple[SliceKey, ...]) -> WrittenShard:
        """Header, then the slices' bytes straight from the slot; hashing goes on meanwhile."""
        sources = [self._local(piece) for piece in slices]
        views = [self._staged.view(source) for source in sources]
        entries = [
            (shard.entry_name(piece, self._staged.global_shape(source.key)), self._staged.dtype(source.key),
             piece.shape, view.nbytes)
            for piece, source, view in zip(slices, sources, views, strict=True)
        ]  # fmt: skip
        header, begins = shard.layout(entries)
        self._start_hashing(self._staged.slices)
        order = shard.write_order(begins, [view.nbytes for view in views])

        def parts() -> Iterator[Buffer]:
            yield header
            yield from self._staged.gather(sources[index] for index in order)

        nbytes = tier.write_object(key, parts())
        return WrittenShard(ObjectInfo(key, nbytes, len(header), digests.xxh3(header)), begins)

    def _start_hashing(self, slices: tuple[SliceKey, ...]) -> None:
        for piece in slices:
            if piece not in self._infos:
                self._infos[piece] = _hashers.submit(self._info, piece)

    def _info(self, piece: SliceKey) -> SliceInfo:
        view = self._staged.view(piece)
        return SliceInfo(
            piece, self._staged.dtype(piece.key), self._staged.global_shape(piece.key), view.nbytes,
            digests.xxh3(view), digests.crc32c(view),
        )  # fmt: skip

    def _local(self, piece: SliceKey) -> SliceKey:
        key = piece.key
        if key.startswith(self._own + "state/"):
            key = key[len(self._own) :]
        return SliceKey(key, piece.offsets, piece.shape)
