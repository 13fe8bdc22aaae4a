"""The quick drills, played as `durable drill` plays them, and one with its defence switched off."""

from __future__ import annotations

from pathlib import Path

import pytest

from durable_core.testing.drills.play import Controls, play
from durable_core.testing.drills.scenarios import SCENARIOS, SHORT

pytestmark = pytest.mark.xdist_group("drills")  # one undisturbed run is enough for all


@pytest.fixture(scope="module")
def controls(tmp_path_factory: pytest.TempPathFactory) -> Controls:
    return Controls(tmp_path_factory.mktemp("controls"))


@pytest.mark.parametrize("name", SHORT)
def test_the_run_goes_on_as_the_same_run(tmp_path: Path, controls: Controls, name: str) -> None:
    (played,) = play((SCENARIOS[name],), tmp_path, controls=controls)
    assert played.passed, f"{played.faults} {played.error}"
    assert played.measured.rto_s is not None and played.measured.rpo_steps is not None


@pytest.mark.parametrize("name", ["launcher-kill"])
def test_without_its_defence_a_drill_fails_by_the_check_that_is_about_it(
    tmp_path: Path, controls: Controls, name: str
) -> None:
    (played,) = play((SCENARIOS[name],), tmp_path, defended=False, controls=controls)
    assert played.passed, f"{played.faults} {played.error}"
    assert [found.partition(":")[0] for found in played.found] == ["no orphans"]
