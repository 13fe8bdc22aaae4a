"""L6. Playing scenarios, and the report of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from durable_core.errors import DurableError, UsageError
from durable_core.testing.drills.checks import Finding, Measured, judge, measure
from durable_core.testing.drills.ground import DrillFailed, Ground
from durable_core.testing.drills.scenarios import LONG, SCENARIOS, Scenario

#: A drill without its defence may fail by not coming to its end.
UNDEFENDED_LIMIT_S = 120.0
#: Steps of the longest run that ends as it should.
LONGEST = 120
UNMEASURED = Measured(None, None, None)


@dataclass(frozen=True)
class Played:
    """``skipped``: why it could not be played here. ``findings``: every check; ``error``: why it came to
    none. ``by``: the checks of which one has to fail without the defence."""

    scenario: str
    defended: bool
    seconds: float
    by: tuple[str, ...] = ()
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
        """As it should be: all checks hold; or, without the defence, the one that is about it did not."""
        if self.skipped or self.error:
            return bool(self.skipped)
        return bool(self.found) if not self.defended else not self.faults

    @property
    def found(self) -> tuple[str, ...]:
        """What the checks that are about the defence have found."""
        about = (each for each in self.findings if each.check in self.by)
        return tuple(f"{each.check}: {each.fault}" for each in about if each.fault)

    def to_json(self) -> dict[str, Any]:
        return {
            "scenario": self.scenario, "defended": self.defended, "passed": self.passed,
            "seconds": round(self.seconds, 2), "rpo_steps": self.measured.rpo_steps,
            "rto_s": self.measured.rto_s, "mtr_s": self.measured.mtr_s,
            "checks": {each.check: each.fault for each in self.findings}, "found": list(self.found),
            "error": self.error, "skipped": self.skipped,
        }  # fmt: skip


def chosen(name: str) -> tuple[Scenario, ...]:
    """``all`` but the long ones, or one. ``UsageError`` names the nearest for any other."""
    if name == "all":
        return tuple(SCENARIOS.values())
    known = {**SCENARIOS, **LONG}
    if name not in known:
        raise UsageError(f"no scenario {name!r}", hint="one of: all, " + ", ".join(known))
    return (known[name],)


class Controls:
    """The same job undisturbed, played once: what a run of so many steps ends with is what a longer one is
    there."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._known: Mapping[int, Mapping[str, Any]] = {}

    def of(self, steps: int) -> Mapping[str, Any]:
        """Step and digest. ``DrillFailed`` when even that does not come to its end."""
        if steps not in self._known:
            self._known = self._played(max(LONGEST, steps))
        return self._known[steps]

    def _played(self, steps: int) -> Mapping[int, Mapping[str, Any]]:
        calm = Ground(self._base / f"control-{steps}")
        try:
            calm.order(steps=steps, every=steps, step_seconds=0.0, noted=True)
            launched = calm.launch()
            code, noted = calm.wait(launched), calm.noted()
        finally:
            calm.close()
        if code or steps not in noted:
            raise DrillFailed(f"the undisturbed run ended with {code}; it said: {launched.said()}")
        calm.clear()
        return noted


def play(
    scenarios: Iterable[Scenario], base: Path, *, seed: int = 0, defended: bool = True,
    told: Callable[[Played], None] = lambda played: None, controls: Controls | None = None,
) -> Iterator[Played]:  # fmt: skip
    """Each in a directory of its own under ``base``; those that failed leave theirs there. The same seed
    gives the same faults. ``controls``: those of an earlier call."""
    controls = controls or Controls(base)
    for scenario in scenarios:
        one = _play(scenario, base, controls, random.Random(f"{seed} {scenario.name}"), defended)
        told(one)
        yield one


def _play(
    scenario: Scenario, base: Path, controls: Controls, chance: random.Random, defended: bool
) -> Played:
    if why := scenario.missing():
        return Played(scenario.name, defended, 0.0, scenario.by, skipped=why)
    place = base / (scenario.name if defended else f"{scenario.name}-undefended")
    options: dict[str, Any] = {} if defended else {"limit_s": UNDEFENDED_LIMIT_S}
    made = Ground(place, chance=chance, **options)
    began = made.clock.monotonic()
    findings: tuple[Finding, ...] = ()
    measured, error = UNMEASURED, ""
    try:
        incident = scenario.play(made, defended)
        findings = tuple(judge(made, scenario.expected, incident, controls.of))
        measured = measure(made.marks(), incident.began)
    except DrillFailed as failure:
        findings = (Finding(failure.check, failure.message),)
    except DurableError as failure:
        error = str(failure)
    finally:
        made.close()
    seconds = made.clock.monotonic() - began
    played = Played(scenario.name, defended, seconds, scenario.by, findings, measured, error)
    if played.passed:
        made.clear()
    return played
