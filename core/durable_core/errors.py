"""L0. Exceptions, arranged by what the handler does about them.

Catch a branch, not a leaf: every branch has one sensible reaction, and each carries the exit
code that ``durable`` and the adapters end with.

===================  =====================================================  =========
branch               what the handler does                                  exit code
===================  =====================================================  =========
``UsageError``       mend the call, the setting or the state; nothing lost   2
``NotFoundError``    point at the right place                                3
``FencedError``      stop: another process owns the run                      4 (76)
``CorruptError``     step to another copy or an older checkpoint             5
``TierError``        retry; training goes on                                 1
``RestoreError``     a person decides: nothing usable is left                5
``NumericFault``     start again: it goes back to before the onset           77
===================  =====================================================  =========
"""

from __future__ import annotations

from typing import Any


class DurableError(Exception):
    """Base of everything raised on purpose. ``hint`` says the way out.

    It is pickled and copied with all of its attributes, whatever its constructor takes.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message if not hint else f"{message} ({hint})")
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.args), self.__dict__


def _again(kind: type[DurableError], args: tuple[Any, ...]) -> DurableError:
    return kind.__new__(kind, *args)  # which keeps ``args``; the attributes follow


def rebuilt(name: str, message: str, key: str = "") -> DurableError:
    """The error that another process met, by the name of its class: its handler's branch is the same."""
    kind = globals().get(name)
    if not (isinstance(kind, type) and issubclass(kind, DurableError)):
        kind = DurableError
    error: DurableError = kind.__new__(kind)
    Exception.__init__(error, message)
    error.message, error.hint = message, ""
    if isinstance(error, CorruptError):
        error.key, error.reason = key, message
    return error


# --- mend the call -------------------------------------------------------------------------


class UsageError(DurableError):
    """The call, a setting or a state object is at fault; nothing was changed."""

    exit_code = 2


class MemoryShortageError(UsageError):
    """There is not enough memory for a staging slot; the message has the numbers."""


class UnsupportedError(UsageError):
    """What was asked for cannot be made exact here, so it is refused."""


class CodecError(UsageError):
    """A value cannot be stored. ``path`` names it inside the state."""

    def __init__(self, path: str, message: str, *, hint: str = "") -> None:
        super().__init__(f"{path or '<root>'}: {message}", hint=hint)
        self.path = path


class SpecMismatchError(UsageError):
    """The spec differs from the run's; ``fields`` lists what differs."""

    fields: tuple[str, ...] = ()  # of one that another process met, it is not known

    def __init__(self, message: str, *, fields: tuple[str, ...] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.fields = fields


class OrderError(UsageError):
    """Batches were delivered or acknowledged out of order: a gap or a repeat."""


class IllegalMove(UsageError):
    """A run in that state knows no such event."""


class PromiseError(UsageError):
    """The promise asked for cannot be kept on this restart."""


# --- point elsewhere -----------------------------------------------------------------------


class NotFoundError(DurableError):
    exit_code = 3


class ObjectNotFoundError(NotFoundError):
    """A key does not exist in a tier."""

    def __init__(self, key: str, where: str = "", *, hint: str = "") -> None:
        super().__init__(f"no object {key!r}" + (f" in {where}" if where else ""), hint=hint)
        self.key = key


class RunNotFoundError(NotFoundError):
    """No journal at this root."""


class CheckpointNotFoundError(NotFoundError):
    """The run has no such checkpoint."""


# --- stop ----------------------------------------------------------------------------------


class FencedError(DurableError):
    """This process may not write to the run any more. Never upgrade the token: stop."""

    exit_code = 4


class Fenced(FencedError):
    """A newer generation owns the run."""


class Superseded(Fenced):
    """Another launch has taken the run over since this launch last owned it."""


class RunBusy(FencedError):
    """A live owner holds the run, and no explicit takeover was asked for."""


class RunEnded(FencedError):
    """The run is terminal (succeeded, failed or cancelled)."""


# --- use another copy ----------------------------------------------------------------------


class CorruptError(DurableError):
    """Bytes do not say what they should. ``key`` names the object."""

    exit_code = 5

    def __init__(self, key: str, reason: str, *, hint: str = "") -> None:
        super().__init__(f"{key}: {reason}", hint=hint)
        self.key = key
        self.reason = reason


class FormatError(CorruptError):
    """A document is malformed: truncated, wrong types, illegal values."""


class UnknownVersionError(FormatError):
    """Written by a version this code does not know."""


class DigestMismatchError(CorruptError):
    """Bytes differ from the digest recorded for them."""


class RecordError(CorruptError):
    """A record of a dataset does not decode. ``key`` names the object, ``ordinal`` the record in it."""

    def __init__(self, key: str, ordinal: int, reason: str, *, hint: str = "") -> None:
        super().__init__(key, f"record {ordinal}: {reason}", hint=hint)
        self.ordinal = ordinal


class CoverageError(CorruptError):
    """Some tensor is not covered exactly once."""


class SkippedRecord(CorruptError):
    """``dataset[i]`` raises it for a record that its declared policy leaves out: the batch goes on with a
    sample fewer, and the ledger names the record. Anything else raised there ends the pass.

    ``key`` names the object, ``ordinal`` the record in it and ``id`` the one in the dataset, if known.
    ``why``: what is wrong, which may be so of other records of the object too; default: ``reason``.
    """

    def __init__(
        self, key: str, reason: str, *, id: int | None = None, ordinal: int | None = None, why: str = "",
        hint: str = "",
    ) -> None:  # fmt: skip
        super().__init__(key, reason, hint=hint)
        self.id, self.ordinal, self.why = id, ordinal, why or reason


class JournalBrokenError(CorruptError):
    """The hash chain of the journal does not hold."""


# --- retry ---------------------------------------------------------------------------------


class TierError(DurableError):
    """A tier could not do an operation; it was *not* applied unless ``InDoubt``."""

    exit_code = 1


class TierUnavailable(TierError):
    """Transient or unexplained I/O failure (EIO, timeout, 5xx)."""


class TierFull(TierError):
    """No space or quota left."""


class TierDenied(TierError):
    """Read-only, permission denied, bad credentials."""


class InDoubt(TierError):
    """The operation may or may not have been applied. Neither success nor failure."""


class CommitAborted(DurableError):
    """A save was given up (missing receipts, deadline, failed check); training goes on."""


class StaleSnapshotError(CommitAborted):
    """The state changed while it was being copied: that snapshot is void; training goes on."""


class RpoBreachedError(DurableError):
    """More training than declared is unrecoverable, and the declared policy is to abort."""


class NumericFault(DurableError):
    """Wrong numbers were found, and the declared policy is to stop: start again, from before the onset.

    ``failure``: its class, F12 (not finite, or spiking) or F13 (silent corruption). ``onset``: the first step
    that is not trusted; ``found``: the step at which it showed. ``suspects``: roles that it points to.
    """

    exit_code = 77

    def __init__(
        self, message: str, *, failure: str, signature: str, onset: int, found: int,
        suspects: tuple[str, ...] = (), hint: str = "",
    ) -> None:  # fmt: skip
        super().__init__(message, hint=hint)
        self.failure, self.signature, self.onset, self.found = failure, signature, onset, found
        self.suspects = suspects


class LostSlot(DurableError):
    """Another record took the journal slot a decision was made for: look again and decide anew."""


class RecordRefused(DurableError):
    """The record would be void: the run's state is not as it needs. Nothing was written."""


# --- the group -----------------------------------------------------------------------------


class NodesMissing(DurableError):
    """The nodes that a group needs did not come in the time allowed (F18); the message has the numbers."""


class NodeQuarantined(DurableError):
    """This host is left out of the run; the message says since when, and why."""


# --- data ----------------------------------------------------------------------------------


class DataUnavailableError(DurableError):
    """A data object could not be read in the attempts and the time allowed. ``key`` names it."""

    def __init__(self, key: str, reason: str, *, hint: str = "") -> None:
        super().__init__(f"{key}: {reason}", hint=hint)
        self.key = key
        self.reason = reason


class CacheError(DurableError):
    """The local data cache cannot be used; the data can still be read where it lies."""


class CacheFullError(CacheError):
    """There is no room in it that is not in use; the message has the numbers."""


class ExhaustedError(UsageError):
    """A source of a mixture has no more records, and the declared policy is to say so."""

    def __init__(self, source: str, size: int, *, batch: int) -> None:
        super().__init__(
            f"source {source!r} ran out of its {size} records in global batch {batch}",
            hint="exhaustion='repeat', 'renormalize' or 'stop' goes on or ends cleanly",
        )
        self.source = source
        self.size = size


# --- a person decides ----------------------------------------------------------------------


class RestoreError(DurableError):
    exit_code = 5


class NoUsableCheckpoint(RestoreError):
    """Every candidate failed verification; a partly restored model is never trained on."""
