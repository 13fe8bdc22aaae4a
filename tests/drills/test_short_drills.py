"""The quick drills, played as `durable drill` plays them, and one with its defence switched off."""

from __future__ import annotations

from pathlib import Path

import pytest

from durable_core.testing.drills.play import Played, play
from durable_core.testing.drills.scenarios import SCENARIOS, SHORT


def test_the_run_goes_on_as_the_same_run(tmp_path: Path) -> None:
    """Each after the other, against one undisturbed run."""
    played = {each.scenario: each for each in play((SCENARIOS[name] for name in SHORT), tmp_path)}
    assert list(played) == list(SHORT)
    assert {name: each.faults for name, each in played.items() if not each.passed} == {}
    restarted: list[Played] = [each for each in played.values() if each.measured.rto_s is not None]
    assert len(restarted) == len(SHORT), "what was restarted was measured"


@pytest.mark.parametrize("name", ["launcher-kill"])
def test_without_its_defence_a_drill_fails_by_the_check_that_is_about_it(tmp_path: Path, name: str) -> None:
    (played,) = play((SCENARIOS[name],), tmp_path, defended=False)
    assert played.passed, f"{played.faults} {played.error}"
    assert [found.partition(":")[0] for found in played.found] == ["no orphans"]
