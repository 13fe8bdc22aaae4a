"""How a process leaves a run that is another's now."""

from __future__ import annotations

from durable_core.engine.uncaught import EXIT_FENCED


class FencedExit(SystemExit):
    """A newer generation owns the run: this process stopped without writing; exit code 76."""

    def __init__(self) -> None:
        super().__init__(EXIT_FENCED)
