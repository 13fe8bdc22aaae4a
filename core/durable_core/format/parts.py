"""L2. Slices, objects and ledger segments as they stand in offers, receipts and manifests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from durable_core.errors import FormatError
from durable_core.format import canonical, digests, layout
from durable_core.format.fields import Fields
from durable_core.format.shard import ITEMSIZE
from durable_core.types import Extent, ObjectInfo, PlacedSlice, SliceInfo, SliceKey

#: Typed JSON of the codec, or any other JSON value.
Json = Any
#: Patches of one slice that a document may list.
MAX_PATCHES = 64


@dataclass(frozen=True)
class LedgerSegment:
    """One writer's part of the ledger since the parent checkpoint; ``samples`` ids in it."""

    key: str
    digest: str
    samples: int


def document_digest(document: Json) -> str:
    """sha256 of the document's canonical bytes."""
    return digests.sha256(canonical.dumps(document))


def slice_json(info: SliceInfo) -> dict[str, Json]:
    return {
        "key": info.slice.key,
        "offsets": info.slice.offsets,
        "shape": info.slice.shape,
        "dtype": info.dtype,
        "global_shape": info.global_shape,
        "nbytes": info.nbytes,
        "xxh3": info.xxh3,
        "crc32c": info.crc32c,
    }


def read_slice(fields: Fields) -> SliceInfo:
    """Checks dtype, bounds and byte count; leaves further fields for the caller."""
    piece = SliceKey(fields.text("key"), fields.lengths("offsets"), fields.lengths("shape"))
    info = read_slice_of(fields, piece, fields.text("dtype"), fields.lengths("global_shape"))
    if fault := slice_fault(info):
        fields.fail(fault)
    return info


def read_slice_of(fields: Fields, piece: SliceKey, dtype: str, global_shape: tuple[int, ...]) -> SliceInfo:
    """The rest of a slice whose place is known; whether it can be is for ``slice_fault`` to say."""
    return SliceInfo(
        piece,
        dtype,
        global_shape,
        fields.count("nbytes"),
        fields.matching("xxh3", digests.XXH3),
        fields.matching("crc32c", digests.CRC32C),
    )


def slice_fault(info: SliceInfo) -> str:
    """Why the slice cannot be: unknown dtype, outside its tensor, wrong length; ``""`` when it can."""
    piece = info.slice
    if not piece.key or not isinstance(piece.key, str):
        return "has no tensor key"
    if info.dtype not in ITEMSIZE:
        return f"has unknown dtype {info.dtype!r}"
    if not len(piece.offsets) == len(piece.shape) == len(info.global_shape):
        return "has offsets, shape and global_shape of different lengths"
    for offset, length, whole in zip(piece.offsets, piece.shape, info.global_shape, strict=True):
        if offset < 0 or length < 0 or offset + length > whole:
            return f"leaves the tensor: {piece.offsets} + {piece.shape} in {info.global_shape}"
    wanted = math.prod(piece.shape) * ITEMSIZE[info.dtype]
    return "" if info.nbytes == wanted else f"has {info.nbytes} bytes for {info.dtype} of shape {piece.shape}"


def placed_json(placed: PlacedSlice) -> dict[str, Json]:
    return {**slice_json(placed.info), **place_json(placed, str)}


def read_placed(value: Json, *, key: str, where: str) -> PlacedSlice:
    fields = Fields(value, key=key, where=where)
    placed = read_place(fields, read_slice(fields), lambda inner: inner.object_key("object"))
    fields.end()
    if fault := place_fault(placed):
        fields.fail(fault)
    return placed


def place_json(placed: PlacedSlice, name: Callable[[str], Json]) -> dict[str, Json]:
    """Where a slice lies; ``name`` says how the document names an object."""
    row = {"object": name(placed.object), "begin": placed.begin}
    if placed.patches:
        row["base_xxh3"] = placed.base_xxh3
        row["patches"] = [_extent_json(patch, name) for patch in placed.patches]
    if placed.twin is not None:
        row["twin"] = _extent_json(placed.twin, name)
    return row


def read_place(fields: Fields, info: SliceInfo, name: Callable[[Fields], str]) -> PlacedSlice:
    """The inverse; ``place_fault`` says whether it can be."""
    placed = PlacedSlice(info, name(fields), fields.count("begin"))
    if fields.has("patches"):
        rows = fields.list("patches")
        if not 0 < len(rows) <= MAX_PATCHES:
            fields.fail(f"has {len(rows)} patches, not 1 to {MAX_PATCHES}")
        patches = tuple(_read_extent(row, fields, "a patch", name) for row in rows)
        placed = placed._replace(patches=patches, base_xxh3=fields.matching("base_xxh3", digests.XXH3))
    if fields.has("twin"):
        placed = placed._replace(twin=_read_extent(fields.any("twin"), fields, "the twin", name))
    return placed


def place_fault(placed: PlacedSlice) -> str:
    """Why a slice cannot lie where it is said to; ``""`` when it can."""
    twin = placed.twin
    if bool(placed.patches) != bool(placed.base_xxh3) or len(placed.patches) > MAX_PATCHES:
        return "has patches and no base, or a base and no patches, or too many"
    if twin is None:
        return ""
    if placed.patches:
        return "has both patches and a twin"
    if (twin.nbytes, twin.xxh3) != (placed.info.nbytes, placed.info.xxh3) or twin.object == placed.object:
        return "has a twin that is no second copy of it"
    return ""


def _extent_json(extent: Extent, name: Callable[[str], Json]) -> dict[str, Json]:
    return {
        "object": name(extent.object),
        "begin": extent.begin,
        "nbytes": extent.nbytes,
        "xxh3": extent.xxh3,
    }


def _read_extent(value: Json, outer: Fields, what: str, name: Callable[[Fields], str]) -> Extent:
    fields = Fields(value, key=outer.key, where=f"{outer.where}, {what}")
    extent = Extent(
        name(fields), fields.count("begin"), fields.count("nbytes"), fields.matching("xxh3", digests.XXH3)
    )
    fields.end()
    return extent


def object_json(info: ObjectInfo) -> dict[str, Json]:
    return {
        "key": info.key,
        "nbytes": info.nbytes,
        "header_bytes": info.header_bytes,
        "header_xxh3": info.header_xxh3,
    }


def read_object(value: Json, *, key: str, where: str) -> ObjectInfo:
    fields = Fields(value, key=key, where=where)
    info = ObjectInfo(
        fields.object_key("key"),
        fields.count("nbytes"),
        fields.count("header_bytes"),
        fields.matching("header_xxh3", digests.XXH3),
    )
    fields.end()
    if info.header_bytes > info.nbytes:
        fields.fail(f"has a header of {info.header_bytes} bytes in {info.nbytes}")
    return info


def segment_json(segment: LedgerSegment | None) -> Json:
    if segment is None:
        return None
    return {"key": segment.key, "digest": segment.digest, "samples": segment.samples}


def read_segment(value: Json, *, key: str) -> LedgerSegment | None:
    if value is None:
        return None
    fields = Fields(value, key=key, where="the ledger segment")
    segment = LedgerSegment(fields.object_key("key"), fields.digest("digest"), fields.count("samples"))
    fields.end()
    return segment


def read_digests(values: Mapping[str, Json], *, key: str, where: str) -> dict[str, str]:
    """A mapping of names to sha256 digests."""
    for name, value in values.items():
        if not isinstance(value, str) or not digests.SHA256.fullmatch(value):
            raise FormatError(key, f"{where}: {name!r} has no sha256 digest")
    return dict(values)


def check_objects(
    objects: Mapping[str, ObjectInfo], placed: Iterable[PlacedSlice], *, key: str, whole: set[str]
) -> None:
    """What is stored of the slices lies inside the objects named, after the header, without overlap.

    Those in ``whole`` have no gap either: header and slices are all there is. (Of an object reused
    from an older checkpoint some slices may be dead.) ``FormatError`` naming ``key``.
    """
    stored: dict[str, list[tuple[int, int, str]]] = {}
    for piece in placed:
        for extent in piece.extents:
            stored.setdefault(extent.object, []).append((extent.begin, extent.nbytes, piece.info.slice.key))
    for name in stored.keys() - objects.keys():
        raise FormatError(key, f"slices in object {name!r}, which is not listed")
    for name, info in objects.items():
        end = info.header_bytes
        for begin, nbytes, tensor in sorted(stored.get(name, [])):
            what = f"object {name!r}: slice of {tensor!r} at {begin}"
            if begin < end:
                raise FormatError(key, f"{what} overlaps what ends at {end}")
            if name in whole and begin != end:
                raise FormatError(key, f"{what} leaves a gap after {end}")
            end = begin + nbytes
            if end > info.nbytes:
                raise FormatError(key, f"{what} ends at {end}, beyond {info.nbytes}")
        if name in whole and end != info.nbytes:
            raise FormatError(key, f"object {name!r} has {info.nbytes} bytes, {end} accounted for")


def check_role_key(key: str, role: str, what: str, *, within: str) -> layout.CheckpointName:
    """The checkpoint of an object key that must be ``role``'s ``what``; ``FormatError`` otherwise."""
    parsed = layout.require_checkpoint_key(key, within=within)
    if parsed.what != what or parsed.role != role:
        raise FormatError(within, f"{key!r} is not the {what} of {role!r}")
    return parsed.name
