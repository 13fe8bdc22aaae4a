"""L4. Every byte of every retained checkpoint, read again and checked. Bounded memory; writes nothing.

The chain of trust: the journal's records are hash-chained and name the digest of each manifest and
ledger index; the manifest names the digests of receipts, object headers and slices; the index those
of its segments. What passes is what was written (COMMIT-05): no checksum says that it was right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from durable_core.clock import Clock
from durable_core.commit.state import CheckpointInfo
from durable_core.engine.copies import check_object
from durable_core.engine.inspect import Reader, open_tier
from durable_core.errors import CorruptError, DigestMismatchError, FormatError, NotFoundError, TierError
from durable_core.format import digests, layout, ledger, patch, receipt
from durable_core.format.layout import CheckpointName
from durable_core.format.manifest import Manifest
from durable_core.format.parts import LedgerSegment
from durable_core.tier.base import Tier
from durable_core.types import CheckpointState, Extent, ObjectInfo, PlacedSlice

CHUNK = 8 << 20

T = TypeVar("T")


@dataclass(frozen=True)
class Finding:
    """One object that is not as it should be. ``kind``: corrupt, missing, or unreadable (the tier
    failed, so nothing is known of the bytes). ``c`` is ``None`` for the journal itself."""

    c: int | None
    key: str
    kind: str
    reason: str


@dataclass(frozen=True)
class Verified:
    """What was read for one checkpoint. ``bytes`` leaves out what an earlier one had verified already.

    ``elsewhere``: objects that are not in the root, where the journal does not say that they should be.
    """

    c: int
    step: int
    state: CheckpointState
    objects: int
    bytes: int
    findings: tuple[Finding, ...]
    elsewhere: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    checkpoints: tuple[Verified, ...]
    journal: tuple[Finding, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        found = (finding for checkpoint in self.checkpoints for finding in checkpoint.findings)
        return (*self.journal, *found)

    @property
    def bytes(self) -> int:
        return sum(checkpoint.bytes for checkpoint in self.checkpoints)

    @property
    def corrupt(self) -> bool:
        """Something is damaged or missing (not merely unreadable now)."""
        return any(finding.kind != "unreadable" for finding in self.findings)


def verify(
    reader: Reader, c: int | None = None, *, clock: Clock | None = None, strict: bool = False
) -> Report:
    """Check ``c``, or every retained checkpoint and the whole ledger.

    ``strict``: what the journal places in other tiers only has to be in the root as well. Faults are
    findings, not exceptions. ``CheckpointNotFoundError`` for a ``c`` that was never committed. A
    checkpoint that a live run retires meanwhile is left out of the report.
    """
    infos = reader.retained() if c is None else (reader.checkpoint(c),)
    retired = () if c is not None else tuple(i for i in reader.committed() if i not in infos)
    check = _Checker(reader, strict)
    found = [check.checkpoint(info) for info in infos] + [check.ledger_only(info) for info in retired]
    if any(verified.findings for verified in found):
        # Beside a live run: what was retired while it was read is no loss.
        now = open_tier(reader.tier, clock=clock, with_holes=True).state.checkpoints
        kept = (i for i in infos if i.state is not CheckpointState.RETIRED)
        gone = {i.c for i in kept if now[i.c].state is CheckpointState.RETIRED}
        found = [verified for verified in found if verified.c not in gone]
    return Report(tuple(sorted(found, key=lambda verified: verified.c)), tuple(_gap(reader)))


def _gap(reader: Reader) -> Iterator[Finding]:
    """A record beyond the first empty slot: a slot was lost, and with it all that follows."""
    end = reader.view.next_seq
    beyond = [
        seq for key in reader.tier.list(layout.JOURNAL) if (seq := layout.parse_journal_key(key) or 0) > end
    ]
    key = layout.journal_key(end)
    if beyond and not _exists(reader.tier, key):  # unless the run has just written it
        yield Finding(None, key, "missing", f"and {len(beyond)} records follow it, up to {max(beyond)}")


def _exists(tier: Tier, key: str) -> bool:
    try:
        tier.size(key)
    except NotFoundError:
        return False
    return True


@dataclass
class _Checker:
    reader: Reader
    strict: bool
    _buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(CHUNK)))
    _sound: set[Extent] = field(default_factory=set)  # whole, perhaps checked for an earlier checkpoint
    _results: set[PlacedSlice] = field(default_factory=set)  # patched slices that are what they should be
    _findings: list[Finding] = field(default_factory=list)
    _elsewhere: list[str] = field(default_factory=list)
    _keys: set[str] = field(default_factory=set)
    _bytes: int = 0

    @property
    def tier(self) -> Tier:
        return self.reader.tier

    def checkpoint(self, info: CheckpointInfo) -> Verified:
        manifest = self._try(info, info.manifest, partial(self.reader.manifest, info))
        if manifest is not None:
            self._try(info, info.manifest, partial(_agrees, manifest, info, self.reader.state.run_id))
            for role, digest in manifest.receipts.items():
                key = CheckpointName(info.generation, info.c, info.nonce).receipt(role)
                self._try(info, key, partial(self._receipt, key, digest))
            pieces = [piece for entry in manifest.tensors.values() for piece in entry.slices]
            extents: dict[str, dict[Extent, str]] = {each.key: {} for each in manifest.objects}
            for piece in pieces:
                for extent in piece.extents:
                    whole = extent.xxh3 == piece.info.xxh3
                    extents[extent.object][extent] = piece.info.crc32c if whole else ""
            for each in manifest.objects:
                self._object(info, each, extents[each.key])
            for piece in pieces:
                if piece.patches and self._sound.issuperset(piece.extents):
                    self._try(info, piece.patches[-1].object, partial(self._patched, piece))
        return self.ledger_only(info)

    def ledger_only(self, info: CheckpointInfo) -> Verified:
        """The part that outlives retirement."""
        if info.ledger is not None:
            key, digest = info.ledger
            index = self._try(info, key, partial(self._index, key, digest))
            for segment in index.segments.values() if index else ():
                self._try(info, segment.key, partial(self._segment, segment))
        verified = Verified(
            info.c, info.step, info.state, len(self._keys), self._bytes, tuple(self._findings),
            tuple(self._elsewhere),
        )  # fmt: skip
        self._keys, self._bytes, self._findings, self._elsewhere = set(), 0, [], []
        return verified

    def _object(self, info: CheckpointInfo, each: ObjectInfo, extents: Mapping[Extent, str]) -> None:
        away = self._elsewhere if self.reader.is_elsewhere(info) and not self.strict else None
        if self._try(info, each.key, partial(self._header, each), away) is None:
            return
        for extent in sorted(extents, key=lambda extent: extent.begin):
            if extent not in self._sound:
                self._try(info, each.key, partial(self._extent, extent, extents[extent]))

    def _header(self, each: ObjectInfo) -> bool:
        check_object(self.tier, each)
        self._bytes += each.header_bytes
        return True

    def _extent(self, extent: Extent, crc32c: str) -> None:
        """``crc32c`` is empty where it is not known."""
        hasher = digests.SliceHasher()
        for begin, length in _chunks(extent.nbytes):
            window = self._buffer[:length]
            self.tier.read_into(extent.object, extent.begin + begin, window)
            hasher.update(window)
        if (hasher.xxh3, crc32c and hasher.crc32c) != (extent.xxh3, crc32c):
            what = f"the {extent.nbytes} bytes at {extent.begin} differ from their digest"
            raise DigestMismatchError(extent.object, what)
        self._bytes += extent.nbytes
        self._sound.add(extent)

    def _patched(self, piece: PlacedSlice) -> None:
        """The base and its patches are as they were written; together they must be the slice."""
        if piece in self._results:
            return
        out = memoryview(bytearray(piece.info.nbytes))
        self.tier.read_into(piece.object, piece.begin, out)
        for extent in piece.patches:
            data = memoryview(bytearray(extent.nbytes))
            self.tier.read_into(extent.object, extent.begin, data)
            patch.apply(data, out, key=extent.object)
        if (digests.xxh3(out), digests.crc32c(out)) != (piece.info.xxh3, piece.info.crc32c):
            what = f"{piece.info.slice.key!r} differs from its digest once it is patched"
            raise DigestMismatchError(piece.patches[-1].object, what)
        self._results.add(piece)

    def _receipt(self, key: str, digest: str) -> receipt.Receipt:
        return receipt.decode_receipt(self._digested(key, digest), key=key)

    def _index(self, key: str, digest: str) -> ledger.LedgerIndex:
        return ledger.decode_index(self._digested(key, digest), key=key)

    def _segment(self, segment: LedgerSegment) -> None:
        ledger.decode_segment(self._digested(segment.key, segment.digest), key=segment.key)

    def _digested(self, key: str, digest: str) -> bytes:
        data = self.tier.get(key)
        if digests.sha256(data) != digest:
            raise DigestMismatchError(key, f"its sha256 is not {digest}")
        self._bytes += len(data)
        return data

    def _try(
        self, info: CheckpointInfo, key: str, check: Callable[[], T], away: list[str] | None = None
    ) -> T | None:
        """Run one check; a fault becomes a finding and ``None``. ``away`` takes what need not be there."""
        self._keys.add(key)
        try:
            return check()
        except CorruptError as error:
            self._findings.append(Finding(info.c, error.key, "corrupt", error.reason))
        except NotFoundError as error:
            if away is None:
                self._findings.append(Finding(info.c, key, "missing", error.message))
            else:
                away.append(key)
        except TierError as error:
            self._findings.append(Finding(info.c, key, "unreadable", error.message))
        return None


def _agrees(manifest: Manifest, info: CheckpointInfo, run_id: str) -> None:
    """The manifest says the same as the record that committed it."""
    ledger_ref = None if manifest.ledger is None else (manifest.ledger.key, manifest.ledger.digest)
    pairs = {
        "run": (manifest.run_id, run_id),
        "c": (manifest.c, info.c),
        "generation": (manifest.generation, info.generation),
        "step": (manifest.step, info.step),
        "parent": (manifest.parent, info.parent),
        "cursor digest": (manifest.cursor_digest, info.cursor_digest),
        "ledger": (ledger_ref, info.ledger),
        "reuses": (manifest.reuses, tuple(sorted(info.reuses))),
    }
    for name, (found, recorded) in pairs.items():
        if found != recorded:
            raise FormatError(info.manifest, f"its {name} is {found}, the journal's {recorded}")


def _chunks(nbytes: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, nbytes, CHUNK):
        yield begin, min(CHUNK, nbytes - begin)
