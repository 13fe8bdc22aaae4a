"""Sixty damaged files in every test run; ``python -m tests.torture.bitflip`` does a thousand."""

from __future__ import annotations

from pathlib import Path

from tests.torture.bitflip import campaign, damage, files_of_newest, make_run, random, same, state_at


def test_every_flip_is_found_and_none_is_restored(tmp_path: Path) -> None:
    tally = campaign(60, seed=7, home=tmp_path)
    assert tally.faults == []
    assert (tally.trials, tally.detected) == (60, 60)
    assert tally.restored == {"newest": 36, "the one before": 24}


def test_the_campaign_itself_changes_what_it_says(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    for path in files_of_newest(tmp_path / "run").values():
        before = path.read_bytes()
        damage(path, random.Random(1))
        assert path.read_bytes() != before
    assert not same(state_at(2)["w"], state_at(4)["w"])
