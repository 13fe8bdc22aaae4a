"""The benchmarks run and print what they say; figures are never judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench.peers import YARDSTICK, ratios
from tests.bench.rivals.meters import Plan, Step, Tape
from tests.bench.rivals.table import VARIANTS

ROOT = Path(__file__).parents[2]
PER_SAVE = {"call_s", "guard_s", "stall_s", "slowed_s", "slowdown", "steps_in_flight", "durable_s", "cpu_s"}


def printed(module: str, *arguments: str) -> dict[str, Any]:
    call = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_two_variants_are_measured(tmp_path: Path) -> None:
    arguments = ["--size-mib", "8", "--reps", "1", "--saves", "2", "--every", "3", "--step-seconds", "0.01"]
    names = [YARDSTICK, "safetensors", "durable_session"]
    document = printed("tests.bench.peers", *arguments, "--variants", ",".join(names), "--dir", str(tmp_path))
    assert set(document["variants"]) == {"safetensors", "durable_session"}
    assert document["not_measured"] == {}
    assert document[YARDSTICK]["memcpy_s"] > 0
    for one in document["variants"].values():
        assert (one["saves"], one["lost"]) == (2, 0)
        assert set(one["first"]) == set(one["steady"]) == PER_SAVE
        assert one["steady"]["durable_s"] > 0
    assert "best_sync_stall_over_ours" in document["ratios"]["durable_session"]
    assert list(tmp_path.iterdir()) == []  # what was written is gone


def test_growth_is_measured(tmp_path: Path) -> None:
    document = printed("tests.bench.growth", "--saves", "8", "--size-mib", "1", "--dir", str(tmp_path))
    assert document["committed"] >= 8
    assert {"first", "last", "grown"} == set(document["rss_mib"])


def test_a_variant_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from tests.bench import peers

    monkeypatch.setitem(VARIANTS, "accelerate", replace(VARIANTS["accelerate"], needs="no_such_package"))
    document = peers.measure(["accelerate"], Plan(1, 1, 3, 1), 1, None)
    assert document["not_measured"] == {"accelerate": "no_such_package is not installed"}


def test_what_later_steps_wait_for_counts_as_stall() -> None:
    tape = Tape(Plan(size_mib=1, matmuls=1, every=3, saves=1))
    clock = 0.0
    for number in range(1, 7):
        call, guard = (0.5 if number == 3 else 0.0), (2.0 if number == 4 else 0.0)
        moments = {"begin": 0.0, "computed": 1.0, "guarded": 1 + guard, "updated": 2 + guard}
        moments["ended"] = moments["updated"] + call
        wall = {name: clock + moment for name, moment in moments.items()}
        tape.steps.append(Step(number, number == 4, wall, wall, others=0.25 * (number > 3)))
        clock = wall["ended"]
    tape.landings.landed[3] = tape.steps[2].wall["updated"] + 4
    tape.landings.settle()
    (save,) = tape.figures()["saves"]
    assert (save["call_s"], save["guard_s"], save["stall_s"]) == (0.5, 2.0, 2.5)
    assert (save["slowed_s"], save["slowdown"], save["durable_s"]) == (0.0, 1.0, 4.0)
    assert save["cpu_s"] == 2.75  # of the others, and of the training thread outside its work


def test_ratios_are_taken_within_a_round() -> None:
    def one(stall: float) -> dict[str, Any]:
        figures = {"stall_s": stall, "slowdown": 1.0, "durable_s": 1.0}
        return {"first": figures, "steady": figures, "cpu_s_per_gb": 1.0}

    quiet = {"safetensors": one(2.0), "torch_save": one(3.0), "durable_session": one(0.1)}
    busy = {"safetensors": one(20.0), "torch_save": one(30.0), "durable_session": one(1.0)}
    found = ratios([quiet, busy])["durable_session"]["best_sync_stall_over_ours"]
    assert found == pytest.approx(20.0)
