"""L4. A snapshot is a save that was not made yet: from the request to the seal, and back.

A peer holds a snapshot as one object with the bytes of the sealed slot: header page, tensors, seal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from durable_core.commit.request import Deadlines, LedgerRows, SaveRequest
from durable_core.engine.copies import Objects, Stored
from durable_core.errors import CorruptError, DigestMismatchError, FormatError
from durable_core.format import digests, layout, ledger, seal
from durable_core.format.seal import HEADER_BYTES, Seal, SlotHeader, SlotState
from durable_core.state.staging import Staged
from durable_core.tier.base import Buffer, Tier
from durable_core.types import Promise, SliceInfo, Token

#: Snapshots of one writer that a peer keeps: the newest, and the one before until that is whole.
KEPT = 2

#: Bytes copied at a time, so that they are digested while in the processor's cache.
_CHUNK = 1 << 20

_BODY = ("documents", "cursor", "spec_digest", "counters", "metrics", "fingerprint", "topology", "dataset")


def seal_of(request: SaveRequest, infos: tuple[SliceInfo, ...], head: tuple[int, int] | None) -> Seal:
    """The seal of what ``request`` would save. ``head``: (c, step) of the newest commit known."""
    body = {name: _plain(getattr(request, name)) for name in _BODY}
    after = None if head is None else head[1]
    return Seal(
        run_id=request.run_id,
        generation=request.token.generation,
        launch_id=request.token.launch_id,
        role=request.role,
        roles=request.roles,
        step=request.step,
        head=None if head is None else head[0],
        after=after,
        infos=infos,
        body={**body, "promise": request.promise.value, "has_ledger": request.ledger is not None},
        ledger=b"" if request.ledger is None else request.ledger(after).data,
    )


def request_of(sealed: Seal, *, token: Token, deadlines: Deadlines, key: str) -> SaveRequest:
    """The save that the snapshot stands for, to be made under ``token``.

    ``key`` names where the seal came from, for the ``FormatError`` of one that says too little.
    """
    body = sealed.body
    try:
        promise = Promise(body["promise"])
        values = {name: body[name] for name in _BODY}
        rows = ledger.decode_segment(sealed.ledger, key=key) if body["has_ledger"] else None
    except (KeyError, ValueError) as error:
        raise FormatError(key, f"the seal lacks or garbles {error}") from error
    return SaveRequest(
        role=sealed.role,
        roles=sealed.roles,
        token=token,
        run_id=sealed.run_id,
        step=sealed.step,
        promise=promise,
        slices=None,
        ledger=None if rows is None else lambda after: segment(rows, after),
        deadlines=deadlines,
        **{**values, "metrics": tuple(values["metrics"])},
    )


def segment(rows: tuple[ledger.Row, ...], after: int | None) -> LedgerRows:
    """The ledger segment of the rows after step ``after``."""
    mine = tuple(row for row in rows if after is None or row.step > after)
    return LedgerRows(ledger.encode_segment(mine), sum(len(row.ids) for row in mine))


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


# --- at a peer -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Distant:
    """A snapshot wherever it lies: its seal, and how to read its tensors' bytes (from the first one's on)."""

    seal: Seal
    read: Callable[[int, memoryview], None]


class PeerStore:
    """The snapshots that one peer keeps of this run."""

    def __init__(self, name: str, tier: Tier) -> None:
        self.name = name
        self._tier = tier

    def push(self, sealed: Seal, staged: Staged, nonce: str) -> None:
        """Store a snapshot, then drop all but this writer's newest ``KEPT``. Raises the tier's errors."""
        key = layout.snapshot_key(sealed.generation, sealed.step, sealed.role, nonce)
        self._tier.write_object(key, _image(sealed, staged))
        mine = sorted(found for found in self._tier.list(layout.SNAPSHOTS) if _role(found) == sealed.role)
        for old in mine[:-KEPT]:
            self._tier.delete(old)

    def sealed(self) -> list[Distant]:
        """Every whole snapshot the peer has of this run; damaged ones are passed over."""
        found = []
        for key in self._tier.list(layout.SNAPSHOTS):
            try:
                found.append(self._open(key))
            except CorruptError:
                continue  # as good as absent: nothing is adopted from it
        return found

    def _open(self, key: str) -> Distant:
        page = bytearray(HEADER_BYTES)
        self._tier.read_into(key, 0, memoryview(page))
        header = seal.decode_header(bytes(page), key=key)
        if header.state is not SlotState.SEALED:
            raise FormatError(key, f"is {header.state.name}")
        if header.seal_begin + header.seal_nbytes != self._tier.size(key):
            raise FormatError(key, "is not as long as its header says")
        data = bytearray(header.seal_nbytes)
        self._tier.read_into(key, header.seal_begin, memoryview(data))
        if digests.xxh3(data) != header.seal_xxh3:
            raise DigestMismatchError(key, "the seal differs from its digest")

        def read(begin: int, out: memoryview) -> None:
            self._tier.read_into(key, HEADER_BYTES + begin, out)

        return Distant(seal.decode_seal(bytes(data), key=key), read)


class SnapshotSource:
    """Slices that happen to lie in snapshots, found by content: which checkpoint they were sealed for does
    not matter. A ``copies.Source``."""

    volatile = True

    def __init__(self, name: str, snapshots: Iterable[Distant]) -> None:
        self.name = name
        self._held = {
            (info.slice, info.xxh3): (snapshot.read, begin)
            for snapshot in snapshots
            for info, begin in snapshot.seal.begins()
        }

    def offers(self, stored: Stored, objects: Objects) -> bool:
        return (stored.slice, stored.extent.xxh3) in self._held

    def read(self, stored: Stored, objects: Objects, out: memoryview) -> str:
        read, begin = self._held[stored.slice, stored.extent.xxh3]
        hasher = digests.xxh3_hasher()
        for start in range(0, len(out), _CHUNK):
            part = out[start : start + _CHUNK]
            read(begin + start, part)
            hasher.update(part)  # what arrived: its owner may be writing to it at this moment
        return hasher.hexdigest()


def _image(sealed: Seal, staged: Staged) -> Iterator[Buffer]:
    data = seal.encode_seal(sealed)
    begin = seal.seal_begin(sealed.nbytes)
    header = seal.encode_header(SlotHeader(SlotState.SEALED, begin, len(data), digests.xxh3(data)))
    yield header.ljust(HEADER_BYTES, b"\0")
    yield from staged.gather(info.slice for info in sealed.infos)
    yield bytes(begin - HEADER_BYTES - sealed.nbytes)
    yield data


def _role(key: str) -> str | None:
    parsed = layout.parse_snapshot_key(key)
    return None if parsed is None else parsed.role
