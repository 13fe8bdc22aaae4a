"""L6. ``durable known-good``: which checkpoints were judged good, by whom; marked and revoked by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from durable_core.cli.options import takes_root
from durable_core.cli.output import Answer, Table, epilog, show
from durable_core.clock import SystemClock
from durable_core.commit import marks, trust
from durable_core.commit.claim import choose_before
from durable_core.commit.state import CheckpointInfo
from durable_core.detect.policy import LIMITS
from durable_core.engine.inspect import Reader, open_run
from durable_core.engine.performer import Performer
from durable_core.errors import NoUsableCheckpoint, UsageError

_EPILOG = epilog()
_number = click.IntRange(min=0)


@click.command("known-good", epilog=_EPILOG)
@takes_root
@click.option("--mark", type=_number, metavar="C", help="Mark checkpoint C, on the evidence given.")
@click.option("--evidence", metavar="TEXT", help="What was judged, and by whom: goes with --mark.")
@click.option("--revoke", type=_number, metavar="C", help="C is not known good any more.")
@click.option("--before", type=click.IntRange(min=1), metavar="STEP", help="Where it would go back to.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def known_good(
    root: str, mark: int | None, evidence: str | None, revoke: int | None, before: int | None, as_json: bool
) -> int:
    """List the checkpoints that were judged good, with the evidence.

    A mark says that detectors have judged the steps after a checkpoint and found nothing. After a numeric
    fault (F12, F13) the run goes back to the newest one before its onset; --before STEP says which that is.

    --mark and --revoke are for what you know yourself, from an evaluation or of a host; training goes on.
    """
    if mark is not None and revoke is not None:
        raise UsageError("--mark and --revoke at once", hint="one after the other")
    if (mark is None) is not (not evidence):
        raise UsageError("--mark and --evidence go together", hint="a mark without evidence says nothing")
    if mark is not None:
        return show(_marked(root, mark, {"by_hand": evidence}), as_json=as_json)
    if revoke is not None:
        return show(_revoked(root, revoke), as_json=as_json)
    return show(_listed(root, before), as_json=as_json)


def _marked(root: str, c: int, evidence: Mapping[str, Any]) -> Answer:
    reader, clock = open_run(root), SystemClock()
    info = reader.checkpoint(c)
    failure = trust.tainted(reader.state).get(c)
    if failure is not None:
        payload = failure.payload
        raise UsageError(
            f"c{c} is of step {info.step}, and all from step {payload['step']} on is in doubt "
            f"({payload['class']}, {payload['signature']})",
            hint="a mark would be revoked at once; what is before that step can be marked",
        )
    Performer(reader.tier, clock).run(marks.mark(reader.view, c, clock.new_id(), dict(evidence)))
    return Answer({"c": c, "known_good": True}, [f"c{c}, of step {info.step}, is marked as known good"])


def _revoked(root: str, c: int) -> Answer:
    reader, clock = open_run(root), SystemClock()
    info = reader.checkpoint(c)
    if info.known_good:
        performer = Performer(reader.tier, clock)
        performer.run(marks.revoke(reader.view, c, clock.new_id(), "revoked on the command line"))
    return Answer({"c": c, "known_good": False}, [f"c{c}, of step {info.step}, is not known good"])


def _listed(root: str, before: int | None) -> Answer:
    reader = open_run(root)
    lineage = reader.state.lineage()
    taint = trust.tainted(reader.state)
    good = [info for info in reader.committed() if info.known_good and info.c in lineage]
    findings = [
        {"class": each.payload["class"], "signature": each.payload["signature"], "onset": onset,
         "generation": each.generation}
        for each, onset in trust.findings(reader.state)
    ]  # fmt: skip
    document: dict[str, Any] = {
        "run": reader.state.run_id,
        "known_good": [{"c": info.c, "step": info.step, "evidence": info.evidence} for info in good],
        "tainted": sorted(taint),
        "findings": findings,
        "before": None if before is None else _choice(reader, before),
        "limits": LIMITS,
    }
    human: list[Table | str] = []
    if good:
        human.append(Table(("c", "step", "judged by"), [(i.c, i.step, _judges(i)) for i in good]))
    else:
        human.append("no checkpoint of the head's lineage is known good")
    if findings:
        names = ("class", "signature", "onset", "generation")
        human.append(Table(names, [[each[name] for name in names] for each in findings]))
    if taint:
        human.append(f"in doubt: {', '.join(f'c{c}' for c in sorted(taint))}")
    if document["before"] is not None:
        human.append(document["before"]["reason"])
    return Answer(document, [*human, LIMITS])


def _choice(reader: Reader, before: int) -> dict[str, Any]:
    try:
        choice = choose_before(reader.state, before)
    except NoUsableCheckpoint as error:
        return {"c": None, "reason": error.message}
    return {"c": choice.c, "reason": choice.reason}


def _judges(info: CheckpointInfo) -> str:
    evidence = info.evidence
    if not isinstance(evidence, Mapping):
        return str(evidence)
    if "by_hand" in evidence:
        return f"by hand: {evidence['by_hand']}"
    names = [f"{each['name']} v{each['version']}" for each in evidence.get("detectors", ())]
    return f"{', '.join(names)}, up to step {evidence.get('judged_through')}"
