"""L5. The record of a pilot, and the gate that asks for it before a run is started in full (LIFE-02)."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from durable_core.errors import FormatError, UsageError
from durable_core.format import digests

VERSION = 1
WAIVE = "waive:"
_MAKE_ONE = "durable pilot --out FILE -- SCRIPT, or --pilot waive:REASON"


@dataclass(frozen=True)
class Part:
    """Something that a pilot is to cover; ``seen`` is what of it there was, ``""`` for nothing."""

    name: str
    seen: str


@dataclass(frozen=True)
class PilotRecord:
    """What a pilot came to. ``subject``: digest of the command and of the script, by which a launch knows
    that it is about the same; ``time``: seconds since the epoch; ``faults``: why it has not passed."""

    subject: str
    time: float
    kills: int
    faults: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    v: int = VERSION

    @property
    def passed(self) -> bool:
        return not self.faults

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def read(path: Path) -> PilotRecord:
        """``UsageError`` when there is none, ``FormatError`` for something else."""
        try:
            doc = json.loads(path.read_text(encoding="utf-8"))
            if doc["v"] != VERSION:
                raise ValueError(f"version {doc['v']}")
            parts = tuple(Part(**row) for row in doc.pop("parts"))
            return PilotRecord(**{**doc, "faults": tuple(doc["faults"])}, parts=parts)
        except FileNotFoundError:
            raise UsageError(f"no pilot record {path}", hint=_MAKE_ONE) from None
        except (ValueError, TypeError, KeyError) as error:
            raise FormatError(str(path), "no pilot record") from error


def subject_of(command: Sequence[str]) -> str:
    """The script's content and the names of its options: their values are what a pilot makes smaller.

    ``command``: the script, or ``-m`` and a module, and its arguments.
    """
    path = _script(command)
    content = b"" if path is None else path.read_bytes()
    names = [word.partition("=")[0] for word in command if word.startswith("-")]
    return digests.sha256(content + b"\0" + "\0".join(names).encode())


def _script(command: Sequence[str]) -> Path | None:
    """The file that is run, if it can be found."""
    if command[:1] == ["-m"] or command[:1] == ("-m",):
        spec = importlib.util.find_spec(command[1])
        origin = None if spec is None else spec.origin
        return None if origin is None else Path(origin)
    return next((path for word in command if (path := Path(word)).suffix == ".py" and path.is_file()), None)


def gate(asked: str, command: Sequence[str]) -> str:
    """What the journal is to say of the pilot of ``command``; ``""``: nobody asked for one.

    ``asked``: the file of a record, or ``waive:REASON``. ``UsageError`` when there is no record, or it is of
    a pilot that failed or that was about something else; ``FormatError`` when the file is none.
    """
    if not asked:
        return ""
    if asked.startswith(WAIVE):
        reason = asked[len(WAIVE) :].strip()
        if not reason:
            raise UsageError("a pilot is waived for a reason", hint="--pilot waive:REASON")
        return f"waived: {reason}"
    record = PilotRecord.read(Path(asked))
    if not record.passed:
        raise UsageError(f"the pilot {asked} failed: {'; '.join(record.faults)}", hint=_MAKE_ONE)
    if record.subject != subject_of(command):
        raise UsageError(
            f"the pilot {asked} was about another script, or about other options of it", hint=_MAKE_ONE
        )
    return f"passed, {record.kills} kills: {record.subject}"
