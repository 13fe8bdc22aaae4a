"""L6. ``durable launch`` and ``durable cancel``: starting a group of workers, and ending a run for good."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import click

from durable_core.cli.output import EXIT_CODES, FENCED, NOT_FOUND, OK, Answer, show
from durable_core.clock import SystemClock
from durable_core.errors import RunEnded

#: What ``durable launch`` may end with besides the exit codes of the other commands.
LAUNCH_EXIT_CODES = {
    75: "drained: a planned stop, nothing lost, start it again to go on",
    76: "fenced: another launch continues the run",
    77: "cancelled",
}
_EPILOG = "Exit codes: " + ", ".join(
    f"{code} {meaning}"
    for code, meaning in {
        **{code: EXIT_CODES[code] for code in EXIT_CODES if code not in (FENCED, NOT_FOUND)},
        **LAUNCH_EXIT_CODES,
    }.items()
)
_PASSED_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}


@click.command("launch", context_settings=_PASSED_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def launch(arguments: tuple[str, ...]) -> int:
    """Start a script on every device, and start it again when it fails."""
    if not arguments or arguments[0] in ("-h", "--help"):
        from durable_core.launch.agent import flags

        click.echo(flags.usage(_EPILOG + "."))
        return OK
    from durable_core.launch.agent import main

    return main.launch(arguments, _say)


def _say(line: str) -> None:
    print(f"durable: {line}", file=sys.stderr, flush=True)


@click.command("cancel", epilog="Exit codes: " + ", ".join(f"{c} {m}" for c, m in EXIT_CODES.items()) + ".")
@click.argument("root", metavar="ROOT")
@click.option("--as", "principal", required=True, help="Who cancels: one that the run's spec names.")
@click.option("--reason", required=True, help="For the record.")
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


def _tell(owner: Any) -> str:
    """SIGTERM to the owner, if it is a process of this host that still is what it was."""
    from durable_core.engine import heartbeat

    if owner is None or owner.host != os.uname().nodename or owner.boot != heartbeat.boot_id():
        return ""
    if heartbeat.process_start(owner.pid) != owner.started:
        return ""
    os.kill(owner.pid, signal.SIGTERM)
    return f"process {owner.pid} was told to stop"
