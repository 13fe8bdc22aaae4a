"""What the numeric detectors cost the training thread: microseconds of a step without a due check, and of one
comparison of replicas by the size of their parameters. Prints JSON; A and B are interleaved."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable

import torch

from durable_core.clock import SystemClock
from durable_core.detect.base import Step
from durable_core.detect.policy import Integrity
from durable_core.session.integrity import Watch
from durable_core.session.world import World
from durable_core.state import bits

STEPS, ROUNDS = 2000, 9


class Silent:
    def emit(self, event: object) -> None:
        raise AssertionError(event)


def watched(settings: Integrity) -> Callable[[list[Step]], float]:
    watch = Watch(settings, World.solo(), Silent(), SystemClock(), lambda *_: None)  # type: ignore[arg-type]
    watch.begin(0)

    def run(samples: list[Step]) -> float:
        began = time.perf_counter()
        for sample in samples:
            watch.note(sample)
            watch.examine(sample.step, lambda: ())
        return (time.perf_counter() - began) / len(samples) * 1e6

    return run


def per_step() -> dict[str, float]:
    source = random.Random(0)
    cases = {"off": Integrity(non_finite=False, spikes=None), "default": Integrity()}
    runs = {name: watched(settings) for name, settings in cases.items()}
    found: dict[str, list[float]] = {name: [] for name in cases}
    for round_ in range(ROUNDS):
        first = round_ * STEPS + 1
        samples = [
            Step(first + i, 2 + 0.02 * source.gauss(0, 1), source.lognormvariate(0, 0.3))
            for i in range(STEPS)
        ]
        for name, run in runs.items():
            found[name].append(run(samples))
    return {f"{name}_us": round(statistics.median(values), 2) for name, values in found.items()}


def comparison() -> dict[str, float]:
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(24)])
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    seconds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        bits.digest(bits.sums(model.named_parameters()))
        seconds.append(time.perf_counter() - began)
    best = statistics.median(seconds)
    return {
        "parameters_mb": round(size / 1e6, 1),
        "sums_ms": round(best * 1e3, 2),
        "gb_per_s": round(size / best / 1e9, 2),
    }


if __name__ == "__main__":
    print(json.dumps({"step": per_step(), "replicas": comparison()}))
