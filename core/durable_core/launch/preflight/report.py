"""L5. What a check found, and all of them together."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from typing import Any


class Outcome(str, enum.Enum):
    OK = "ok"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Found:
    """One check's answer. ``transient``: of a failure, whether the same check may pass a little later without
    anybody mending anything (a store that is slow), so that waiting is worth it. ``note``: what nothing fails
    for, and whoever starts the run has to know."""

    outcome: Outcome
    evidence: str
    hint: str = ""
    transient: bool = False
    note: str = ""


def ok(evidence: str, note: str = "") -> Found:
    return Found(Outcome.OK, evidence, note=note)


def failed(evidence: str, hint: str, *, transient: bool = False) -> Found:
    return Found(Outcome.FAILED, evidence, hint, transient)


def not_applicable(evidence: str) -> Found:
    return Found(Outcome.NOT_APPLICABLE, evidence)


@dataclass(frozen=True)
class Result:
    """``seconds``: what the check took."""

    check: str
    outcome: Outcome
    evidence: str
    hint: str
    seconds: float
    transient: bool = False
    note: str = ""

    @staticmethod
    def of(check: str, found: Found, seconds: float) -> Result:
        return Result(check, found.outcome, found.evidence, found.hint, seconds, found.transient, found.note)


@dataclass(frozen=True)
class Report:
    results: tuple[Result, ...]

    @property
    def failed(self) -> tuple[Result, ...]:
        return tuple(result for result in self.results if result.outcome is Outcome.FAILED)

    @property
    def passed(self) -> bool:
        return not self.failed

    @property
    def transient(self) -> bool:
        """Whether everything that failed may pass later by itself."""
        return bool(self.failed) and all(result.transient for result in self.failed)

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(result.note for result in self.results if result.note)

    @property
    def reason(self) -> str:
        """What failed, in one line, each finding once; ``""`` when nothing did."""
        checks: dict[str, list[str]] = {}
        for result in self.failed:
            checks.setdefault(result.evidence, []).append(result.check)
        return "; ".join(f"{', '.join(names)}: {evidence}" for evidence, names in checks.items())

    def to_json(self) -> dict[str, Any]:
        results = [{**asdict(result), "outcome": result.outcome.value} for result in self.results]
        return {"passed": self.passed, "transient": self.transient, "checks": results}
