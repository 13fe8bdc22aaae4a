"""What telling a launcher costs the training loop: CPU microseconds of a step, with a launcher and without.

    python tests/bench/beat_cost.py [STEPS] [ROUNDS]

A step here is what the reporter does in one: a beat before its batch, the gradient hook, the boundary.
Both are measured by turns in one process; printed are the medians over the rounds, as JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path

import torch

from durable_core.clock import SystemClock, computed
from durable_core.engine.launched import RunFiles
from durable_core.session.reporting import Reporter
from durable_core.types import Token


def step_us(reporter: Reporter, steps: int) -> float:
    gradient = torch.zeros(1)
    began = computed()
    for step in range(steps):
        reporter.beat()
        reporter.on_gradient(gradient)
        reporter.boundary(step)
        reporter.goes_on()
    return 1e6 * (computed() - began) / steps


def main(steps: int = 20_000, rounds: int = 9) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = RunFiles(Path(folder)).prepare()
        launched, alone = (Reporter(where, 0, SystemClock(), "/root") for where in (files, None))
        for reporter in (launched, alone):
            reporter.opened("run", Token(1, "launch"), ("dp0",), tells=False)
        rows = [(step_us(launched, steps), step_us(alone, steps)) for _ in range(rounds)]
    told, silent = (statistics.median(column) for column in zip(*rows, strict=True))
    print(json.dumps({"launched_us": round(told, 2), "alone_us": round(silent, 2), "rounds": rounds}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
