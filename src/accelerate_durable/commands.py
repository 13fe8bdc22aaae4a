"""``accelerate-durable``: the command line of Accelerate, with a ``durable_config:`` in its configuration."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate_durable import failures
from accelerate_durable.__main__ import SCRIPT_VARIABLES
from accelerate_durable.options import DurableOptions, option_names
from durable_core.errors import DurableError, UsageError
from durable_core.spec import runfile

BLOCK = "durable_config"
#: Keys of configurations that an earlier Accelerate wrote, and that it still takes.
_OLD = ("fp16", "dynamo_backend")

USAGE = """\
usage: accelerate-durable launch [flags of accelerate launch] SCRIPT [ARGS ...]

Starts a script as `accelerate launch` does, with every accelerate.Accelerator in it made durable.
`accelerate-durable launch --help` says more.
"""
_ADDED = f"""\
`accelerate launch`, with every accelerate.Accelerator of the script made durable (as by accelerate launch -m
accelerate_durable SCRIPT). Every flag is Accelerate's. The file of --config_file may hold a block
`{BLOCK}:` with any of the options below. It is checked, and taken out before Accelerate reads the rest.
Variables ACCELERATE_DURABLE_<NAME> win over it.

Options: {", ".join(option_names())}.

Accelerate starts one process on a machine without an accelerator, whatever --num_processes says (more need
MPI): to train on CPUs with several processes, start them with `torchrun --nproc-per-node N -m
accelerate_durable SCRIPT` or `durable launch`. SIGTERM to this process ends it alone, as with Accelerate:
`durable launch` passes it on, and starts a script again that was killed.
"""


def main() -> None:
    """Entry point of the ``accelerate-durable`` script; ends the process with a documented exit code."""
    try:
        code = run(sys.argv[1:])
    except DurableError as error:
        code = failures.tell(error)
    raise SystemExit(code)


def run(arguments: Sequence[str]) -> int:
    """The exit code. ``UsageError`` before anything is started or written."""
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(f"{USAGE}\n{failures.epilog()}\n")
        return 0
    if arguments[0] != "launch":
        raise UsageError(f"no such command: {arguments[0]}", hint="accelerate-durable launch SCRIPT")
    return launch(arguments[1:])


def launch(arguments: Sequence[str]) -> int:
    failures.needs("accelerate", "accelerate")
    from accelerate.commands.config import default_config_file
    from accelerate.commands.launch import launch_command, launch_command_parser

    parser = launch_command_parser()
    parser.prog = "accelerate-durable launch"
    parser.description = _ADDED
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = f"{SCRIPT_VARIABLES}\n{failures.epilog()}"
    asked = under_zero_code(parser.parse_args(list(arguments)))
    if asked.config_file is None and not asked.cpu and Path(default_config_file).is_file():
        asked.config_file = default_config_file  # as Accelerate does
    theirs, ours = divided(asked.config_file)
    for name, text in DurableOptions.variables(ours).items():
        os.environ.setdefault(name, text)
    DurableOptions.gather(os.environ)
    try:
        if theirs is None:
            launch_command(asked)
        else:
            with _anonymous(theirs) as asked.config_file:
                launch_command(asked)
    except subprocess.CalledProcessError as error:  # the script's status, which it has explained itself
        return error.returncode if error.returncode >= 0 else 128 - error.returncode
    return 0


def under_zero_code(asked: argparse.Namespace) -> argparse.Namespace:
    """What was asked for, with the script run by ``accelerate_durable``."""
    if asked.no_python:
        raise UsageError("--no_python starts what is no script of Python", hint="leave it out")
    script = [*(["-m"] if asked.module else []), asked.training_script, *asked.training_script_args]
    asked.module, asked.training_script, asked.training_script_args = True, "accelerate_durable", script
    return asked


def divided(config_file: str | None) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """A configuration without our block, and the block, checked. ``None``: it has none, and Accelerate reads
    the file itself, by its own rules. ``UsageError`` for a key that was meant to be the block's."""
    if config_file is None or not _mentioned(config_file):
        return None, {}
    document = runfile.document(config_file, hint="--config_file names a configuration of Accelerate")
    keys = list(document) if isinstance(document, dict) else []
    if (wrong := misspelt(keys)) is not None:
        raise UsageError(f"{config_file}: {wrong}: no such key", hint=f"did you mean {BLOCK}?")
    if BLOCK not in keys:
        return None, {}
    ours = document.pop(BLOCK)
    DurableOptions.of(ours, config_file, BLOCK)
    return document, ours or {}


def misspelt(words: Iterable[Any]) -> str | None:
    """The first of ``words`` that Accelerate does not know as a key, and that resembles the name of the block
    more than any it knows; ``None``: there is none."""
    from accelerate.commands.config.config_args import ClusterConfig, SageMakerConfig

    known = {BLOCK, *_OLD, *ClusterConfig.__dataclass_fields__, *SageMakerConfig.__dataclass_fields__}
    for word in map(str, words):
        if word not in known and difflib.get_close_matches(word, known, n=1, cutoff=0.5) == [BLOCK]:
            return word
    return None


def _mentioned(config_file: str) -> bool:
    path = Path(config_file)
    if not path.is_file():
        return True
    words = re.findall(r"[\w-]+", path.read_text("utf-8", errors="replace"))
    return BLOCK in words or misspelt(words) is not None


@contextmanager
def _anonymous(document: dict[str, Any]) -> Iterator[str]:
    """The path of a file that has no name, for it has to be gone however this process ends. JSON is YAML."""
    with tempfile.TemporaryFile("w", encoding="utf-8") as file:
        json.dump(document, file, ensure_ascii=False, default=str)
        file.flush()
        file.seek(0)
        yield f"/dev/fd/{file.fileno()}"
