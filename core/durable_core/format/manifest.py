"""L2. The manifest: everything one checkpoint consists of, and every check that bytes alone allow.

``decode`` believes nothing: the slices of each tensor cover it exactly once, lie inside the listed
objects without overlap, and account for every byte of the objects written for this checkpoint. What
a manifest says of bytes ("byte-verified") is that they are the bytes written; whether the values were
right before they were written, no checksum can say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from durable_core.errors import CorruptError, DigestMismatchError, FormatError, UsageError
from durable_core.format import canonical, digests, layout
from durable_core.format.coverage import cover
from durable_core.format.fields import Fields, versioned
from durable_core.format.parts import (
    Json,
    check_objects,
    document_digest,
    object_json,
    place_fault,
    place_json,
    read_digests,
    read_object,
    read_place,
    read_slice_of,
    slice_fault,
)
from durable_core.types import ObjectInfo, PlacedSlice, Promise, SliceKey

VERSION = 2
#: Version 1 knows neither patches nor twins. It is written where it suffices.
OLDEST = 1
#: Bytes of a manifest, what ``Tier.get`` reads by default. 100,000 slices take about 20 MB.
MAX_BYTES = canonical.DEFAULT_LIMIT
#: The role of a document that every role shares.
SHARED = "*"

#: What the digests in this document are of, and by which algorithm.
DIGESTS: Mapping[str, str] = {
    "slice": "xxh3-128",
    "header": "xxh3-128",
    "chunk": "crc32c",
    "document": "sha256",
}
INTEGRITY_LEVELS = ("byte-verified", "semantically-verified")


@dataclass(frozen=True)
class TensorEntry:
    """One logical tensor: safetensors dtype name, global shape in elements, and where its slices lie."""

    dtype: str
    global_shape: tuple[int, ...]
    slices: tuple[PlacedSlice, ...]


@dataclass(frozen=True)
class LedgerRef:
    """The ledger's index object for this checkpoint and the sha256 digest of its bytes."""

    key: str
    digest: str


@dataclass(frozen=True)
class Manifest:
    """One checkpoint.

    ``parent`` is the checkpoint it continues, or ``None``; ``cursor`` the data position after the last
    committed step; ``counters`` integers such as ``data_step``, ``optimizer_step``, ``epoch`` and
    ``consumed_samples``; ``roles`` those whose receipts it unites (``receipts``: role -> sha256 of the
    receipt's bytes); ``documents`` the typed JSON by (name, role or ``SHARED``); ``metrics`` the
    last rows of the training curve, the reference for verifying a restore.
    """

    run_id: str
    generation: int
    c: int
    step: int
    parent: int | None
    spec_digest: str
    promise: Promise
    cursor: Json
    roles: tuple[str, ...]
    objects: tuple[ObjectInfo, ...]
    tensors: Mapping[str, TensorEntry]
    documents: Mapping[tuple[str, str], Json]
    receipts: Mapping[str, str]
    counters: Mapping[str, int] = field(default_factory=dict)
    topology: Mapping[str, Json] = field(default_factory=dict)
    fingerprint: Mapping[str, Json] = field(default_factory=dict)
    dataset: Json = None
    metrics: tuple[Json, ...] = ()
    ledger: LedgerRef | None = None
    integrity_level: str = "byte-verified"
    consistent: bool = True

    @property
    def cursor_digest(self) -> str:
        """What the commit record says of the cursor: sha256 of its canonical bytes."""
        return document_digest(self.cursor)

    @property
    def logical_bytes(self) -> int:
        """Bytes of all tensors, each counted once."""
        return sum(piece.info.nbytes for entry in self.tensors.values() for piece in entry.slices)

    @property
    def reuses(self) -> tuple[int, ...]:
        """Older checkpoints whose objects this one refers to, ascending."""
        others = {_owner(info.key) for info in self.objects} - {(self.generation, self.c), None}
        return tuple(sorted({owner[1] for owner in others if owner is not None}))

    @property
    def state_digest(self) -> str:
        """Digest of the content alone: slices, digests and documents, not where they lie."""
        tensors = {key: _tensor_json(entry, None) for key, entry in self.tensors.items()}
        return document_digest({"tensors": tensors, "documents": _documents_json(self.documents)})


def encode(manifest: Manifest) -> bytes:
    """Canonical bytes; ``UsageError`` for a manifest that ``decode`` would refuse."""
    try:
        _check(manifest, f"manifest of c{manifest.c}")
    except CorruptError as error:
        raise UsageError(f"bad manifest: {error}") from error
    index = {info.key: i for i, info in enumerate(manifest.objects)}
    ledger = manifest.ledger
    data = canonical.dumps(
        {
            "v": _version(manifest),
            "run_id": manifest.run_id,
            "generation": manifest.generation,
            "c": manifest.c,
            "step": manifest.step,
            "parent": manifest.parent,
            "spec_digest": manifest.spec_digest,
            "promise": manifest.promise.value,
            "cursor": manifest.cursor,
            "cursor_digest": manifest.cursor_digest,
            "state_digest": manifest.state_digest,
            "counters": dict(manifest.counters),
            "roles": list(manifest.roles),
            "topology": dict(manifest.topology),
            "fingerprint": dict(manifest.fingerprint),
            "dataset": manifest.dataset,
            "integrity_level": manifest.integrity_level,
            "consistent": manifest.consistent,
            "digests": dict(DIGESTS),
            "objects": [object_json(info) for info in manifest.objects],
            "tensors": {key: _tensor_json(entry, index) for key, entry in manifest.tensors.items()},
            "documents": _documents_json(manifest.documents),
            "metrics": list(manifest.metrics),
            "ledger": None if ledger is None else {"key": ledger.key, "digest": ledger.digest},
            "receipts": dict(manifest.receipts),
        }
    )
    if len(data) > MAX_BYTES:
        raise UsageError(f"a manifest of {len(data)} bytes, more than {MAX_BYTES}", hint="use larger slices")
    return data


def manifest_digest(data: bytes) -> str:
    """What the commit record says of the manifest's bytes."""
    return digests.sha256(data)


def check_digest(data: bytes, digest: str, *, key: str) -> None:
    """The bytes of a manifest are those a commit record names; ``DigestMismatchError`` otherwise."""
    if manifest_digest(data) != digest:
        raise DigestMismatchError(key, f"its sha256 is not {digest}")


def decode(data: bytes, *, key: str) -> Manifest:
    """The manifest in the object ``key``.

    Raises ``UnknownVersionError``, ``FormatError`` and ``CoverageError``, all naming ``key``; allocates in
    proportion to ``data``, whatever it claims.
    """
    fields = versioned(data, key=key, version=VERSION, oldest=OLDEST, limit=MAX_BYTES)
    objects = tuple(
        read_object(value, key=key, where=f"objects[{i}]") for i, value in enumerate(fields.list("objects"))
    )
    tensors = fields.mapping("tensors")
    documents = fields.list("documents")
    recorded = {name: fields.digest(name) for name in ("cursor_digest", "state_digest")}
    if fields.mapping("digests") != DIGESTS:
        fields.fail("names digest algorithms this version does not use")
    manifest = Manifest(
        run_id=fields.text("run_id"),
        generation=fields.count("generation"),
        c=fields.count("c"),
        step=fields.count("step"),
        parent=fields.count_or_null("parent"),
        spec_digest=fields.digest("spec_digest"),
        promise=_read_promise(fields),
        cursor=fields.any("cursor"),
        roles=tuple(fields.list("roles")),
        objects=objects,
        tensors={name: _read_tensor(value, name, objects, key) for name, value in tensors.items()},
        documents=_read_documents(documents, key),
        receipts=read_digests(fields.mapping("receipts"), key=key, where="receipts"),
        counters=fields.mapping("counters"),
        topology=fields.mapping("topology"),
        fingerprint=fields.mapping("fingerprint"),
        dataset=fields.any("dataset"),
        metrics=tuple(fields.list("metrics")),
        ledger=_read_ledger(fields.any("ledger"), key),
        integrity_level=fields.text("integrity_level"),
        consistent=fields.flag("consistent"),
    )
    fields.end()
    if fields.version != _version(manifest):
        raise FormatError(key, f"is of version {fields.version} and reads like version {_version(manifest)}")
    _check(manifest, key)
    for name, digest in recorded.items():
        if getattr(manifest, name) != digest:
            raise FormatError(key, f"{name} does not hold")
    return manifest


# --- the parts -----------------------------------------------------------------------------


def _version(manifest: Manifest) -> int:
    """The oldest that can say it: so what was written once is written the same for ever."""
    pieces = (piece for entry in manifest.tensors.values() for piece in entry.slices)
    return VERSION if any(piece.patches or piece.twin for piece in pieces) else OLDEST


def _tensor_json(entry: TensorEntry, index: Mapping[str, int] | None) -> dict[str, Json]:
    """With ``index`` (object key -> its place in the list) placed; without, the content alone."""
    slices = []
    for piece in entry.slices:
        row: dict[str, Json] = {
            "offsets": piece.info.slice.offsets,
            "shape": piece.info.slice.shape,
            "nbytes": piece.info.nbytes,
            "xxh3": piece.info.xxh3,
            "crc32c": piece.info.crc32c,
        }
        if index is not None:
            row |= place_json(piece, index.__getitem__)
        slices.append(row)
    if index is None:
        slices.sort(key=lambda row: (row["offsets"], row["shape"]))
    return {"dtype": entry.dtype, "global_shape": entry.global_shape, "slices": slices}


def _read_tensor(value: Json, name: str, objects: tuple[ObjectInfo, ...], key: str) -> TensorEntry:

    def named(where: Fields) -> str:
        at = where.count("object")
        if at >= len(objects):
            where.fail(f"lies in object {at} of {len(objects)}")
        return objects[at].key

    fields = Fields(value, key=key, where=f"tensor {name!r}")
    dtype, global_shape = fields.text("dtype"), fields.lengths("global_shape")
    slices = []
    for i, row in enumerate(fields.list("slices")):
        inner = Fields(row, key=key, where=f"tensor {name!r}, slice {i}")
        piece = SliceKey(name, inner.lengths("offsets"), inner.lengths("shape"))
        info = read_slice_of(inner, piece, dtype, global_shape)
        slices.append(read_place(inner, info, named))
        inner.end()
    fields.end()
    return TensorEntry(dtype, global_shape, tuple(slices))


def _documents_json(documents: Mapping[tuple[str, str], Json]) -> list[Json]:
    return [
        {"name": name, "role": role, "document": documents[name, role]} for name, role in sorted(documents)
    ]


def _read_documents(rows: list[Json], key: str) -> dict[tuple[str, str], Json]:
    found: dict[tuple[str, str], Json] = {}
    for i, row in enumerate(rows):
        fields = Fields(row, key=key, where=f"documents[{i}]")
        place = (fields.text("name"), fields.text("role"))
        if place in found:
            fields.fail(f"repeats {place}")
        found[place] = fields.any("document")
        fields.end()
    return found


def _read_promise(fields: Fields) -> Promise:
    text = fields.text("promise")
    try:
        return Promise(text)
    except ValueError:
        fields.fail(f"has unknown promise {text!r}")


def _read_ledger(value: Json, key: str) -> LedgerRef | None:
    if value is None:
        return None
    fields = Fields(value, key=key, where="ledger")
    ledger = LedgerRef(fields.object_key("key"), fields.digest("digest"))
    fields.end()
    return ledger


# --- the checks ----------------------------------------------------------------------------


def _check(manifest: Manifest, key: str) -> None:
    """Everything that can be wrong with a manifest, read or about to be written."""
    if manifest.parent is not None and manifest.parent >= manifest.c:
        raise FormatError(key, f"checkpoint {manifest.c} continues {manifest.parent}")
    if manifest.integrity_level not in INTEGRITY_LEVELS:
        raise FormatError(key, f"integrity_level {manifest.integrity_level!r}")
    if not manifest.run_id:
        raise FormatError(key, "has no run_id")
    _check_roles(manifest, key)
    for name, value in manifest.counters.items():
        if type(value) is not int:
            raise FormatError(key, f"counter {name!r} is not an integer")
    for name, entry in manifest.tensors.items():
        _check_tensor(name, entry, key)
    placed = [piece for entry in manifest.tensors.values() for piece in entry.slices]
    objects = {info.key: info for info in manifest.objects}
    if len(objects) != len(manifest.objects):
        raise FormatError(key, "an object is listed twice")
    own = {name for name in objects if _owner(name) in ((manifest.generation, manifest.c), None)}
    check_objects(objects, placed, key=key, whole=own)
    parsed = layout.parse_checkpoint_key(key)
    if parsed is not None and (parsed.name.generation, parsed.name.c) != (manifest.generation, manifest.c):
        raise FormatError(key, f"speaks of generation {manifest.generation}, c {manifest.c}")


def _check_roles(manifest: Manifest, key: str) -> None:
    if not manifest.roles or not all(map(layout.is_role, manifest.roles)):
        raise FormatError(key, "roles are not a list of roles")
    roles = set(manifest.roles)
    if len(roles) != len(manifest.roles):
        raise FormatError(key, "a role is listed twice")
    if set(manifest.receipts) != roles:
        raise FormatError(key, f"receipts of {sorted(manifest.receipts)} for roles {sorted(roles)}")
    for name, role in manifest.documents:
        if not name or (role != SHARED and role not in roles):
            raise FormatError(key, f"document {name!r} of unknown role {role!r}")


def _check_tensor(name: str, entry: TensorEntry, key: str) -> None:
    for piece in entry.slices:
        info = piece.info
        if (info.slice.key, info.dtype, info.global_shape) != (name, entry.dtype, entry.global_shape):
            raise FormatError(key, f"tensor {name!r} has a slice of another tensor, dtype or shape")
        if fault := slice_fault(info) or place_fault(piece):
            raise FormatError(key, f"tensor {name!r}: a slice {fault}")
    cover(entry.global_shape, (piece.info.slice for piece in entry.slices), key=key, tensor=name)


def _owner(object_key: str) -> tuple[int, int] | None:
    """Generation and number of the checkpoint an object was written for."""
    parsed = layout.parse_checkpoint_key(object_key)
    return None if parsed is None else (parsed.name.generation, parsed.name.c)
