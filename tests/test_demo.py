"""The demo on a short run: the example, killed inside a save and damaged, ends in the same bits."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tools import demo


@pytest.mark.timeout(240)
def test_the_example_killed_and_damaged_is_the_uninterrupted_run(tmp_path: Path) -> None:
    def run(name: str) -> demo.Run:
        return demo.Run(name, tmp_path, steps=20, every=4)

    reference = demo.uninterrupted(run("uninterrupted"))
    damaged = demo.damaged(run("damaged"), demo.flip, random.Random(3))
    assert demo.same(damaged, reference)
    assert demo.exact(damaged)
    assert damaged.found
    assert damaged.kills == ["K15"]
    assert damaged.restore_s
    assert damaged.audit["samples"] == reference.audit["samples"] == 20 * 8
    assert not damaged.audit["unverified"]


def outcome(**result: object) -> demo.Outcome:
    figures = {"weights": "w", "optimizer": "o", "step": 3, "samples": 24, **result}
    return demo.Outcome("run", result=figures, audit={"repeated": 0, "skipped": 0})


@pytest.mark.parametrize("change", [{"weights": "v"}, {"optimizer": "p"}, {"step": 4}, {"samples": 23}])
def test_any_difference_is_told(change: dict[str, object]) -> None:
    assert demo.same(outcome(), outcome())
    assert not demo.same(outcome(**change), outcome())
    assert "NO" in demo.verdict(outcome(**change), outcome())


@pytest.mark.parametrize("audit", [{"repeated": 1, "skipped": 0}, {"repeated": 0, "skipped": 1}])
def test_a_repeat_or_a_skip_is_told(audit: dict[str, int]) -> None:
    assert demo.exact(outcome())
    assert not demo.exact(demo.Outcome("run", audit=audit))


def test_damage_that_nobody_found_is_told() -> None:
    assert not demo.exact(demo.Outcome("run", audit={"repeated": 0, "skipped": 0}, found=False))
