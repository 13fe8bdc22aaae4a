"""``python -m accelerate_durable`` in a forked process (the frameworks are imported already), to its very
end: as in the interpreter, an error that nothing caught goes to ``sys.excepthook``."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate_lives import SCRIPTS, output

from accelerate_durable.__main__ import main
from tests.lives import life

#: A script of little size: 12 samples in 3 batches, one epoch.
SMALL = ("--samples", "12", "--epochs", "1")


class Interpreter:
    """What python does about an error that leaves the block."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None and not isinstance(error, SystemExit):
            sys.excepthook(kind, error, trace)
            raise SystemExit(1) from None


def run(home: Path, *arguments: str, environ: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Exit code and what it wrote to stdout and stderr."""
    before = output(home) if (home / "output").exists() else ""

    def action() -> None:
        os.chdir(home)
        os.environ.update(environ or {})
        with Interpreter():
            main(arguments)

    code = life(home, action)
    return code, output(home).removeprefix(before)


def script(home: Path, text: str, name: str = "script.py") -> str:
    path = home / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def trained(home: Path, *more: str, script: str = "never_checkpoints", root: str = "run") -> tuple[int, str]:
    """The script of that name, its run in ``home/root``."""
    files = ("--log", str(home / "log"), "--weights", str(home / "weights"))
    return run(home, "--root", str(home / root), str(SCRIPTS / f"{script}.py"), *files, *more)


def contents(directory: Path) -> dict[str, str]:
    """Every file and directory below it, and what is in it."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else ""
        for path in sorted(directory.rglob("*"))
    }


def refusal(code: int, told: str) -> tuple[int, str]:
    """The exit code and the one line, which must be all there is from us."""
    lines = [line for line in told.splitlines() if line.startswith("durable: ")]
    assert "Traceback" not in told, told
    assert len(lines) == 1, told
    return code, lines[0]
