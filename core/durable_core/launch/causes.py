"""L5. What one worker's end says of the cause, from its last words and its status: tables, and nothing of
the others."""

from __future__ import annotations

import enum
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from durable_core.engine.words import Words
from durable_core.format import layout
from durable_core.launch.classes import DRAINED, FENCED, NUMERIC, F
from durable_core.launch.evidence import Exit, signal_name
from durable_core.launch.signature import signature


class Origin(enum.IntEnum):
    """Where the cause lies: that decides what a repetition proves. In order of what explains a group's end
    best: an error may be the echo of a peer's end in words that are not known here; a kill by somebody else
    never is."""

    OUTSIDE = 0  # something ended it (a kill, a lost host): a repetition proves nothing of the program
    INSIDE = 1  # the program or its data: the same again means that it always will be so
    UNKNOWN = 2  # once is chance, twice is not
    SECONDARY = 3  # it tells that a peer is gone, which is another's end


@dataclass(frozen=True)
class Cause:
    """``object``: the key of what it is about; ``hopeless``: why no restart of any kind helps, or ``""``."""

    failure: F
    origin: Origin
    signature: str
    reason: str
    step: int | None = None
    object: str = ""
    hopeless: str = ""


#: Our own errors by their class, then by the branch of it; what is in neither is a fault of the program.
_LEAF: Mapping[str, F] = {
    "MemoryShortageError": F.F8,
    "UnknownVersionError": F.F16,
    "RunNotFoundError": F.F16,
    "CheckpointNotFoundError": F.F16,
    "RecordError": F.F9,
    "SkippedRecord": F.F9,
    "DataUnavailableError": F.F9,
    "NumericFault": F.F12,
    "RpoBreachedError": F.F10,
    "CommitAborted": F.F10,
    "JournalBrokenError": F.F11,
    "NodesMissing": F.F18,
}
_BRANCH: Mapping[str, F] = {
    "UsageError": F.F16,
    "FencedError": F.F14,
    "TierError": F.F10,
    "RestoreError": F.F11,
}
#: Of these the key of the object says whose fault it is: a checkpoint's, or the data's.
_OF_AN_OBJECT = frozenset({"CorruptError", "NotFoundError"})
_OURS = (layout.CHECKPOINTS, layout.LEDGER, layout.SNAPSHOTS, layout.JOURNAL)
#: What nobody looks for in the program: only the message and its way out are told.
_FOR_THE_OPERATOR = frozenset({F.F14, F.F16})
_HOPELESS = frozenset({"NoUsableCheckpoint", "RestoreError", "JournalBrokenError"})

#: Of a store that nobody has reached yet these are a wrong address or credential, and not an outage.
_UNREACHED = frozenset({"TierUnavailable", "TierFull"})

_MEMORY = frozenset({"MemoryError", "OutOfMemoryError"})
_MEMORY_TEXT = re.compile(r"out of memory|can't allocate memory|cannot allocate memory|alloc_cpu", re.I)
#: Errors of building the program, and the statuses that interpreters and argument parsers use for them.
#: Before the first step they are mistakes; after it (an import inside a function) they are faults like
#: others.
_BUILDING = frozenset({"ModuleNotFoundError", "ImportError", "SyntaxError", "IndentationError", "TabError"})
_USAGE_STATUS = frozenset({2, 126, 127})

#: Errors of a survivor: they tell of a peer, a store or a communicator that is gone.
_PEER_KIND = frozenset({"DistNetworkError", "DistStoreError", "DistBackendError", "DistQueueEmptyError"})
_PEER_TEXT = re.compile(
    r"connection closed by peer|connection reset by peer|connection refused|broken pipe|socket closed|"
    r"gloo/transport|pair closure|nccl|communicator was aborted|process ?group.*abort|remote process exited|"
    r"failed to (?:recv|send|connect)|peer .*(?:gone|lost|left)",
    re.I,
)
_PEER_FRAME = re.compile(r"distributed|autograd|c10d|graph\.py|session|world", re.I)
_TIMEOUT_TEXT = re.compile(r"time[d ]?-?out|watchdog", re.I)
_UNFINISHED = (
    "the script ended and its run did not: call run.finish() at the end (plain loop), or let the fit reach "
    "its end"
)
#: Signals that a program does not send itself.
_KILLS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})


def cause_of(exit: Exit, *, step: int | None, known: bool = True) -> Cause:
    """What this worker ended of. ``step``: the last that the group had completed; ``None``: none yet;
    ``known``: whether the run has ever been read."""
    if exit.words is not None:
        return _of_words(exit, exit.words, step, known)
    return _of_status(exit, step)


# --- from last words -------------------------------------------------------------------------


def _of_words(exit: Exit, words: Words, step: int | None, known: bool) -> Cause:
    name = words.kind.rpartition(".")[2]
    at = words.step if words.step is not None else step
    failure, origin, why = _kind(words, name, began=step is not None)
    if step is None and (name == "TierDenied" or (name in _UNREACHED and not known)):
        failure, origin = F.F16, Origin.INSIDE
    sign = signature(name, words.message, words.frames, at, words.object)
    where = f" in {words.frames[-1]}" if words.frames else ""
    hopeless = words.message if name in _HOPELESS else ""
    reason = f"rank {exit.rank}: {name}{where}: {_short(words.message)} ({why})"
    if words.branch and failure in _FOR_THE_OPERATOR:
        reason = f"rank {exit.rank}: {_short(words.message, 400)}"  # its end is the way out
    return Cause(failure, origin, sign, reason, at, words.object, hopeless)


def _kind(words: Words, name: str, *, began: bool) -> tuple[F, Origin, str]:
    if words.branch or name in _LEAF:
        failure, why = _ours(words, name)
        outside = failure in (F.F10, F.F14, F.F18)
        return failure, Origin.OUTSIDE if outside else Origin.INSIDE, why
    if name in _MEMORY or (name == "RuntimeError" and _MEMORY_TEXT.search(words.message)):
        return F.F8, Origin.INSIDE, "memory ran out"
    if name in _BUILDING and not began:
        return F.F16, Origin.INSIDE, "the program cannot be built"
    if _is_of_peers(words, name):
        timeout = _TIMEOUT_TEXT.search(words.message) is not None
        return F.F5 if timeout else F.F17, Origin.SECONDARY, "it tells of a peer"
    if name == "KeyboardInterrupt":
        return F.F1, Origin.OUTSIDE, "somebody interrupted it"
    if name == "SystemExit":
        return _exited(words.exit_code, began)
    return F.F1, Origin.INSIDE, "an error of the program"


def _ours(words: Words, name: str) -> tuple[F, str]:
    if name == "NumericFault" and words.object in F.__members__:
        return F(words.object), "by what was found"
    if name in _LEAF:
        return _LEAF[name], "by its class"
    if words.branch in _OF_AN_OBJECT:
        if not words.object or words.object.startswith(_OURS):
            return F.F11, "an object of a checkpoint"
        return F.F9, "an object of the data"
    return _LEAF.get(words.branch) or _BRANCH.get(words.branch, F.F1), f"a {words.branch}"


def _is_of_peers(words: Words, name: str) -> bool:
    if name in _PEER_KIND:
        return True
    late = name == "RuntimeError" and _TIMEOUT_TEXT.search(words.message)
    if not late and not _PEER_TEXT.search(words.message):
        return False
    # a refused connection may be of a database; it is of a peer where the error comes out of a collective
    return not words.frames or any(_PEER_FRAME.search(frame) for frame in words.frames[-3:])


# --- from the status -------------------------------------------------------------------------


def _of_status(exit: Exit, step: int | None) -> Cause:
    failure, origin, why = _status(exit, began=step is not None)
    kind = signal_name(-exit.status) if exit.status < 0 else f"exit {exit.status}"
    if exit.status == 0:
        kind = "exit 0 without a final record"
    reason = f"{exit} ({why})" if exit.status < 0 else f"rank {exit.rank}: {why}"
    return Cause(failure, origin, signature(kind, step=step), reason, step)


def _status(exit: Exit, *, began: bool) -> tuple[F, Origin, str]:
    if exit.status < 0:
        number = -exit.status
        if number == signal.SIGKILL and exit.oom:
            return F.F8, Origin.INSIDE, "the kernel killed for memory"
        if number in _KILLS:
            return F.F1, Origin.OUTSIDE, "somebody else's signal"
        if number == signal.SIGABRT:  # also how a watchdog of collectives ends a survivor
            return F.F1, Origin.UNKNOWN, "it aborted, without words"
        return F.F1, Origin.INSIDE, "a fault of native code"
    if exit.status == 0:
        return F.F1, Origin.UNKNOWN, _UNFINISHED
    failure, origin, why = _exited(exit.status, began)
    return failure, origin, f"exit status {exit.status}; {why}"


def _exited(status: int, began: bool) -> tuple[F, Origin, str]:
    if status == DRAINED:
        return F.F4, Origin.OUTSIDE, "it drained as it was asked"
    if status == NUMERIC:
        return F.F12, Origin.INSIDE, "it ended on wrong numbers"
    if status == FENCED:
        return F.F14, Origin.OUTSIDE, "it was fenced"
    if status in _USAGE_STATUS and not began:
        return F.F16, Origin.INSIDE, "how interpreters and argument parsers refuse a command line"
    return F.F1, Origin.UNKNOWN, "its own output says why"


def _short(message: str, most: int = 160) -> str:
    line = message.strip().split("\n", 1)[0]
    return line if len(line) <= most else line[: most - 3] + "..."
