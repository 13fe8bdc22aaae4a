"""L2. What writers leave for each other and for the coordinator: offers and receipts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from durable_core.errors import FormatError, UsageError
from durable_core.format import canonical, layout
from durable_core.format.fields import Fields, versioned
from durable_core.format.parts import (
    Json,
    LedgerSegment,
    check_objects,
    check_role_key,
    document_digest,
    object_json,
    placed_json,
    read_digests,
    read_object,
    read_placed,
    read_segment,
    read_slice,
    segment_json,
    slice_fault,
    slice_json,
)
from durable_core.types import ObjectInfo, PlacedSlice, SliceInfo

VERSION = 2
#: Version 1 knows neither ``base`` nor, therefore, patches and twins. It is written where it suffices.
OLDEST = 1

__all__ = ["LedgerSegment", "Offer", "Receipt", "document_digest"]


@dataclass(frozen=True)
class Offer:
    """What one writer holds for one checkpoint: digests of its slices and documents. ``base``: as in
    ``Receipt``."""

    role: str
    generation: int
    c: int
    step: int
    slices: tuple[SliceInfo, ...]
    documents: Mapping[str, str] = field(default_factory=dict)  # name -> sha256 of its canonical bytes
    base: str | None = None


@dataclass(frozen=True)
class Receipt:
    """What one writer wrote for one checkpoint, signed off when all of it was durable.

    ``offered``: every slice it holds. ``placed``: those of which it wrote something, and where.
    ``documents``: its typed JSON by name. ``ledger``: its segment, when its data came through the ledger.
    ``base``: sha256 of the manifest that it would plan on (what is unchanged is not written), if any.
    """

    role: str
    generation: int
    c: int
    step: int
    offered: tuple[SliceInfo, ...]
    placed: tuple[PlacedSlice, ...]
    objects: tuple[ObjectInfo, ...]
    documents: Mapping[str, Json] = field(default_factory=dict)
    ledger: LedgerSegment | None = None
    base: str | None = None

    @cached_property
    def document_digests(self) -> dict[str, str]:
        return {name: document_digest(document) for name, document in self.documents.items()}

    @cached_property
    def _encoded(self) -> bytes:
        """Made once: they are written, and then the manifest has their digest."""
        _check_identity(self.role, self.offered)
        return canonical.dumps(
            {
                **_head_json("receipt", self),
                "offered": [slice_json(info) for info in self.offered],
                "placed": [placed_json(placed) for placed in self.placed],
                "objects": [object_json(info) for info in self.objects],
                "documents": dict(self.documents),
                "document_digests": self.document_digests,
                "ledger": segment_json(self.ledger),
            }
        )


def encode_offer(offer: Offer) -> bytes:
    """Canonical bytes; ``UsageError`` for an offer that ``decode_offer`` would refuse."""
    _check_identity(offer.role, offer.slices)
    return canonical.dumps(
        {
            **_head_json("offer", offer),
            "slices": [slice_json(info) for info in offer.slices],
            "documents": dict(offer.documents),
        }
    )


def decode_offer(data: bytes, *, key: str) -> Offer:
    """Raises ``FormatError`` and ``UnknownVersionError`` naming ``key``."""
    fields = versioned(data, key=key, version=VERSION, oldest=OLDEST)
    _check_what(fields, "offer")
    offer = Offer(
        role=fields.role("role"),
        generation=fields.count("generation"),
        c=fields.count("c"),
        step=fields.count("step"),
        slices=_read_slices(fields, "slices"),
        documents=read_digests(fields.mapping("documents"), key=key, where="documents"),
        base=_read_base(fields),
    )
    fields.end()
    _check_place(key, "offer", offer.role, offer.generation, offer.c)
    return offer


def encode_receipt(receipt: Receipt) -> bytes:
    """Canonical bytes; ``UsageError`` for a receipt that ``decode_receipt`` would refuse."""
    return receipt._encoded


def decode_receipt(data: bytes, *, key: str) -> Receipt:
    """Raises ``FormatError`` and ``UnknownVersionError`` naming ``key``.

    Checked: every slice, that something of each placed slice lies in one of the writer's own objects, that
    header and slices account for every byte of them, and the documents against their digests.
    """
    fields = versioned(data, key=key, version=VERSION, oldest=OLDEST)
    _check_what(fields, "receipt")
    receipt = Receipt(
        role=fields.role("role"),
        generation=fields.count("generation"),
        c=fields.count("c"),
        step=fields.count("step"),
        offered=_read_slices(fields, "offered"),
        placed=tuple(
            read_placed(value, key=key, where=f"placed[{i}]") for i, value in enumerate(fields.list("placed"))
        ),
        objects=tuple(
            read_object(value, key=key, where=f"objects[{i}]")
            for i, value in enumerate(fields.list("objects"))
        ),
        documents=fields.mapping("documents"),
        ledger=read_segment(fields.any("ledger"), key=key),
        base=_read_base(fields),
    )
    claimed = read_digests(fields.mapping("document_digests"), key=key, where="document_digests")
    fields.end()
    if claimed != receipt.document_digests:
        raise FormatError(key, "the documents differ from their digests")
    _check_place(key, "receipt", receipt.role, receipt.generation, receipt.c)
    _check_written(receipt, key)
    return receipt


def _check_written(receipt: Receipt, key: str) -> None:
    objects = {info.key: info for info in receipt.objects}
    if len(objects) != len(receipt.objects):
        raise FormatError(key, "an object is listed twice")
    written = []
    for piece in receipt.placed:
        if len(piece.extents) > 1 and receipt.base is None:
            raise FormatError(key, f"{piece.info.slice.key!r} is patched or copied, and there is no base")
        own = [extent for extent in piece.extents if extent.object in objects]
        if not own:
            raise FormatError(key, f"{piece.info.slice.key!r} is in {piece.object}, which is not listed")
        written += [PlacedSlice(piece.info._replace(nbytes=e.nbytes), e.object, e.begin) for e in own]
    check_objects(objects, written, key=key, whole=set(objects))


def _head_json(what: str, said: Offer | Receipt) -> dict[str, Json]:
    """Who says it, and of which attempt; what has no base is in the format that older readers know."""
    version: dict[str, Json] = {"v": OLDEST} if said.base is None else {"v": VERSION, "base": said.base}
    attempt: dict[str, Json] = {"generation": said.generation, "c": said.c, "step": said.step}
    return {**version, "what": what, "role": said.role, **attempt}


def _read_base(fields: Fields) -> str | None:
    return None if fields.version == OLDEST else fields.digest("base")


def _read_slices(fields: Fields, name: str) -> tuple[SliceInfo, ...]:
    found = []
    for i, value in enumerate(fields.list(name)):
        inner = Fields(value, key=fields.key, where=f"{name}[{i}]")
        found.append(read_slice(inner))
        inner.end()
    if len({info.slice for info in found}) != len(found):
        fields.fail(f"lists a slice twice in {name!r}")
    return tuple(found)


def _check_what(fields: Fields, what: str) -> None:
    if fields.text("what") != what:
        fields.fail(f"is not an {what}" if what == "offer" else f"is not a {what}")


def _check_place(key: str, what: str, role: str, generation: int, c: int) -> None:
    """The document says what its key says, so that a copied or misplaced one is refused."""
    if layout.parse_checkpoint_key(key) is None:
        return  # read from elsewhere (a test, an export)
    name = check_role_key(key, role, what, within=key)
    if (name.generation, name.c) != (generation, c):
        raise FormatError(key, f"speaks of generation {generation}, c {c}")


def _check_identity(role: str, slices: tuple[SliceInfo, ...]) -> None:
    if not layout.is_role(role):
        raise UsageError(f"bad role {role!r}")
    for info in slices:
        if fault := slice_fault(info):
            raise UsageError(f"slice of {info.slice.key!r} {fault}")
