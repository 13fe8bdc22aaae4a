"""``python -m accelerate_durable [options] SCRIPT [ARGS]``: an unmodified script, made durable.

Also as the module that a launcher starts: ``accelerate launch -m accelerate_durable SCRIPT``, and the same
with ``torchrun`` and ``durable launch``.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from accelerate_durable import failures
from accelerate_durable.options import FILE, PREFIX, DurableOptions, option_names
from accelerate_durable.passes import EpochIsOver
from durable_core.errors import FencedError, UsageError
from durable_core.launch import worker

_VALUED = ("--durable", "--root", "--resume")

DESCRIPTION = """\
Run a script that uses Accelerate, with every accelerate.Accelerator in it made durable. Killed at any instant
and started again with the same arguments, it goes on as the same run. When the script ends, so does the run.

Options come from, later ones win: a durable.yaml (--durable, ACCELERATE_DURABLE_FILE), durable_config: in the
YAML of accelerate-durable launch, the environment (ACCELERATE_DURABLE_<NAME>), the flags below. As torchrun
takes a script's flags for abbreviations of its own, there it is: torchrun -m accelerate_durable -- SCRIPT
"""
#: What no wrapper can know of a script. Also in the documentation.
SCRIPT_VARIABLES = """\
What the script has prepared or registered, its random streams and its place in the data are restored. Its
own variables are not: a step counter, a best metric, a running loss, a list of results begin anew with the
process. Where one of them decides something, make it an object with state_dict() and load_state_dict(), and
call accelerator.register_for_checkpointing(object) before training. A script that counts its steps itself
and stops at a number says so: ACCELERATE_DURABLE_MAX_STEPS.
"""


class Parser(argparse.ArgumentParser):
    """Refuses in one line, with the flag that may have been meant."""

    def error(self, message: str) -> NoReturn:
        wrong = message.split()[-1].split("=")[0]
        option = wrong.lstrip("-").replace("-", "_")
        if option in option_names():
            raise UsageError(message, hint=f"{PREFIX}{option.upper()}, or {option} in the file of --durable")
        near = difflib.get_close_matches(wrong, self._option_string_actions, 1)
        meant = f"did you mean {near[0]}? " if near and near[0] != wrong else ""
        raise UsageError(message, hint=f"{meant}{self.prog} --help")


def parser() -> Parser:
    found = Parser(
        "python -m accelerate_durable", usage="%(prog)s [options] [-m] SCRIPT [ARGS ...]", allow_abbrev=False,
        description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"Options: {', '.join(option_names())}.\n\n{SCRIPT_VARIABLES}\n{failures.epilog()}",
    )  # fmt: skip
    found.add_argument("--durable", metavar="FILE", help="a YAML or JSON file of options")
    found.add_argument("--root", help="where the run lives; default: durable below the project directory")
    found.add_argument("--resume", help="auto (the default), never, must or fork")
    found.add_argument("-m", dest="module", action="store_true", help="SCRIPT is the name of a module")
    return found


def main(arguments: Sequence[str]) -> None:
    """Become the script. Errors of ours end it in one line, and all else as it would ``python SCRIPT``."""
    failures.install()
    argv, module = prepared(arguments)
    failures.needs("accelerate", "accelerate")
    from accelerate_durable import swap

    swap.install()
    try:
        worker.become(argv, module)
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            _explain(leaving)
            raise
        swap.finish()
        raise
    except RuntimeError as error:
        if isinstance(error.__cause__, EpochIsOver):  # which leaves a generator so
            raise error.__cause__ from None
        raise
    swap.finish()


def _explain(leaving: SystemExit) -> None:
    """An exit that is silent by itself: another process has the run."""
    if isinstance(leaving.__cause__, FencedError):
        failures.tell(leaving.__cause__)


def prepared(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """The script and its arguments, and whether it is a module; options are left in the environment, where
    whatever this process starts finds them. Raises ``UsageError`` for any that is wrong."""
    own, argv = split(arguments)
    asked = parser().parse_args(own)
    if not argv:
        raise UsageError("no script", hint="python -m accelerate_durable --help")
    if not asked.module and not Path(argv[0]).exists():
        raise UsageError(f"no such script: {argv[0]}")
    if asked.durable is not None:
        os.environ[FILE] = str(Path(asked.durable).absolute())  # the script may change the directory
    for name in ("root", "resume"):
        if getattr(asked, name) is not None:
            os.environ[f"{PREFIX}{name.upper()}"] = getattr(asked, name)
    DurableOptions.gather(os.environ)
    return argv, asked.module


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Ours, and from the script on the script's: no flag of it may be taken for one of ours."""
    at = 0
    while at < len(arguments) and arguments[at].startswith("-") and arguments[at] != "--":
        at += 2 if arguments[at] in _VALUED else 1
    script = at + 1 if arguments[at : at + 1] == ["--"] else at
    return list(arguments[:at]), list(arguments[script:])


if __name__ == "__main__":
    main(sys.argv[1:])
