"""How a process ends when something is wrong: what is ours in one line, with a documented exit code."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import NoReturn

from durable_core.cli import output
from durable_core.engine import uncaught
from durable_core.engine.uncaught import EXIT_DRAINED, EXIT_FENCED, EXIT_NUMERIC
from durable_core.errors import DurableError, FencedError, NumericFault, UsageError

#: Of a script under zero code; the help texts are made from this.
EXIT_CODES: Mapping[int, str] = {
    0: "the script ended, and with it the run",
    1: "the script failed, or the storage did",
    2: "usage: an option, the root, or a state that is another's; nothing was written",
    3: "not found",
    5: "corrupt, written by a later version, or nothing usable left",
    EXIT_DRAINED: "drained after SIGTERM: nothing is lost, start it again",
    EXIT_FENCED: "fenced: another process has the run, or it has ended; do not start it again unasked",
    EXIT_NUMERIC: "wrong numbers, and the options say to stop: start it again",
}
#: What becomes of them. Also in the documentation.
LAUNCHED = (
    "These are the codes of the script's process. accelerate launch and torchrun end with 1 in place of "
    "every code but 0; accelerate-durable launch passes on that of a single process."
)


def epilog() -> str:
    """The last lines of a help text."""
    return f"{output.epilog(EXIT_CODES)}\n{LAUNCHED}"


def status(error: DurableError) -> int:
    """The exit code of a training process that ends with ``error``."""
    if isinstance(error, NumericFault):
        return EXIT_NUMERIC
    return EXIT_FENCED if isinstance(error, FencedError) else error.exit_code


def tell(error: DurableError) -> int:
    """One line on stderr, the way out included; its exit code."""
    code = status(error)
    output.complain(type(error).__name__, error.message, error.hint, code, as_json=False)
    return code


def install() -> None:
    """From now on an uncaught error of ours is one line; a traceback of any other begins in the script."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, DurableError):
            uncaught.ended(error)  # a launcher is told all the same
            _end(tell(error))
        error.__traceback__ = uncaught.of_script(trace)
        previous(kind, error, error.__traceback__)

    sys.excepthook = hook


def _end(code: int) -> NoReturn:
    raise SystemExit(code)  # from a hook, the one way to choose the status and still clean up


class MissingExtra(UsageError, ImportError):
    """A package that an extra of this one brings is not installed."""


def needs(package: str, extra: str) -> None:
    """``MissingExtra`` when ``package``, which the extra of that name brings, is not installed."""
    if importlib.util.find_spec(package) is None:
        raise MissingExtra(f"{package} is not installed", hint=f"pip install 'durable-training[{extra}]'")
