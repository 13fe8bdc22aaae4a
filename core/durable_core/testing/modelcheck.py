"""``python -m durable_core.testing.modelcheck``: explore small worlds exhaustively and print the counts.

First the protocol as it is: no violation in any interleaving. Then every rule taken away in turn:
each must be found. Ends with 1 when either fails. ``--faults N`` caps the lost acknowledgements in
one history, ``--scenario TEXT`` picks scenarios by name, ``--skip-mutants`` stops after the first part.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from durable_core.clock import SystemClock
from durable_core.testing.check.explorer import Explorer
from durable_core.testing.check.mutants import kill, mutants
from durable_core.testing.check.scenarios import SCENARIOS


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m durable_core.testing.modelcheck")
    parser.add_argument("--faults", type=int, default=1, metavar="N", help="lost answers (default 1)")
    parser.add_argument("--scenario", default="", metavar="TEXT", help="only those named so")
    parser.add_argument("--skip-mutants", action="store_true", help="do not take rules away")
    options = parser.parse_args(arguments)
    good = _explore(options.faults, options.scenario)
    if not options.skip_mutants:
        good &= _take_away()
    return 0 if good else 1


def _explore(faults: int, chosen: str) -> bool:
    clock = SystemClock()
    begin = clock.monotonic()
    states = transitions = bad = 0
    for scenario in SCENARIOS:
        if chosen not in scenario.name:
            continue
        report = Explorer(replace(scenario, faults=min(faults, scenario.faults))).run()
        states, transitions = states + report.states, transitions + report.transitions
        bad += bool(report.violations) or not report.complete
        _say(f"{report.states:8d} states {report.journals:6d} journals  {scenario.name}")
        for violation in report.violations:
            _say(f"         VIOLATION {violation}")
    seconds = clock.monotonic() - begin
    _say(f"{states} states, {transitions} transitions, {bad} scenarios with violations, {seconds:.0f} s")
    return bad == 0


def _take_away() -> bool:
    clock = SystemClock()
    begin = clock.monotonic()
    found = missed = 0
    for mutant in mutants():
        report = kill(mutant)
        found, missed = found + (report is not None), missed + (report is None)
        if report is None:
            _say(f"SURVIVES {mutant.name}")
        else:
            _say(f"found    {mutant.name}: {report.violations[0]}")
    _say(f"{found} rules taken away and found, {missed} missed, {clock.monotonic() - begin:.0f} s")
    return missed == 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
