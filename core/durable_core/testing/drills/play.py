"""L6. Playing scenarios, and the report of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from durable_core.errors import UnsupportedError, UsageError
from durable_core.testing.drills.checks import Finding, Measured, judge, measure
from durable_core.testing.drills.ground import DrillFailed, Ground
from durable_core.testing.drills.scenarios import SCENARIOS, Scenario

#: A drill without its defence mostly fails by not coming to its end.
UNDEFENDED_LIMIT_S = 30.0
UNMEASURED = Measured(None, None, None)


@dataclass(frozen=True)
class Played:
    """``skipped``: why it could not be played here. ``findings``: every check; ``error``: why it came to
    none."""

    scenario: str
    defended: bool
    seconds: float
    findings: tuple[Finding, ...] = ()
    measured: Measured = UNMEASURED
    error: str = ""
    skipped: str = ""

    @property
    def faults(self) -> tuple[str, ...]:
        told = tuple(f"{each.check}: {each.fault}" for each in self.findings if each.fault)
        return (*told, *([self.error] if self.error else ()))

    @property
    def passed(self) -> bool:
        """As it should be: all checks hold; or, without the defence, one did not."""
        return bool(self.skipped) or bool(self.faults) is not self.defended

    def to_json(self) -> dict[str, Any]:
        return {
            "scenario": self.scenario, "defended": self.defended, "passed": self.passed,
            "seconds": round(self.seconds, 2), "rpo_steps": self.measured.rpo_steps,
            "rto_s": self.measured.rto_s, "mtr_s": self.measured.mtr_s,
            "checks": {each.check: each.fault for each in self.findings}, "error": self.error,
            "skipped": self.skipped,
        }  # fmt: skip


def chosen(name: str) -> tuple[Scenario, ...]:
    """``all``, or one. ``UsageError`` names the nearest for any other."""
    if name == "all":
        return tuple(SCENARIOS.values())
    if name not in SCENARIOS:
        raise UsageError(f"no scenario {name!r}", hint="one of: all, " + ", ".join(SCENARIOS))
    return (SCENARIOS[name],)


class Controls:
    """The same job undisturbed, played once for every kind of orders that differs in what is trained."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._known: dict[int, Mapping[str, Any]] = {}

    def of(self, played: Ground) -> Mapping[str, Any]:
        """``DrillFailed`` when even that does not come to its end."""
        steps = played.orders.steps
        if steps not in self._known:
            self._known[steps] = self._played(steps)
        return self._known[steps]

    def _played(self, steps: int) -> Mapping[str, Any]:
        calm = Ground(self._base / f"control-{steps}")
        try:
            calm.order(steps=steps, step_seconds=0.0)
            launched = calm.launch()
            code, final = calm.wait(launched), calm.final()
        finally:
            calm.close()
        if code or final is None:
            raise DrillFailed(f"the undisturbed run ended with {code}; it said: {launched.said()}")
        calm.clear()
        return final


def play(
    scenarios: Iterable[Scenario], base: Path, *, seed: int = 0, defended: bool = True,
    told: Callable[[Played], None] = lambda played: None,
) -> Iterator[Played]:  # fmt: skip
    """Each in a directory of its own under ``base``; those that failed leave theirs there. The same seed
    gives the same faults."""
    controls = Controls(base)
    for scenario in scenarios:
        one = _play(scenario, base, controls, random.Random(f"{seed} {scenario.name}"), defended)
        told(one)
        yield one


def _play(
    scenario: Scenario, base: Path, controls: Controls, chance: random.Random, defended: bool
) -> Played:
    if why := scenario.missing():
        return Played(scenario.name, defended, 0.0, skipped=why)
    place = base / (scenario.name if defended else f"{scenario.name}-undefended")
    options: dict[str, Any] = {} if defended else {"limit_s": UNDEFENDED_LIMIT_S}
    made = Ground(place, chance=chance, **options)
    began = made.clock.monotonic()
    findings: tuple[Finding, ...] = ()
    measured, error = UNMEASURED, ""
    try:
        incident = scenario.play(made, defended)
        findings = tuple(judge(made, scenario.expected, incident, controls.of(made)))
        measured = measure(made.marks(), incident.began)
    except (DrillFailed, UnsupportedError) as failure:
        error = str(failure)
    finally:
        made.close()
    played = Played(scenario.name, defended, made.clock.monotonic() - began, findings, measured, error)
    if played.passed:
        made.clear()
    return played
