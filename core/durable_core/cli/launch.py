"""L6. ``durable launch`` and ``durable cancel``: starting a group of workers, and ending a run for good."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import click

from durable_core.cli.options import takes_root
from durable_core.cli.output import EXIT_CODES, FAILED, OK, Answer, Table, epilog, show
from durable_core.clock import SystemClock
from durable_core.errors import DurableError, RunEnded

#: What ``durable launch`` may end with.
LAUNCH_EXIT_CODES = {
    **EXIT_CODES,
    75: "drained: a planned stop, nothing lost, start it again to go on",
    76: "fenced: another launch continues the run",
    77: "numbers went wrong, and no restart is left",
    78: "cancelled",
}
_EPILOG = epilog(LAUNCH_EXIT_CODES)
_OTHERS = epilog()
_PASSED_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}


@click.command("launch", context_settings=_PASSED_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def launch(arguments: tuple[str, ...]) -> int:
    """Start a script on every device, and again when it fails."""
    if not arguments or arguments[0] in ("-h", "--help"):
        from durable_core.launch.agent import flags

        click.echo(flags.usage(_EPILOG))
        return OK
    from durable_core.launch.agent import main

    return main.launch(arguments, _say)


def _say(line: str) -> None:
    print(f"durable: {line}", file=sys.stderr, flush=True)


@click.command("cancel", epilog=_OTHERS)
@takes_root
@click.option("--as", "principal", required=True, help="Who cancels: one that the run's spec names.")
@click.option("--reason", default="", help="For the record.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def cancel(root: str, principal: str, reason: str, as_json: bool) -> int:
    """End a run for good.

    It is recorded first, which revokes the right to write of everything that trains it; then its processes
    on this host are told. What is committed stays. Nothing is written for somebody whom the spec does not
    name.
    """
    return show(_cancel(root, principal, reason), as_json=as_json)


def _cancel(root: str, principal: str, reason: str) -> Answer:
    from durable_core.commit import ending
    from durable_core.engine import heartbeat
    from durable_core.engine.inspect import open_run
    from durable_core.engine.performer import Performer
    from durable_core.launch import ending as launched

    reader, clock = open_run(root), SystemClock()
    owner = heartbeat.read(reader.tier)
    performer = Performer(reader.tier, clock)
    try:
        view = performer.run(
            ending.cancel(reader.view, launch_id=clock.new_id(), principal=principal, reason=reason)
        )
    except RunEnded:
        reader = open_run(root)
        over = reader.state.terminal
        if over is None or over.outcome != "cancelled":
            raise
        view = reader.view
    told = _tell(owner)
    try:
        launched.complete(reader.tier, clock, clock.new_id())
    except DurableError as error:  # it is cancelled all the same
        _say(f"no post-run manifest yet (durable finalize writes it): {error.message}")
    document: dict[str, Any] = {"cancelled": True, "principal": principal, "reason": reason, "told": told}
    step = view.state.head_step
    left = "nothing is committed" if step is None else f"step {step} is committed and stays"
    return Answer(
        document,
        [
            f"run {view.state.run_id} is cancelled; {left}",
            told or "nobody was told: no process of it is known on this host",
        ],
    )


@click.command("finalize", epilog=_OTHERS)
@takes_root
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def finalize(root: str, as_json: bool) -> int:
    """Show what came of a run that has ended.

    Its post-run manifest: outcome, final checkpoint, data consumed, incidents, what is retained, cost. A
    launcher writes it at the end; where none has, it is written now.
    """
    return show(_finalize(root), as_json=as_json)


def _finalize(root: str) -> Answer:
    from durable_core.engine.inspect import open_run
    from durable_core.launch import ending

    reader, clock = open_run(root), SystemClock()
    if reader.state.terminal is None:
        return Answer({"ended": False}, ["the run has not ended: there is nothing to sum up"], FAILED)
    ending.complete(reader.tier, clock, clock.new_id())
    found = ending.read(open_run(root))
    assert found is not None
    cost, artifact = found["cost"], found["artifact"]
    rows = [
        ("outcome", found["outcome"]),
        ("final checkpoint", artifact and f"c{artifact['c']} at step {artifact['step']}"),
        ("its manifest", artifact and artifact["manifest_digest"]),
        ("samples", found["data"].get("samples", found["data"].get("why"))),
        ("repeated, skipped", f"{found['data'].get('repeated')}, {found['data'].get('skipped')}"),
        ("incidents", len(found["incidents"])),
        ("generations", len(found["generations"])),
        ("retained", ", ".join(f"c{each['c']}" for each in found["retained"])),
        ("seconds: from begin to end", f"{cost['wall_s']:.0f}"),
        ("of these up, of devices", f"{cost.get('up_s', cost['wall_s']):.0f}, {cost['device_s']:.0f}"),
    ]
    return Answer(found, [Table(("what", "is"), rows)])


def _tell(owner: Any) -> str:
    """SIGTERM to the owner, if it is a process of this host that still is what it was."""
    from durable_core.engine import heartbeat

    if owner is None or owner.host != os.uname().nodename or owner.boot != heartbeat.boot_id():
        return ""
    if heartbeat.process_start(owner.pid) != owner.started:
        return ""
    os.kill(owner.pid, signal.SIGTERM)
    return f"process {owner.pid} was told to stop"
