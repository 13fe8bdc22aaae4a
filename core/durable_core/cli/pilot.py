"""L6. ``durable pilot``: the script that is meant, at small scale, with and without kills."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from durable_core.cli.output import FAILED, OK, Answer, Table, epilog, show

if TYPE_CHECKING:
    from durable_core.launch.pilot import PilotRecord


@click.command(
    "pilot",
    epilog=epilog(),
    context_settings={"ignore_unknown_options": True},
)
@click.option("--out", default="pilot.json", show_default=True, help="Where the record is written.")
@click.option("--kills", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--nproc-per-node", "workers", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the instants of the kills.")
@click.option("--limit", type=click.FloatRange(min=1), default=1800.0, show_default=True, help="Seconds.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- SCRIPT [ARGS]")
def pilot(
    out: str, kills: int, workers: int, seed: int, limit: float, as_json: bool, command: tuple[str, ...]
) -> int:
    """Run a script at small scale, with and without kills; compare.

    One run is undisturbed, in the other workers are killed: weights and samples must be the same.
    Give the script's own arguments, made small, with {root} where the root belongs: long enough for some
    saves and an evaluation, if it has any, a minute or so, for a kill has to come between saves as well as
    within them. `durable launch --pilot FILE` then asks for the record of it. What came of it is
    noted in a file, failures included. Ends with 1 when it has not passed.
    """
    from durable_core.testing.pilot import Pilot

    base = Path(tempfile.mkdtemp(prefix="durable-pilot-"))
    flags = ("--nproc-per-node", str(workers))
    record = Pilot(command, base, flags, kills=kills, seed=seed, limit_s=limit).fly()
    record.write(Path(out))
    return show(answer(record, out, base), as_json=as_json)


def answer(record: PilotRecord, out: str, base: Path) -> Answer:
    rows = [(part.name, part.seen or None) for part in record.parts]
    told = "the pilot passed" if record.passed else "the pilot FAILED: " + "; ".join(record.faults)
    document = {
        "passed": record.passed, "faults": list(record.faults), "kills": record.kills, "record": out,
        "kept": str(base), "parts": {part.name: part.seen for part in record.parts},
    }  # fmt: skip
    table = Table(("part of the run", "in the pilot"), rows)
    return Answer(document, [told, table, f"record: {out}"], OK if record.passed else FAILED)
