"""L2. What makes the bytes of a slot a snapshot: its header page and its seal.

A slot is one page of header, the tensors' bytes back to back, and (on the next page) the seal. The header
says how far the slot is: ``DIRTY`` before the first byte changes, ``SEALED`` after everything else, with the
seal's place, length and digest. So bytes are believed only when a header with a good checksum names a
seal with that digest, and each slice only when it has the digest the seal says.

A seal is ``<u64 little endian: n><n bytes of canonical JSON><the ledger's bytes>``.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from durable_core.errors import FormatError, UnknownVersionError, UsageError
from durable_core.format import canonical, digests, layout
from durable_core.format.fields import UPGRADE, Fields, versioned
from durable_core.format.parts import Json, read_slice, slice_fault, slice_json
from durable_core.types import SliceInfo

VERSION = 1
#: Bytes before the tensors: one page on most machines, and what O_DIRECT asks of a buffer.
HEADER_BYTES = 4096
#: Bytes of the seal's JSON, and of the ledger's rows in it.
MAX_HEAD = canonical.DEFAULT_LIMIT
MAX_LEDGER = 1 << 30

_PREFIX = struct.Struct("<Q")
_HEADER = struct.Struct("<8sHHIQQ16s")
_CRC = struct.Struct("<I")
_MAGIC = b"DURSLOT\n"
_LIMIT = 2**63


class SlotState(enum.IntEnum):
    EMPTY = 0
    DIRTY = 1
    SEALED = 2


@dataclass(frozen=True)
class SlotHeader:
    """``seal_begin`` and ``seal_nbytes`` place the seal in the slot (bytes); ``seal_xxh3`` is its digest."""

    state: SlotState
    seal_begin: int = 0
    seal_nbytes: int = 0
    seal_xxh3: str = "0" * 32


@dataclass(frozen=True)
class Seal:
    """Everything a save needs besides the tensors' bytes: who staged them, when, and what goes with them.

    ``head`` is the newest commit known when it was sealed and ``after`` its step (both ``None``: none
    yet); ``ledger`` holds the rows after ``after``. ``infos``: every slice, in the order of their bytes,
    which lie back to back. ``body``: documents, cursor, counters and the like, as JSON.
    """

    run_id: str
    generation: int
    launch_id: str
    role: str
    roles: tuple[str, ...]
    step: int
    head: int | None
    after: int | None
    infos: tuple[SliceInfo, ...]
    body: Mapping[str, Json]
    ledger: bytes = b""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(info.nbytes for info in self.infos)

    def begins(self) -> Iterator[tuple[SliceInfo, int]]:
        """Every slice and where its bytes begin, counted from the first tensor's first byte."""
        begin = 0
        for info in self.infos:
            yield info, begin
            begin += info.nbytes


def seal_begin(nbytes: int) -> int:
    """Where the seal of a slot with ``nbytes`` bytes of tensors lies: on the page after them."""
    return HEADER_BYTES + -(-nbytes // HEADER_BYTES) * HEADER_BYTES


def encode_header(header: SlotHeader) -> bytes:
    """The header's bytes; a page of a slot begins with them."""
    packed = _HEADER.pack(
        _MAGIC, VERSION, header.state, 0, header.seal_begin, header.seal_nbytes,
        bytes.fromhex(header.seal_xxh3),
    )  # fmt: skip
    return packed + _CRC.pack(int(digests.crc32c(packed), 16))


def decode_header(data: bytes | memoryview, *, key: str) -> SlotHeader:
    """The header of the slot ``key``; ``FormatError`` for a torn or foreign one, ``UnknownVersionError``."""
    if len(data) < _HEADER.size + _CRC.size:
        raise FormatError(key, f"{len(data)} bytes are no slot header")
    packed = bytes(data[: _HEADER.size])
    magic, version, state, spare, begin, nbytes, digest = _HEADER.unpack(packed)
    if magic != _MAGIC:
        raise FormatError(key, "not a slot")
    if _CRC.unpack_from(data, _HEADER.size)[0] != int(digests.crc32c(packed), 16):
        raise FormatError(key, "the slot's header is torn: its checksum does not hold")
    if version != VERSION:
        raise UnknownVersionError(key, f"a slot of version {version}", hint=UPGRADE)
    if state not in tuple(SlotState) or spare:
        raise FormatError(key, f"unknown slot state {state}")
    if state == SlotState.SEALED and not (
        HEADER_BYTES <= begin < _LIMIT and _PREFIX.size < nbytes <= _PREFIX.size + MAX_HEAD + MAX_LEDGER
    ):
        raise FormatError(key, f"a seal of {nbytes} bytes at {begin} cannot be")
    return SlotHeader(SlotState(state), begin, nbytes, digest.hex())


def encode_seal(seal: Seal) -> bytes:
    """The seal's bytes; ``UsageError`` for one that ``decode_seal`` would refuse."""
    for info in seal.infos:
        if fault := slice_fault(info):
            raise UsageError(f"slice of {info.slice.key!r} {fault}")
    if fault := _fault(seal):
        raise UsageError(f"this seal {fault}")
    head = canonical.dumps(
        {
            "v": VERSION,
            "what": "seal",
            "run_id": seal.run_id,
            "generation": seal.generation,
            "launch_id": seal.launch_id,
            "role": seal.role,
            "roles": list(seal.roles),
            "step": seal.step,
            "head": seal.head,
            "after": seal.after,
            "infos": [slice_json(info) for info in seal.infos],
            "body": dict(seal.body),
            "ledger_nbytes": len(seal.ledger),
            "ledger_xxh3": digests.xxh3(seal.ledger),
        }
    )
    if len(head) > MAX_HEAD or len(seal.ledger) > MAX_LEDGER:
        raise UsageError(
            f"a seal of {len(head)} + {len(seal.ledger)} (ledger) bytes, beyond {MAX_HEAD} + {MAX_LEDGER}",
            hint="commit more often, or keep less in the documents",
        )
    return _PREFIX.pack(len(head)) + head + seal.ledger


def decode_seal(data: bytes | memoryview, *, key: str) -> Seal:
    """Raises ``FormatError`` and ``UnknownVersionError`` naming ``key``, the slot or object it came from."""
    if len(data) < _PREFIX.size:
        raise FormatError(key, "shorter than a seal's prefix")
    (length,) = _PREFIX.unpack_from(data)
    end = _PREFIX.size + length
    if length > MAX_HEAD or end > len(data):
        raise FormatError(key, f"claims a seal of {length} bytes in {len(data)}")
    ledger = bytes(data[end:])
    fields = versioned(bytes(data[_PREFIX.size : end]), key=key, version=VERSION, limit=MAX_HEAD)
    if fields.text("what") != "seal":
        fields.fail("is not a seal")
    seal = Seal(
        run_id=fields.text("run_id"),
        generation=fields.count("generation"),
        launch_id=fields.text("launch_id"),
        role=fields.role("role"),
        roles=_read_roles(fields),
        step=fields.count("step"),
        head=fields.count_or_null("head"),
        after=fields.count_or_null("after"),
        infos=_read_infos(fields),
        body=fields.mapping("body"),
        ledger=ledger,
    )
    nbytes, digest = fields.count("ledger_nbytes"), fields.matching("ledger_xxh3", digests.XXH3)
    fields.end()
    if nbytes != len(ledger) or digest != digests.xxh3(ledger):
        fields.fail(f"has {len(ledger)} bytes of ledger that are not those it was sealed with")
    if fault := _fault(seal):
        fields.fail(fault)
    return seal


def _fault(seal: Seal) -> str:
    """Why the seal cannot be; ``""`` when it can."""
    if key_fault := layout.key_fault(seal.run_id):
        return f"has a bad run_id: {key_fault}"
    if "/" in seal.run_id or not seal.launch_id:
        return "has a bad run_id or no launch_id"
    if not all(map(layout.is_role, seal.roles)) or len(set(seal.roles)) != len(seal.roles):
        return "names roles twice, or what is no role"
    if seal.role not in seal.roles:
        return f"is of role {seal.role!r}, which is none of its roles"
    if min(seal.generation, seal.step) < 0:
        return "has a negative generation or step"
    if (seal.head is None) != (seal.after is None) or (seal.after is not None and seal.after > seal.step):
        return f"continues commit {seal.head} at step {seal.after}, and is itself at step {seal.step}"
    if len({info.slice for info in seal.infos}) != len(seal.infos):
        return "lists a slice twice"
    return ""


def _read_roles(fields: Fields) -> tuple[str, ...]:
    roles = fields.list("roles")
    if not all(map(layout.is_role, roles)):
        fields.fail("field 'roles' is not a list of roles")
    return tuple(roles)


def _read_infos(fields: Fields) -> tuple[SliceInfo, ...]:
    found = []
    for index, value in enumerate(fields.list("infos")):
        inner = Fields(value, key=fields.key, where=f"infos[{index}]")
        found.append(read_slice(inner))
        inner.end()
    return tuple(found)
