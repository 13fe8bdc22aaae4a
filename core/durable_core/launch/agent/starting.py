"""L5. How one worker process is started: what every starter promises, and the plain one."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol


class Process(Protocol):
    """A worker, the leader of a session of its own."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; ``None`` while it lives. It never waits."""


class Starter(Protocol):
    @property
    def ready(self) -> int:
        """Workers that could be started now without importing."""

    @property
    def pids(self) -> Collection[int]:
        """Children of the agent that are nobody's workers, and that the starter itself waits for."""

    def tend(self) -> None:
        """At every look of the agent; it never waits."""

    def close(self) -> None:
        """Nothing more will be started."""

    def start(self, argv: Sequence[str], env: Mapping[str, str], stdout: str, stderr: str) -> Process:
        """Start ``argv`` with exactly the environment ``env``.

        ``stdout``, ``stderr``: the file that is written anew; ``""``: the agent's own. Raises ``OSError``
        when no process can be started.
        """


class Cold:
    """A new process for every worker. A child of the agent's main thread, so that it can ask for a
    signal at its parent's death."""

    ready: int = 0
    pids: Collection[int] = ()

    def tend(self) -> None:
        pass

    def close(self) -> None:
        pass

    def start(self, argv: Sequence[str], env: Mapping[str, str], stdout: str, stderr: str) -> Process:
        with ExitStack() as files:
            out, err = (
                files.enter_context(Path(path).open("wb")) if path else None for path in (stdout, stderr)
            )
            return subprocess.Popen(list(argv), env=dict(env), stdout=out, stderr=err, start_new_session=True)
