"""L5. The checks' hands: processes with torch in them, each with a deadline, none of which outlives it.

The launcher itself stays without torch; and an experiment that hangs or crashes takes nothing with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from durable_core.clock import Clock, SystemClock

_CHILD = "durable_core.launch.preflight.child"
#: Seconds for a process to import torch on a busy machine.
IMPORT_S = 60.0
Answer = dict[str, Any]


@dataclass
class Lab:
    """``python`` runs the experiments. Each is done once; its outcome is kept."""

    python: str = sys.executable
    import_s: float = IMPORT_S
    clock: Clock = field(default_factory=SystemClock)
    _collective: dict[tuple[int, int, float], Answer] = field(default_factory=dict)

    def device(self, count: int, kind: str = "") -> Answer:
        """``{"device": name, "count": of them}``, or ``{"error": why}``."""
        return self._run([["device", str(count), kind]], self.import_s)[0]

    def collective(self, world: int, timeout_s: float, *, started: int | None = None) -> Answer:
        """A sum over ``world`` processes, whose process group is told ``timeout_s``.

        ``{"seconds": ..., "bytes_per_second": ...}`` or ``{"error": why}``; ``started``: how many of them
        come (fewer than all: what a missing member looks like).
        """
        come = world if started is None else started
        key = (world, come, timeout_s)
        if key not in self._collective:
            with tempfile.TemporaryDirectory(prefix="durable-preflight-") as folder:
                store = str(Path(folder) / "store")
                told = [str(world), store, str(timeout_s)]
                arguments = [["collective", str(rank), *told] for rank in range(come)]
                answers = self._run(arguments, self.import_s + 2 * timeout_s)
            wrong = [f"rank {n}: {each['error']}" for n, each in enumerate(answers) if "error" in each]
            self._collective[key] = {"error": "; ".join(wrong)} if wrong else answers[0]
        return self._collective[key]

    def _run(self, arguments: Sequence[Sequence[str]], deadline_s: float) -> list[Answer]:
        """One process for each, at once; whatever still lives at the deadline is killed."""
        path = os.pathsep.join(filter(None, sys.path))
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        processes = [
            subprocess.Popen(
                [self.python, "-m", _CHILD, *each], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, env=environ, text=True, start_new_session=True,
            )
            for each in arguments
        ]  # fmt: skip
        outputs: list[tuple[str, str]] = [("", "")] * len(processes)

        def read(place: int) -> None:
            outputs[place] = processes[place].communicate()

        readers = [threading.Thread(target=read, args=(n,), daemon=True) for n in range(len(processes))]
        try:
            for reader in readers:
                reader.start()
            end = self.clock.monotonic() + deadline_s
            for reader in readers:
                reader.join(max(0.0, end - self.clock.monotonic()))
            late = [process.poll() is None for process in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
        for reader in readers:
            reader.join(1.0)
        return [
            _answer(output, f"no answer in {deadline_s:g} s" if slow else f"ended with {process.returncode}")
            for output, slow, process in zip(outputs, late, processes, strict=True)
        ]


def _answer(output: tuple[str, str], otherwise: str) -> Answer:
    try:
        answer = json.loads(output[0].strip().splitlines()[-1])
    except (IndexError, ValueError):
        last = output[1].strip().splitlines()[-1:] or [""]
        return {"error": f"{otherwise} {last[0]}".strip()}
    return answer if isinstance(answer, dict) else {"error": otherwise}
