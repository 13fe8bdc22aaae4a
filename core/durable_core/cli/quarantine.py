"""L6. ``durable quarantine``: what a run leaves out, since when and why; and taking it back in."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import click

from durable_core.cli.options import takes_root
from durable_core.cli.output import Answer, Table, epilog, show
from durable_core.clock import SystemClock
from durable_core.commit.claim import maintain
from durable_core.engine.inspect import open_run
from durable_core.engine.performer import Performer
from durable_core.errors import UsageError
from durable_core.format.record import Kind
from durable_core.launch.classes import Unit
from durable_core.launch.quarantine import Standing, lifting, quarantined, standing

_EPILOG = epilog()
_UNITS = [unit.value for unit in Unit if unit is not Unit.NOTHING]


@click.command("quarantine", epilog=_EPILOG)
@takes_root
@click.option("--lift", nargs=2, type=(click.Choice(_UNITS), str), metavar="UNIT NAME", help="Take it back.")
@click.option("--reason", default="by hand", help="Why: goes with --lift, for the record.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def quarantine(root: str, lift: tuple[str, str] | None, reason: str, as_json: bool) -> int:
    """List what a run leaves out, or take it back.

    Nodes, domains, images, data objects, storage, checkpoints: since when, and why. A node that is listed
    does not take part in a group that may have several, a checkpoint is restored only where no other is left,
    and a launch in such an image is refused; data objects and storage are named at every start. --lift takes
    one back in. What has failed until then speaks against it no more; what fails later does.
    """
    if lift is not None:
        return show(_lifted(root, Unit(lift[0]), lift[1], reason), as_json=as_json)
    return show(_listed(root), as_json=as_json)


def _lifted(root: str, unit: Unit, name: str, reason: str) -> Answer:
    reader, clock = open_run(root), SystemClock()
    if (unit, name) not in quarantined(reader.state):
        raise UsageError(f"{unit.value} {name} is not in quarantine", hint=f"durable quarantine {root}")
    payload = lifting(reader.state, unit, name, reason)
    Performer(reader.tier, clock).run(maintain(reader.view, Kind.QUARANTINE, payload, clock.new_id()))
    return Answer(
        {"lifted": {"unit": unit.value, "name": name}}, [f"{unit.value} {name} may take part again"]
    )


def _listed(root: str) -> Answer:
    found = standing(open_run(root).state)
    document = {"quarantined": [_document(one) for one in found]}
    if not found:
        return Answer(document, ["nothing is in quarantine"])
    rows = [(one.unit.value, one.name, _time(one.since), one.reason) for one in found]
    return Answer(document, [Table(("unit", "name", "since", "because"), rows)])


def _document(one: Standing) -> dict[str, Any]:
    return {"unit": one.unit.value, "name": one.name, "since": one.since, "reason": one.reason}


def _time(since: float | None) -> str | None:
    return (
        None if since is None else datetime.fromtimestamp(since, timezone.utc).isoformat(timespec="seconds")
    )
