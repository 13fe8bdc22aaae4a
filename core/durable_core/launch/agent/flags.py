"""L5. The command line of ``durable launch``: torchrun's own parser, and what is added to it."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from torch.distributed.launcher.api import LaunchConfig
from torch.distributed.run import config_from_args, get_args_parser, parse_min_max_nnodes

from durable_core.errors import UsageError
from durable_core.launch.liveness import Limits
from durable_core.launch.policy import Policy

#: Seconds between two looks at the workers.
MONITOR_INTERVAL_S = 0.05
#: Phases of a worker that have a limit, and its default in seconds (``None``: the controller's own).
LIMITS = ("init", "restore", "step", "eval", "save", "exit")
RUNNER = "durable_core.launch.worker"


@dataclass(frozen=True)
class Flags:
    """What was asked for. ``config``: torch's own, complete; ``command``: one worker's, before substitution;
    ``max_restarts``: ``None`` where nothing was said; ``limits``: seconds a worker may stay in a phase
    without progress."""

    config: LaunchConfig
    command: tuple[str, ...]
    root: str = ""
    spec: str = ""
    standbys: int = 0
    standby_imports: tuple[str, ...] = ()
    kill_grace_s: float = 1.0
    stop_grace_s: float = 60.0
    max_restarts: int | None = None
    takeover: bool = False
    preflight: bool = True
    on_numeric: str = ""
    pilot: str = ""
    chaos_every_s: float | None = None
    limits: Mapping[str, float] = field(default_factory=dict)

    @property
    def script(self) -> tuple[str, ...]:
        """``command`` without how it is run: the script (``-m`` and the module), and its arguments."""
        return self.command[self.command.index(RUNNER) + 1 :] if RUNNER in self.command else self.command


@dataclass(frozen=True)
class Added:
    """One flag of ours, as ``--help`` and the parser have it."""

    name: str
    help: str
    type: Callable[[str], Any] | None = str
    default: Any = None
    choices: tuple[str, ...] | None = None


def _limit(phase: str) -> str:
    limits = Limits()
    own = f"{getattr(limits, phase).hard_s:g}"
    if phase == "step":
        own += f", or {limits.hard_m:g} times what the slowest of 100 steps took if that is more"
    return (
        f"Seconds without progress in phase {phase} that count as a hang. Default: the controller's, {own}."
    )


ADDED: tuple[Added, ...] = (
    Added("--root", "The run's root. Default: the one that the script opens.", default=""),
    Added("--spec", "A run spec (YAML or JSON) to freeze and hold the script to.", default=""),
    Added("--standby", "Processes that have imported the frameworks and wait. Default: 0.", int, 0),
    Added("--standby-import", "Further modules that they import, with commas between.", default=""),
    Added("--kill-grace", "Seconds from SIGTERM to SIGKILL after a failure. Default: 1.", float, 1.0),
    Added("--stop-grace", "Seconds for workers to drain at a planned stop. Default: 60.", float, 60.0),
    Added("--takeover", "Take the run over from another launch.", None, False),
    Added("--no-preflight", "Start without the checks.", None, False),
    Added(
        "--on-numeric", "What workers do about wrong numbers. Default: as the script says.", str, "",
        ("stop", "continue"),
    ),
    Added("--pilot", "Refuse to start without this record of a pilot that passed; or waive:REASON.", str, ""),
    Added("--chaos-every", "Kill a worker at some instant of every period of so many seconds.", float),
    *(
        Added(f"--{phase}-limit", _limit(phase), float)
        for phase in LIMITS
    ),
)  # fmt: skip


#: What a flag takes, in words, where it does not take any text.
_TAKES: Mapping[Any, str] = {int: "a whole number", float: "a number"}


class _Parser(argparse.ArgumentParser):
    """Refuses in one line, with what the flag takes, or the flag that may have been meant."""

    def error(self, message: str) -> NoReturn:
        flags = [re.split("[=/:]", word)[0] for word in message.split() if word.startswith("--")]
        way = next(filter(None, map(self._way_out, flags)), "")
        raise UsageError(message.replace("training_script", "SCRIPT"), hint=f"{way}durable launch --help")

    def _way_out(self, flag: str) -> str:
        known = self._option_string_actions
        if flag in known:
            takes = _TAKES.get(known[flag].type)
            return f"{flag} takes {takes}; " if takes else ""
        begun = [each for each in known if each.startswith(flag)]
        near = begun or get_close_matches(flag, known, 1)
        return f"did you mean {near[0]}? " if near else ""


def parser() -> argparse.ArgumentParser:
    """torchrun's, with ours. ``--max-restarts`` bounds this launch, over all its nodes."""
    theirs = get_args_parser()
    found = _Parser("durable launch", parents=[theirs], add_help=False, allow_abbrev=False)
    _add(found.add_argument_group("durable"))
    for action in found._actions:  # the environment (PET_...) may have set another default; that stands
        if action.dest == "max_restarts" and action.default == 0:
            action.default = None
        if action.dest == "monitor_interval" and action.default == 0.1:
            action.default = MONITOR_INTERVAL_S
    return found


def _add(to: argparse._ActionsContainer) -> None:
    for each in ADDED:
        if each.type is None:
            to.add_argument(each.name, action="store_true", help=each.help)
        else:
            to.add_argument(
                each.name, type=each.type, default=each.default, choices=each.choices, help=each.help
            )


def parse(arguments: Sequence[str], new_id: Callable[[], str]) -> Flags:
    """``UsageError`` for what cannot be. ``SystemExit`` after ``--help``."""
    args = parser().parse_args(list(arguments))
    _, most = parse_min_max_nnodes(args.nnodes)
    if args.standalone or (most == 1 and args.rdzv_backend == "static"):
        args.rdzv_backend, args.rdzv_endpoint, args.rdzv_id = "c10d", "localhost:0", new_id()
    if args.master_port is None:
        args.master_port = 29500
    restarts, args.max_restarts = args.max_restarts, args.max_restarts or 0
    _check(args)
    try:
        config, entrypoint, rest = config_from_args(args)
    except (AssertionError, ValueError) as error:
        raise UsageError(str(error), hint="durable launch --help") from error
    return Flags(
        config, _command(args, entrypoint, rest), args.root, args.spec, args.standby,
        tuple(filter(None, args.standby_import.split(","))), args.kill_grace, args.stop_grace, restarts,
        args.takeover, not args.no_preflight, args.on_numeric, args.pilot, args.chaos_every,
        {phase: limit for phase in LIMITS if (limit := getattr(args, f"{phase}_limit")) is not None},
    )  # fmt: skip


def check_script(flags: Flags) -> None:
    """``UsageError`` when it is a Python file, and not there: no worker need be started to find out."""
    script = flags.script[0]
    if RUNNER in flags.command and script != "-m" and not Path(script).exists():
        raise UsageError(f"no such script: {script}")


def _check(args: argparse.Namespace) -> None:
    for name in ("standby", "kill_grace", "stop_grace"):
        if getattr(args, name) < 0:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(args, name)}", hint="0 or more")
    for phase in LIMITS:
        limit = getattr(args, f"{phase}_limit")
        if limit is not None and not limit > 0:
            raise UsageError(f"--{phase}-limit {limit}", hint="a positive time in seconds")
    if args.rdzv_backend == "static" and parse_min_max_nnodes(args.nnodes)[1] > 1:
        raise UsageError(
            "the static rendezvous has no way to meet again after a failure",
            hint="--rdzv-backend c10d --rdzv-endpoint HOST:PORT",
        )


def _command(args: argparse.Namespace, entrypoint: Any, rest: Sequence[str]) -> tuple[str, ...]:
    """A Python script is run by our runner, so that what goes wrong before its first line leaves words."""
    if args.no_python:
        return (str(entrypoint), *rest)
    python = os.environ.get("PYTHON_EXEC", sys.executable)
    script = rest[rest.index(args.training_script) :]
    return (python, "-u", "-m", RUNNER, *(("-m",) if args.module else ()), *script)


def usage(epilog: str) -> str:
    """What ``--help`` shows: ours in full, and of torchrun's that all are taken."""
    shown = argparse.ArgumentParser(
        prog="durable launch", add_help=False, epilog=epilog,
        usage="durable launch [torchrun's flags] [flags] SCRIPT [ARGS ...]",
        description="Start a script on every device of this node, and start it again when it fails: as often "
        "as its budget and the cause allow, each time under a generation of its own, from the newest state "
        "that was saved. Takes every flag of torchrun (torchrun --help).",
    )  # fmt: skip
    _add(shown)
    shown.add_argument(
        "--max-restarts", type=int, metavar="N",
        help="Restarts without progress that are charged, over all nodes; beyond them this launch ends. How "
        f"many end the run, its run file declares. Default: {Policy().restarts}.",
    )  # fmt: skip
    return shown.format_help()
