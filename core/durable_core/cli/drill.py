"""L6. ``durable drill``: faults played on a real job, and what came of each."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from durable_core.cli.output import FAILED, OK, Answer, Table, epilog, show
from durable_core.clock import SystemClock

if TYPE_CHECKING:
    from durable_core.testing.drills.play import Played


@click.command("drill", epilog=epilog())
@click.argument("scenario", metavar="SCENARIO|all|list")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed, the same faults.")
@click.option("--without-defence", is_flag=True, help="Switch off what each is about: it must fail then.")
@click.option("--directory", type=click.Path(file_okay=False), help="Default: a temporary one.")
@click.option("--record", metavar="ROOT", help="Note the result beside that run, for `durable doctor`.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def drill(
    scenario: str, seed: int, without_defence: bool, directory: str | None, record: str | None, as_json: bool
) -> int:
    """Play a fault on a real training job; measure what it costs.

    Each scenario trains a small model with two workers under `durable launch`, does one thing to it, and
    checks that the run went on as the same run: fencing held, retries were bounded, the fallback was right,
    no sample was repeated or skipped, and no process is left. RPO is steps done again, RTO the time to
    the next step, MTR the time to the first new one.
    """
    from durable_core.testing.drills.play import chosen, play
    from durable_core.testing.drills.scenarios import LONG, SCENARIOS

    if scenario == "list":
        rows = [
            (row.name, row.title, row.without, row.missing() or "yes") for row in (SCENARIOS | LONG).values()
        ]
        document = {"scenarios": [{"name": r[0], "title": r[1], "without": r[2], "here": r[3]} for r in rows]}
        return show(
            Answer(document, [Table(("scenario", "what happens", "its defence", "here"), rows)]),
            as_json=as_json,
        )
    base = Path(directory or tempfile.mkdtemp(prefix="durable-drill-"))

    def told(played: Played) -> None:
        if not as_json:
            click.echo(line(played), err=True)

    scenarios = chosen(scenario)
    found = list(play(scenarios, base, seed=seed, defended=not without_defence, told=told))
    if record is not None:
        from durable_core.testing.drills.record import note

        note(record, found, seed=seed, now=SystemClock().now())
    return show(answer(found, seed), as_json=as_json)


def line(played: Played) -> str:
    how = "skipped" if played.skipped else "passed" if played.passed else "FAILED"
    return f"{played.scenario:18} {how}  {played.seconds:.1f} s  {_told(played)}"


def _told(played: Played) -> str:
    """Why it was skipped, or what was found: without the defence, what shows that it is missing."""
    if played.skipped:
        return played.skipped
    return "; ".join(played.faults if played.defended or not played.passed else played.found)


def answer(found: list[Played], seed: int) -> Answer:
    failed = [each for each in found if not each.passed]
    rows = [
        (
            each.scenario, "skipped" if each.skipped else "passed" if each.passed else "FAILED",
            each.measured.rpo_steps, _seconds(each.measured.rto_s), _seconds(each.measured.mtr_s),
            _told(each),
        )
        for each in found
    ]  # fmt: skip
    document = {"seed": seed, "passed": not failed, "drills": [each.to_json() for each in found]}
    table = Table(("scenario", "result", "RPO steps", "RTO s", "MTR s", "found"), rows)
    return Answer(document, [table], FAILED if failed else OK)


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f}"
