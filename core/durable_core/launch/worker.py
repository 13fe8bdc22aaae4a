"""L5. A worker's first lines: ``python -m durable_core.launch.worker [-m] SCRIPT [ARGS]``.

It dies with whoever started it, leaves last words for whatever ends it, from the first line of the script on,
and becomes the script, as ``python SCRIPT ARGS`` would. Nothing here imports torch.
"""

from __future__ import annotations

import builtins
import os
import runpy
import sys
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from durable_core.engine import uncaught
from durable_core.engine.launched import Launched
from durable_core.engine.parent import die_with
from durable_core.errors import UsageError


def run(argv: Sequence[str], module: bool = False) -> None:
    """Become the script ``argv[0]``, or the module of that name, with the arguments that follow.

    Returns when it has ended; raises what it raises. Last words on a ``SystemExit`` are left here, those on
    anything else by the hook that sees it uncaught.
    """
    try:
        become(argv, module)
    except SystemExit as error:
        uncaught.ended(error)
        raise
    finally:
        _script_ended(Launched.of())


def become(argv: Sequence[str], module: bool = False) -> None:
    """The script alone, without what a launcher is told of its end. ``sys.path[0]`` is taken for the entry of
    whoever calls."""
    sys.argv[:] = argv
    path = Path(argv[0])
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(
            Path.cwd() if module else path.resolve() if path.is_dir() else path.resolve().parent
        )
    if module:
        runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
    elif path.is_dir() or zipfile.is_zipfile(path):
        runpy.run_path(argv[0], run_name="__main__")
    else:
        _execute(path.absolute())


def _script_ended(launched: Launched) -> None:
    """What comes now should be quick: whoever does not end from here on stands still."""
    if launched.told is not None:
        with suppress(OSError):
            launched.told.ended(launched.rank).touch()


class _Script(SourceFileLoader):
    """A script leaves no compiled file behind."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _execute(path: Path) -> None:
    """Not ``runpy``: it changes ``sys.argv[0]``, and takes ``__main__`` away before what runs at exit."""
    loader = _Script("__main__", str(path))
    main = ModuleType("__main__")
    main.__dict__.update(
        __file__=str(path), __loader__=loader, __cached__=None, __builtins__=builtins, __annotations__={}
    )
    sys.modules["__main__"] = main
    loader.exec_module(main)


def prepare(launched: Launched, parent: int) -> None:
    """Make this process a worker of ``parent``. In a process of its own, so after any fork."""
    if launched.attempt:
        die_with(parent)
    uncaught.install(launched)


def main(arguments: Sequence[str]) -> None:
    parent = os.getppid()
    module = bool(arguments) and arguments[0] == "-m"
    argv = list(arguments[1:] if module else arguments)
    if not argv:
        raise UsageError("no script", hint="python -m durable_core.launch.worker [-m] SCRIPT [ARGS]")
    prepare(Launched.of(), parent)
    run(argv, module)


if __name__ == "__main__":
    main(sys.argv[1:])
