"""L4. Reading a committed checkpoint: every byte is verified before anyone may use it.

Slices are read straight into the memory of the tensors they belong to. Nothing is returned until
all of them match their digests, so a reader gets one consistent checkpoint or an error.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from durable_core.errors import DigestMismatchError, FormatError
from durable_core.format import digests, shard
from durable_core.format.manifest import Manifest, decode
from durable_core.state import memory, tree
from durable_core.state.slices import flat_begin
from durable_core.tier.base import Tier
from durable_core.types import ObjectInfo, PlacedSlice

_THREADS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True)
class Restored:
    """One verified checkpoint as this role sees it: ``state`` and ``role`` are the trees that were saved."""

    manifest: Manifest
    digest: str
    state: Any
    role: Any
    bytes_read: int


def read_manifest(tier: Tier, key: str, digest: str) -> Manifest:
    """The manifest the journal names. ``DigestMismatchError``, ``FormatError``, ``ObjectNotFoundError``."""
    data = tier.get(key)
    if digests.sha256(data) != digest:
        raise DigestMismatchError(key, "the manifest differs from the digest in the journal")
    return decode(data, key=key)


def read(tier: Tier, key: str, digest: str, role: str) -> Restored:
    """Everything ``role`` needs, verified. Raises as ``read_manifest``, for any object."""
    manifest = read_manifest(tier, key, digest)
    wanted = tensor_keys(manifest, role)
    tensors, nbytes = read_tensors(tier, manifest, wanted)
    return Restored(
        manifest, digest, _tree(manifest, "state", role, wanted, tensors, key),
        _tree(manifest, "role", role, wanted, tensors, key), nbytes,
    )  # fmt: skip


def tensor_keys(manifest: Manifest, role: str) -> dict[str, str]:
    """Key in this role's documents -> key in the manifest: its own where replicas differ, else the shared."""
    own = f"roles/{role}/"
    keys = {key: key for key in manifest.tensors if key.startswith(("state/", own))}
    for key in manifest.tensors:
        if key.startswith(own + "state/"):
            keys[key[len(own) :]] = key
    return keys


def read_tensors(tier: Tier, manifest: Manifest, wanted: dict[str, str]) -> tuple[dict[str, Tensor], int]:
    """The wanted tensors by their key in the documents, and the bytes read."""
    infos = {key: manifest.tensors[stored] for key, stored in wanted.items()}
    objects = {info.key: info for info in manifest.objects}
    used = {piece.object for info in infos.values() for piece in info.slices}
    there = sum(tier.size(name) for name in used)  # a claim beyond what is stored is refused, unallocated
    claims = {key: (info.dtype, info.global_shape) for key, info in infos.items()}
    tensors = memory.alloc(claims, budget=there)
    jobs = [(tensors[key], piece) for key, info in infos.items() for piece in info.slices]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="durable-restore") as pool:
        for check in (
            *(pool.submit(check_object, tier, objects[name]) for name in sorted(used)),
            *(pool.submit(_read_slice, tier, tensor, piece) for tensor, piece in jobs),
        ):
            check.result()
    return tensors, sum(piece.info.nbytes for _, piece in jobs)


def check_object(tier: Tier, info: ObjectInfo) -> None:
    """Length and header of one object: with the slices, that is every byte of it."""
    nbytes = tier.size(info.key)
    if nbytes != info.nbytes:
        raise FormatError(info.key, f"has {nbytes} bytes instead of {info.nbytes}")
    header = bytearray(info.header_bytes)
    tier.read_into(info.key, 0, memoryview(header))
    if digests.xxh3(header) != info.header_xxh3:
        raise DigestMismatchError(info.key, "the header differs from its digest")
    shard.parse_header(bytes(header), info.nbytes, key=info.key)


def _read_slice(tier: Tier, tensor: Tensor, placed: PlacedSlice) -> None:
    info = placed.info
    if info.nbytes == 0:
        return
    if _contiguous(placed, tuple(tensor.shape)):
        begin = flat_begin(info.slice, tuple(tensor.shape)) * tensor.element_size()
        out = memory.writable(tensor)[begin : begin + info.nbytes]
        tier.read_into(placed.object, placed.begin, out)
        _verify(out, placed)
        return
    part = memory.alloc({"": (info.dtype, info.slice.shape)}, budget=info.nbytes)[""]
    out = memory.writable(part)
    tier.read_into(placed.object, placed.begin, out)
    _verify(out, placed)
    window = tuple(
        slice(offset, offset + length)
        for offset, length in zip(info.slice.offsets, info.slice.shape, strict=True)
    )
    tensor[window].copy_(part)


def _verify(data: memoryview, placed: PlacedSlice) -> None:
    if digests.xxh3(data) != placed.info.xxh3:
        raise DigestMismatchError(
            placed.object, f"the bytes of {placed.info.slice.key!r} differ from their digest"
        )


def _contiguous(placed: PlacedSlice, shape: tuple[int, ...]) -> bool:
    """Whether a slice is one run of bytes of its tensor: every dimension after the first cut is whole."""
    piece = placed.info.slice
    cut = next((i for i, n in enumerate(piece.shape) if n != 1), len(shape))
    return piece.shape[cut + 1 :] == shape[cut + 1 :] and math.prod(piece.shape) > 0


def _tree(
    manifest: Manifest, name: str, role: str, wanted: Iterable[str], tensors: dict[str, Tensor], key: str
) -> Any:
    document = manifest.documents.get((name, role), manifest.documents.get((name, "*")))
    if document is None:
        raise FormatError(
            key, f"has no {name!r} document for {role}", hint="restore with the roles it was saved with"
        )
    return tree.rebuild(document, tensors, key=key)
