"""A stopped writer wakes up when others have gone on without it: no tier takes anything from it any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.session.zombie_tiers import haunt, places


@pytest.mark.parametrize("point", ["K4", "K5", "K6", "K12"])
def test_nothing_that_a_stopped_writer_does_afterwards_counts_in_any_tier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    with places(tmp_path, monkeypatch):
        haunt(str(tmp_path / "root"), tmp_path, point)
