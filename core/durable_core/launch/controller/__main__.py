"""L5. ``python -m durable_core.launch.controller RUN_DIR --launch-id ID``: started by the agent of node 0.

Ends with 76 when another controller has taken over, with 0 at SIGTERM and when whoever started it, or the run
directory, is gone.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from durable_core.clock import SystemClock
from durable_core.errors import DurableError, Fenced
from durable_core.launch.classes import FENCED
from durable_core.launch.controller.incident import secrets_of
from durable_core.launch.controller.loop import DEADLINE_S, Controller, Settings
from durable_core.launch.controller.office import Office
from durable_core.launch.invariants import Terms
from durable_core.launch.liveness import Limit, Limits

_PHASES = ("init", "restore", "step", "eval", "save", "exit")
_TERMS = ("join_s", "drain_s", "diagnosis_s", "silence_s")


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser("durable-controller")
    found.add_argument("run_dir", type=Path)
    found.add_argument("--launch-id", required=True)
    found.add_argument("--root", default="", help="Of the run. Default: the one that the workers open.")
    for phase in _PHASES:
        found.add_argument(f"--{phase}-limit", type=float, help="Seconds without progress that are a hang.")
    for term in _TERMS:
        found.add_argument(f"--{term[:-2]}", dest=term, type=float, default=getattr(Terms(), term))
    found.add_argument("--probation-steps", type=int, default=Terms().probation_steps)
    found.add_argument("--evict-stragglers", action="store_true")
    found.add_argument("--pilot", default="", help="What the journal is to say of the run's pilot.")
    return found


def settings_of(args: argparse.Namespace) -> Settings:
    """``UsageError`` for limits that are none. A limit that is given is the hard one; suspicion begins at a
    third of it, or where it would by itself, if that is earlier."""
    limits = Limits()
    for phase in _PHASES:
        hard = getattr(args, f"{phase}_limit")
        if hard is not None:
            soft = min(getattr(limits, phase).soft_s, hard / 3)
            changes = {
                name: Limit(soft, hard) for name in (phase, *(["first_step"] if phase == "step" else []))
            }
            limits = replace(limits, **changes)  # type: ignore[arg-type]  # the names are of Limit fields
    # of one that builds or restores for long its own limit says when it hangs
    join_s = max(args.join_s, limits.init.hard_s, limits.restore.hard_s)
    terms = Terms(join_s, args.drain_s, args.diagnosis_s, args.silence_s, args.probation_steps)
    return Settings(terms, limits, args.evict_stragglers, args.pilot)


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    clock, ended, parent = SystemClock(), threading.Event(), os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the operator, to the agent, which says what follows
    try:
        controller = Controller(
            args.run_dir, settings_of(args), clock,
            lambda root: Office(root, clock, args.launch_id, deadline_s=DEADLINE_S),
            root=args.root, secrets=secrets_of(os.environ),
        )  # fmt: skip
        controller.run(
            lambda: ended.is_set() or os.getppid() != parent or not args.run_dir.is_dir(), ended.wait
        )
        controller.close()
    except Fenced as error:
        sys.stderr.write(f"durable-controller: {error}\n")
        return FENCED
    except DurableError as error:
        sys.stderr.write(f"durable-controller: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
