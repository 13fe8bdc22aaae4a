"""L4. Reading a committed checkpoint: every byte is verified before anyone may use it.

Slices are read straight into the memory of the tensors they belong to. Nothing is returned until
all of them match their digests, so a reader gets one consistent checkpoint or an error.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from durable_core.engine.copies import Fault, Objects, Place, Sources, TierSource
from durable_core.errors import DigestMismatchError, FormatError
from durable_core.format import digests
from durable_core.format.manifest import Manifest, decode
from durable_core.state import memory, tree
from durable_core.state.slices import flat_begin
from durable_core.tier.base import Tier
from durable_core.types import PlacedSlice, Traits

_THREADS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True)
class Restored:
    """One verified checkpoint as this role sees it: ``state`` and ``role`` are the trees that were saved."""

    manifest: Manifest
    digest: str
    state: Any
    role: Any
    bytes_read: int
    bytes_from: Mapping[str, int] = field(default_factory=dict)  # by source
    faults: tuple[Fault, ...] = ()


def read_manifest(tier: Tier, key: str, digest: str) -> Manifest:
    """The manifest the journal names. ``DigestMismatchError``, ``FormatError``, ``ObjectNotFoundError``."""
    data = tier.get(key)
    if digests.sha256(data) != digest:
        raise DigestMismatchError(key, "the manifest differs from the digest in the journal")
    return decode(data, key=key)


def read(
    home: Tier,
    key: str,
    digest: str,
    role: str,
    sources: Sources | None = None,
    *,
    whose: Callable[[Manifest], str] | None = None,
) -> Restored:
    """Everything ``role`` needs, verified: documents from home, tensors from ``sources``.

    Without ``sources`` the tensors come from home too. ``whose``: the role whose part is read, where it is
    not to be ``role``'s own; it is asked before anything but the manifest is. Raises as ``read_manifest``,
    ``whose`` and ``Sources.read``.
    """
    manifest = read_manifest(home, key, digest)
    role = role if whose is None else whose(manifest)
    wanted = tensor_keys(manifest, role)
    sources = home_alone(home) if sources is None else sources
    tensors = read_tensors(sources, manifest, wanted)
    bytes_from = sources.bytes_from
    return Restored(
        manifest, digest, _tree(manifest, "state", role, wanted, tensors, key),
        _tree(manifest, "role", role, wanted, tensors, key), sum(bytes_from.values()),
        bytes_from, sources.faults,
    )  # fmt: skip


def home_alone(home: Tier) -> Sources:
    return Sources([TierSource(Place("home", home, Traits(frozenset())))])


def tensor_keys(manifest: Manifest, role: str) -> dict[str, str]:
    """Key in this role's documents -> key in the manifest: its own where replicas differ, else the shared."""
    own = f"roles/{role}/"
    keys = {key: key for key in manifest.tensors if key.startswith(("state/", own))}
    for key in manifest.tensors:
        if key.startswith(own + "state/"):
            keys[key[len(own) :]] = key
    return keys


def read_tensors(sources: Sources, manifest: Manifest, wanted: Mapping[str, str]) -> dict[str, Tensor]:
    """The wanted tensors by their key in the documents, in memory of their own."""
    objects = {info.key: info for info in manifest.objects}
    infos = {key: manifest.tensors[stored] for key, stored in wanted.items()}
    pieces = [piece for info in infos.values() for piece in info.slices]
    for piece in pieces:  # a claim that nobody holds bytes for is refused, unallocated
        sources.require(piece, objects)
    claims = {key: (info.dtype, info.global_shape) for key, info in infos.items()}
    tensors = memory.alloc(claims, budget=sum(piece.info.nbytes for piece in pieces))
    fill(sources, manifest, {key: (tensors[key], stored) for key, stored in wanted.items()})
    return tensors


def fill(
    sources: Sources,
    manifest: Manifest,
    targets: Mapping[str, tuple[Tensor, str]],
    *,
    threads: int = _THREADS,
) -> None:
    """Read the tensor stored under the second of each pair into the first: contiguous, on the CPU,
    of the stored dtype and shape. After an error nothing is known of what they hold."""
    objects = {info.key: info for info in manifest.objects}
    jobs = [
        (tensor, piece) for tensor, stored in targets.values() for piece in manifest.tensors[stored].slices
    ]
    jobs.sort(key=lambda job: (job[1].object, job[1].begin))  # as a disk likes it
    pool = ThreadPoolExecutor(threads, thread_name_prefix="durable-restore")
    try:
        for done in [pool.submit(_read_slice, sources, tensor, piece, objects) for tensor, piece in jobs]:
            done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _read_slice(sources: Sources, tensor: Tensor, piece: PlacedSlice, objects: Objects) -> None:
    info = piece.info
    if info.nbytes == 0:
        return
    if _contiguous(piece, tuple(tensor.shape)):
        begin = flat_begin(info.slice, tuple(tensor.shape)) * tensor.element_size()
        sources.read_slice(piece, objects, memory.writable(tensor)[begin : begin + info.nbytes])
        return
    part = memory.alloc({"": (info.dtype, info.slice.shape)}, budget=info.nbytes)[""]
    sources.read_slice(piece, objects, memory.writable(part))
    window = tuple(
        slice(offset, offset + length)
        for offset, length in zip(info.slice.offsets, info.slice.shape, strict=True)
    )
    tensor[window].copy_(part)


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
