"""L6. The commands' names, arguments and help. What they do is in ``views`` and below it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from durable_core.cli.output import EXIT_CODES, OK, USAGE, Answer, complain, fail, show
from durable_core.errors import DurableError

_EPILOG = "Exit codes: " + ", ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items()) + "."
_INTERRUPTED = 130

# typer exports one of click's exceptions; its base is what every complaint about the arguments is.
_ClickUsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="durable",
    help="Look at, check and keep the checkpoints of durable training runs.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help: it starts faster, and can be searched
    pretty_exceptions_enable=False,
)

Root = Annotated[
    str, typer.Argument(metavar="ROOT", help="The run's root: a path or file:// URL.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else.")]
Which = Annotated[int | None, typer.Argument(metavar="[C]", help="Checkpoint number.", show_default=False)]
Needed = Annotated[int, typer.Argument(metavar="C", help="Checkpoint number.", show_default=False)]

Command = Callable[..., int]


def _command(name: str | None = None) -> Callable[[Command], Command]:
    return app.command(name, epilog=_EPILOG)


def _show_version(wanted: bool) -> None:
    if wanted:
        from durable_core import __version__

        print(f"durable {__version__}")
        raise typer.Exit(OK)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version.")
    ] = False,
) -> None:
    """Look at, check and keep the checkpoints of durable training runs."""


@_command()
def ls(root: Root, json: Json = False) -> int:
    """List the committed checkpoints."""
    from durable_core.cli import views

    return show(views.ls(root), as_json=json)


@_command("show")
def show_(root: Root, c: Which = None, json: Json = False) -> int:
    """Show one checkpoint: its tensors and objects.

    Without C: the newest usable one."""
    from durable_core.cli import views

    return show(views.show(root, c), as_json=json)


@_command()
def status(root: Root, json: Json = False) -> int:
    """Say where the run stands."""
    from durable_core.cli import views

    return show(views.status(root), as_json=json)


@_command()
def journal(root: Root, json: Json = False) -> int:
    """Print the journal, void records included."""
    from durable_core.cli import views

    return show(views.journal(root), as_json=json)


@_command()
def verify(root: Root, c: Which = None, json: Json = False) -> int:
    """Read every retained byte again and check it.

    Checksums prove that the bytes are those that were written; not that the values were right
    before they were written.
    """
    from durable_core.cli import checks

    return show(checks.verify(root, c), as_json=json)


@_command()
def audit(root: Root, json: Json = False) -> int:
    """Prove which samples were consumed.

    From the ledger of acknowledged batches along the lineage of the head: repeats, skips and gaps
    of what the committed steps consumed. Ends with 1 when there is any."""
    from durable_core.cli import checks

    return show(checks.audit(root), as_json=json)


@_command()
def export(
    root: Root,
    out: Annotated[str, typer.Argument(metavar="OUT", help="A new directory.", show_default=False)],
    c: Annotated[int | None, typer.Option("--checkpoint", "-c", help="Default: the newest usable.")] = None,
    form: Annotated[str, typer.Option("--format", help="lightning, safetensors or all.")] = "all",
    json: Json = False,
) -> int:
    """Write a checkpoint as plain files.

    Verified first: model.safetensors, and a .ckpt that plain Lightning loads."""
    from durable_core.cli import checks

    return show(checks.export(root, out, c, form), as_json=json)


@_command()
def gc(
    root: Root,
    keep_last: Annotated[int | None, typer.Option(min=1, help="Retain the newest N.")] = None,
    keep_every_n_steps: Annotated[int | None, typer.Option(min=1, help="Also retain multiples of N.")] = None,
    json: Json = False,
) -> int:
    """Delete what nothing refers to.

    With --keep-last or --keep-every-n-steps, first retire what that policy does not retain.
    """
    from durable_core.cli import upkeep

    return show(upkeep.gc(root, keep_last, keep_every_n_steps), as_json=json)


@_command()
def pin(root: Root, c: Needed, json: Json = False) -> int:
    """Never retire checkpoint C."""
    from durable_core.cli import upkeep

    return show(upkeep.pin(root, c), as_json=json)


@_command()
def unpin(root: Root, c: Needed, json: Json = False) -> int:
    """Leave checkpoint C to the retention policy again."""
    from durable_core.cli import upkeep

    return show(upkeep.unpin(root, c), as_json=json)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. Only faults of our own end in a traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in given
    try:
        code = app(args=given, prog_name="durable", standalone_mode=False)
        sys.stdout.flush()
    except DurableError as error:
        return fail(error, as_json=as_json)
    except _ClickUsageError as error:
        if not given:
            print(error)  # the help text, which `no_args_is_help` raises
        else:
            complain("UsageError", str(error), "durable --help", USAGE, as_json=as_json)
        return USAGE
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    except BrokenPipeError:
        # `durable journal ROOT | head`: the reader has what it wanted. Keep the interpreter from
        # complaining when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    return code if isinstance(code, int) else OK


__all__ = ["Answer", "app", "run"]
