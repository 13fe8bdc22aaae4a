"""L6. The commands' names, arguments and help. What they do is in ``views``, ``status``, ``checks``,
``upkeep``, ``scrub`` and ``memory``.

The modules behind a command are imported when it runs: ``durable --help`` needs none of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from durable_core import __version__
from durable_core.cli.agent import agent
from durable_core.cli.data import data
from durable_core.cli.doctor import doctor
from durable_core.cli.drill import drill
from durable_core.cli.known_good import known_good
from durable_core.cli.launch import cancel, finalize, launch
from durable_core.cli.options import root_argument, size
from durable_core.cli.output import OK, USAGE, complain, epilog, fail, show
from durable_core.cli.pilot import pilot
from durable_core.cli.planning import plan
from durable_core.cli.preflight import preflight
from durable_core.cli.quarantine import quarantine
from durable_core.errors import DurableError, UsageError

_EPILOG = epilog()
_INTERRUPTED = 130

Body = TypeVar("Body", bound=Callable[..., Any])


@click.group(epilog=_EPILOG)
@click.version_option(__version__, prog_name="durable", message="%(prog)s %(version)s")
def app() -> None:
    """Launch durable training runs, and look at, check and keep what they save."""


def _command(name: str, *, every_run: bool = False) -> Callable[[Body], Body]:
    """A command on one run: the argument ROOT, the option --json, and the exit codes in its help.

    ``every_run``: without ROOT it is about all of them."""

    def register(body: Body) -> Body:
        command = app.command(name, epilog=_EPILOG)(body)
        # Arguments are declared bottom up; ROOT comes first on the command line.
        command.params.insert(0, root_argument(optional=every_run))
        command.params.append(
            click.Option(
                ["--json", "as_json"], is_flag=True, help="One JSON document on stdout, nothing else."
            )
        )
        return body

    return register


_which = click.argument("c", type=click.IntRange(min=0), required=False, metavar="[C]")
_needed = click.argument("c", type=click.IntRange(min=0), metavar="C")
_directory = click.option(
    "--directory", default="/dev/shm", show_default=True, help="The tmpfs that the run's Memory names."
)


@_command("ls")
def ls(root: str, as_json: bool) -> int:
    """List the committed checkpoints.

    ROOT is a path or a URL (file://, s3://), as given to DurableCheckpoint or DurableSession.open; under
    Accelerate, as its option root says, or a project directory.
    """
    from durable_core.cli import views

    return show(views.ls(root), as_json=as_json)


@_command("show")
@_which
def show_(root: str, c: int | None, as_json: bool) -> int:
    """Show one checkpoint: its tensors and objects.

    Without C: the newest usable one.
    """
    from durable_core.cli import views

    return show(views.show(root, c), as_json=as_json)


@_command("status")
def status(root: str, as_json: bool) -> int:
    """Say where the run stands, and tell slow from damaged.

    Of a launched run also: which invariant is violated, since when, on which rank, and how old the
    controller's last report is.
    """
    from durable_core.cli import status as standing

    return show(standing.status(root), as_json=as_json)


@_command("report")
def report(root: str, as_json: bool) -> int:
    """Say what failed, how often, and how long it took to mend.

    By class, from the journal: count, share, mean time between, until it was known and until the run
    trained again, how often without a person, and the steps lost.
    """
    from durable_core.cli import report as reporting

    return show(reporting.report(root), as_json=as_json)


@_command("journal")
def journal(root: str, as_json: bool) -> int:
    """Print the journal, void records included."""
    from durable_core.cli import views

    return show(views.journal(root), as_json=as_json)


@_command("verify")
@_which
@click.option("--strict", is_flag=True, help="What is only on a disk in front of ROOT counts as missing.")
def verify(root: str, c: int | None, strict: bool, as_json: bool) -> int:
    """Read every retained byte again and check it.

    With C only that checkpoint. Checksums prove that the bytes are those that were written; they do
    not prove that the values were right before they were written.
    """
    from durable_core.cli import checks

    return show(checks.verify(root, c, strict=strict), as_json=as_json)


@_command("audit")
@click.option("--at", "c", type=click.IntRange(min=0), metavar="C", help="Up to checkpoint C, not the head.")
@click.option(
    "--explain", "sample", metavar="ID", help="Tell where one sample went (source:ID in a mixture)."
)
def audit(root: str, c: int | None, sample: str | None, as_json: bool) -> int:
    """Prove which samples were consumed.

    From the ledger of acknowledged batches along the lineage of the head: what the committed steps
    consumed, by source, and what they repeated or skipped. Ends with 1 when there is any, or nothing to
    prove it from.
    """
    from durable_core.cli import checks

    if sample is not None:
        return show(checks.explain(root, sample, c), as_json=as_json)
    return show(checks.audit(root, c), as_json=as_json)


@_command("export")
@click.argument("out", metavar="OUT")
@click.option("-c", "--checkpoint", "c", type=click.IntRange(min=0), help="Default: the newest whole one.")
@click.option(
    "--format",
    "form",
    default="all",
    show_default=True,
    type=click.Choice(["all", "safetensors", "lightning", "hf"]),
)
@click.option("--key", default="model", show_default=True, help="hf: which object of the state is the model.")
@click.option(
    "--config",
    type=click.Path(exists=True, path_type=Path),
    help="hf: a directory or file with config.json or adapter_config.json, instead of the stored one.",
)
@click.option("--max-shard-bytes", callback=size, help="hf: of one file (5GiB). Default: one file for all.")
def export(
    root: str, out: str, c: int | None, form: str, key: str, config: Path | None,
    max_shard_bytes: int | None, as_json: bool,
) -> int:  # fmt: skip
    """Write a checkpoint as plain files.

    Verified first, into the new directory OUT: model.safetensors, and for a Lightning run
    checkpoint.ckpt, which plain Lightning loads. With --format hf: what from_pretrained of
    transformers takes, or of peft where the model has adapters (then those alone).
    """
    from durable_core.cli import checks
    from durable_core.engine.export.hugging import Wanted

    wanted = Wanted(key, config, max_shard_bytes)
    return show(checks.export(root, out, c, form, wanted), as_json=as_json)


@_command("scrub")
@click.option("--disk", help="The directory that stands in front of ROOT: read and repaired as well.")
@click.option("--rate", callback=size, help="Bytes per second, as 100MiB. Default: no limit.")
@click.option("--repair", is_flag=True, help="Make damaged objects anew from whole copies.")
def scrub(root: str, disk: str | None, rate: int | None, repair: bool, as_json: bool) -> int:
    """Read every stored byte in every place; repair what is damaged.

    With --repair a damaged object is made anew from verified bytes of another place, or of second copies in
    the same one; checkpoints that need bytes of which no whole copy is left are journaled as corrupt.
    Without it nothing is written. Ends with 5 when something is damaged and not repaired.
    """
    from durable_core.cli import scrub as scrubbing

    return show(scrubbing.scrub(root, disk=disk, rate=rate, repair=repair), as_json=as_json)


@_command("snapshots", every_run=True)
@_directory
def snapshots(root: str | None, directory: str, as_json: bool) -> int:
    """List the sealed snapshots in this host's memory.

    With ROOT those of that run, without it those of every run of this user.
    """
    from durable_core.cli import memory

    return show(memory.snapshots(root, directory), as_json=as_json)


@_command("gc", every_run=True)
@click.option("--keep-last", type=click.IntRange(min=1), help="Retain the newest N of the lineage.")
@click.option("--keep-every-n-steps", type=click.IntRange(min=1), help="Retain multiples of N as well.")
@click.option("--memory", "in_memory", is_flag=True, help="Free shared memory instead, of dead processes.")
@_directory
@click.option("--peer", "peers", multiple=True, metavar="HOST:PORT", help="Has to forget the run as well.")
@click.option("--secret-file", help="Default: DURABLE_PEER_SECRET, or the file DURABLE_PEER_SECRET_FILE.")
@click.option("--force", is_flag=True, help="Also what a run could still go on from.")
def gc(
    root: str | None, keep_last: int | None, keep_every_n_steps: int | None, in_memory: bool, directory: str,
    peers: tuple[str, ...], secret_file: str | None, force: bool, as_json: bool,
) -> int:  # fmt: skip
    """Delete what nothing refers to.

    With --keep-last or --keep-every-n-steps, first retire what that policy does not retain; without
    them no checkpoint is retired.

    With --memory, free the snapshots that dead processes left in this host's memory: of the run at ROOT,
    unless its next start would go on from them; without ROOT they are listed, and freed with --force.
    """
    if in_memory:
        from durable_core.cli import memory

        if root is not None:
            return show(memory.free(root, directory, peers, secret_file, force=force), as_json=as_json)
        if peers:
            raise UsageError("--peer needs a ROOT: a peer forgets one run")
        return show(memory.list_leftovers(directory, force=force), as_json=as_json)
    if root is None or peers or force:
        raise UsageError("gc needs a ROOT; --peer and --force belong to --memory")
    from durable_core.cli import upkeep

    return show(upkeep.gc(root, keep_last, keep_every_n_steps), as_json=as_json)


@_command("pin")
@_needed
def pin(root: str, c: int, as_json: bool) -> int:
    """Never retire checkpoint C."""
    from durable_core.cli import upkeep

    return show(upkeep.pin(root, c), as_json=as_json)


@_command("unpin")
@_needed
def unpin(root: str, c: int, as_json: bool) -> int:
    """Leave checkpoint C to the retention policy again."""
    from durable_core.cli import upkeep

    return show(upkeep.unpin(root, c), as_json=as_json)


@app.command("secret", epilog=_EPILOG)
@click.argument("file", metavar="FILE")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def secret(file: str, as_json: bool) -> int:
    """Make the secret that peers share, in the new FILE.

    Only this user can read it. Every agent and every training process of the run needs the same one.
    """
    from durable_core.cli import memory

    return show(memory.secret(file), as_json=as_json)


app.add_command(agent)
app.add_command(data)
app.add_command(drill)
app.add_command(pilot)
app.add_command(plan)
app.add_command(doctor)
app.add_command(known_good)
app.add_command(launch)
app.add_command(cancel)
app.add_command(finalize)
app.add_command(preflight)
app.add_command(quarantine)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. Only faults of our own end in a traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in given
    try:
        # Not app.main(): that takes a closed pipe for a failure.
        with app.make_context("durable", given) as context:
            code: int = app.invoke(context)
        sys.stdout.flush()
    except DurableError as error:
        return fail(error, as_json=as_json)
    except click.exceptions.Exit as done:  # after --help and --version
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return USAGE
    except click.ClickException as error:
        of = next((name for name in given[:1] if name in app.commands), "")  # the parser does not always say
        where = getattr(error, "ctx", None)
        which = f"durable {of}".rstrip() if where is None else where.command_path
        complain("UsageError", error.format_message(), f"{which} --help", USAGE, as_json=as_json)
        return USAGE
    except (KeyboardInterrupt, click.Abort):
        return _INTERRUPTED
    except BrokenPipeError:
        # `durable journal ROOT | head`: the reader has what it wanted. Keep the interpreter from
        # complaining when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    return code
