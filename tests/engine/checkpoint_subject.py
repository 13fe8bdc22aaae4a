"""A small checkpoint with everything a manifest can say of bytes, and the objects it lies in."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from durable_core.engine.copies import Place
from durable_core.format import digests, layout, patch, shard
from durable_core.format.manifest import SHARED, Manifest, TensorEntry, encode, manifest_digest
from durable_core.state import tree
from durable_core.tier.base import Tier
from durable_core.tier.memory import MemoryTier
from durable_core.types import Extent, ObjectInfo, PlacedSlice, Promise, SliceInfo, SliceKey, Traits

SHA = "sha256:" + "0" * 64
OLD = layout.checkpoint_name(1, 1, "feedbeef" * 4)
NEW = layout.checkpoint_name(2, 2, "0123abcd" * 4)
MANIFEST = NEW.manifest
FROZEN = 1000  # elements of tensors that did not change since ``OLD``

DISK = Traits(frozenset({"process"}))
REMOTE = Traits(frozenset({"process", "host", "cluster"}), frozenset({"credentials"}))
PEER = Traits(frozenset({"process", "host"}), volatile=True)


@dataclass(frozen=True)
class Checkpoint:
    """``contents``: key -> bytes of each tensor; ``objects``: key -> bytes of each object."""

    manifest: Manifest
    contents: Mapping[str, bytes]
    objects: Mapping[str, bytes]

    @property
    def digest(self) -> str:
        return manifest_digest(encode(self.manifest))

    def pieces(self) -> dict[str, PlacedSlice]:
        return {key: entry.slices[0] for key, entry in self.manifest.tensors.items()}

    def place(self, name: str, traits: Traits = DISK, tier: Tier | None = None) -> Place:
        """A place that has all of it."""
        tier = MemoryTier(name) if tier is None else tier
        for key, data in self.objects.items():
            tier.write_object(key, [data])
        return Place(name, tier, traits)

    def home(self) -> Tier:
        """A tier with the manifest, and no bytes of tensors."""
        tier = MemoryTier("home")
        tier.put_if_absent(MANIFEST, encode(self.manifest))
        return tier

    def lookup(self, **spoilt: bytes) -> Callable[[SliceKey, str], memoryview | None]:
        """A slot that has every slice; ``spoilt`` ones with these bytes, or not at all (empty)."""
        held = {}
        for key, piece in self.pieces().items():
            data = spoilt.get(key.rpartition("/")[2], self.contents[key])
            if data:
                held[piece.info.slice, piece.info.xxh3] = memoryview(data)
        return lambda piece, xxh3: held.get((piece, xxh3))


def _info(key: str, data: bytes) -> SliceInfo:
    shape = (len(data) // 4,)
    return SliceInfo(
        SliceKey(key, (0,), shape), "F32", shape, len(data), digests.xxh3(data), digests.crc32c(data)
    )


def _object(key: str, named: Mapping[str, tuple[str, bytes]]) -> tuple[ObjectInfo, bytes, dict[str, int]]:
    """Object info, bytes, and where each entry (name -> dtype and bytes) begins."""
    entries = [
        (name, dtype, (len(data) // shard.ITEMSIZE[dtype],), len(data))
        for name, (dtype, data) in named.items()
    ]
    header, begins = shard.layout(entries)
    order = shard.write_order(begins, [entry[3] for entry in entries])
    datas = [data for _, data in named.values()]
    whole = b"".join([header, *(datas[index] for index in order)])
    info = ObjectInfo(key, len(whole), len(header), digests.xxh3(header))
    return info, whole, dict(zip(named, begins, strict=True))


def checkpoint(seed: int = 0) -> Checkpoint:
    """Tensors ``state/``: ``w`` and ``b`` written anew by dp0, ``v`` by dp1, ``frozen`` lying in an older
    object and its twin in a new one, ``rows`` an older base and a patch."""
    rng = random.Random(seed)
    bytes_of = {name: rng.randbytes(4 * n) for name, n in (("w", 5000), ("b", 3), ("v", 700))}
    frozen, base = rng.randbytes(4 * FROZEN), rng.randbytes(4 * FROZEN)
    dead = rng.randbytes(64)
    changed = bytearray(base)
    changed[400:440] = rng.randbytes(40)
    run = (400, 40)
    patched = patch.head([run], len(base)) + bytes(changed[400:440])

    old, old_bytes, old_at = _object(
        OLD.shard("dp0"), {"frozen": ("F32", frozen), "dead": ("F32", dead), "rows": ("F32", base)}
    )
    dp0, dp0_bytes, dp0_at = _object(
        NEW.shard("dp0"),
        {"w": ("F32", bytes_of["w"]), "b": ("F32", bytes_of["b"]), "rows~1": ("U8", patched)},
    )
    dp1, dp1_bytes, dp1_at = _object(
        NEW.shard("dp1"), {"frozen": ("F32", frozen), "v": ("F32", bytes_of["v"])}
    )
    contents = {f"state/{name}": data for name, data in bytes_of.items()}
    contents |= {"state/frozen": frozen, "state/rows": bytes(changed)}
    info = {key: _info(key, data) for key, data in contents.items()}
    frozen_twin = Extent(dp1.key, dp1_at["frozen"], len(frozen), digests.xxh3(frozen))
    rows_patch = Extent(dp0.key, dp0_at["rows~1"], len(patched), digests.xxh3(patched))
    placed = {
        "state/w": PlacedSlice(info["state/w"], dp0.key, dp0_at["w"]),
        "state/b": PlacedSlice(info["state/b"], dp0.key, dp0_at["b"]),
        "state/v": PlacedSlice(info["state/v"], dp1.key, dp1_at["v"]),
        "state/frozen": PlacedSlice(info["state/frozen"], old.key, old_at["frozen"], twin=frozen_twin),
        "state/rows": PlacedSlice(
            info["state/rows"], old.key, old_at["rows"], (rows_patch,), digests.xxh3(base)
        ),
    }
    state = {
        key[6:]: torch.frombuffer(bytearray(data), dtype=torch.float32) for key, data in contents.items()
    }
    manifest = Manifest(
        "run", 2, 2, 10, 1, SHA, Promise.BITWISE, None, ("dp0", "dp1"), (old, dp0, dp1),
        {key: TensorEntry("F32", info[key].global_shape, (piece,)) for key, piece in placed.items()},
        {
            ("state", SHARED): tree.flatten(state, prefix="state").doc,
            ("role", "dp0"): tree.flatten({}, prefix="roles/dp0").doc,
            ("role", "dp1"): tree.flatten({}, prefix="roles/dp1").doc,
        },
        {"dp0": SHA, "dp1": SHA},
    )  # fmt: skip
    objects = {old.key: old_bytes, dp0.key: dp0_bytes, dp1.key: dp1_bytes}
    return Checkpoint(manifest, contents, objects)


def spoil(tier: Tier, key: str, data: bytes | None) -> None:
    """Put other bytes in place of an object's, or none."""
    tier.delete(key)
    if data is not None:
        tier.write_object(key, [data])


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
