"""durable plan: the published arithmetic at the command line, without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
from cli_runs import Durable

TERABYTE = 10**12


def test_the_synchronous_baseline_and_the_intervals(durable: Durable) -> None:
    found = durable(
        "plan", "--json",
        "--state-bytes", 8 * TERABYTE, "--bandwidth", "20e9", "--mtbf", 6 * 3600, "--cost", 30,
    )  # fmt: skip
    assert found.code == 0 and found.err == ""
    intervals = found.document["intervals"]
    assert intervals["young"]["seconds"] == pytest.approx(1138.42, abs=0.005)
    assert intervals["daly"]["seconds"] == pytest.approx(1118.51, abs=0.005)
    assert intervals["exact"]["seconds"] == pytest.approx(1118.51, abs=0.005)
    assert intervals["exact"]["waste"] <= intervals["young"]["waste"] < 0.07
    by_name = {row["name"]: row for row in found.document["strategies"]}
    assert by_name["sync full"]["cost"] == 400.0
    assert set(by_name) == {"sync full", "async full", "async incremental"}


def test_hosts_stage_their_parts_at_once(durable: Durable) -> None:
    plan = ("plan", "--state-bytes", 8 * TERABYTE, "--bandwidth", "20e9", "--json")
    assert durable(*plan, "--hosts", 100).document["cost_seconds"] == 16.0
    assert durable(*plan).document["cost_seconds"] == 1600.0


def test_for_people_it_is_two_tables(durable: Durable) -> None:
    out = durable("plan", "--state-bytes", 10**9, "--bandwidth", "1e9").out
    assert "save every" in out and "sync full" in out and "exact" in out


def test_a_cost_beyond_the_model_fails_the_check(durable: Durable) -> None:
    found = durable("plan", "--state-bytes", 10**9, "--bandwidth", "1e9", "--mtbf", 60, "--cost", 30)
    assert found.code == 1 and "MODEL INVALID" in found.out


@pytest.mark.parametrize(
    "bad",
    [
        ("--bandwidth", "0"), ("--mtbf", "-1"), ("--changed", "0"), ("--changed", "1.5"), ("--cost", "0"),
        ("--hosts", "0"), ("--state-bytes", "0"),
    ],
)  # fmt: skip
def test_figures_that_make_no_sense_are_usage(durable: Durable, bad: tuple[str, str]) -> None:
    assert durable("plan", "--state-bytes", 10**9, "--bandwidth", "1e9", *bad).code == 2
    assert durable("plan", "--json").document["error"]["exit_code"] == 2


def test_planning_needs_no_torch() -> None:
    code = (
        "import sys; from durable_core.cli.app import run; "
        "code = run(['plan', '--state-bytes', '8', '--bandwidth', '2']); "
        "sys.exit(3 if 'torch' in sys.modules else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_size_may_have_a_unit_and_every_row_a_name(durable: Durable) -> None:
    plan = ("plan", "--bandwidth", "1e9", "--state-bytes")
    assert durable(*plan, "8GiB", "--json").document == durable(*plan, 8 * 2**30, "--json").document
    assert "as given" in durable(*plan, "8GiB").out
