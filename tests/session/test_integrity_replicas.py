"""A bit that flips in one of several real processes: found by what can see it, within its period, and by
nothing else; and the run that went back is the one that was never hit."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from integrity_replica import main

from durable_core.cli.checks import verify
from durable_core.engine.inspect import open_run
from tests import lives

STEPS, PERIOD, HIT = 12, 3, 8
REPLICAS = {"replicas_every": PERIOD}


def life(home: Path, *, world: int = 2, flip: Any = None, root: str = "run", **integrity: Any) -> list[int]:
    """Exit codes by rank."""
    place = home / f"life{len(list(home.glob('life*')))}"
    place.mkdir()
    told = {
        "root": str(home / root), "store": str(place / "store"), "flip": flip,
        "world": world, "steps": STEPS, "integrity": integrity,
    }  # fmt: skip
    pids = [
        lives.start(
            place, partial(main, {**told, "rank": rank, "weights": str(home / f"{root}.{rank}.json")})
        )
        for rank in range(world)
    ]
    codes = lives.all_ended(pids)
    assert set(codes) <= {0, 77}, (place / "output").read_text()
    return codes


def weights(home: Path, root: str = "run", rank: int = 0) -> Any:
    return json.loads((home / f"{root}.{rank}.json").read_text())


def failures(home: Path) -> list[dict[str, Any]]:
    return [dict(line.payload) for line in open_run(home / "run").state.failures]


def test_a_flipped_gradient_on_one_rank_is_found_by_the_replicas_and_by_nothing_else(tmp_path: Path) -> None:
    """SDC-01: it is in checkpoints all of whose checksums are right."""
    assert life(tmp_path, flip=["gradient", 1, HIT], **REPLICAS) == [0, 0]
    (line,) = failures(tmp_path)
    assert (line["class"], line["signature"], line["step"]) == ("F13", "replica-divergence", 7)
    evidence = line["evidence"]
    assert HIT <= evidence["found"] < HIT + PERIOD
    assert evidence["suspects"] == [] and "cannot be told" in evidence["reason"]
    assert "model/0.weight" in evidence["reason"]
    assert weights(tmp_path, rank=0) != weights(tmp_path, rank=1)
    reader = open_run(tmp_path / "run")
    assert reader.newest_usable().step == STEPS, "it was saved, faithfully"
    assert verify(str(tmp_path / "run"), None).exit_code == 0
    good = [info.step for info in reader.state.checkpoints.values() if info.known_good]
    assert good and max(good) < HIT


def test_without_that_detector_nobody_sees_it(tmp_path: Path) -> None:
    """The negative control."""
    assert life(tmp_path, flip=["gradient", 1, HIT]) == [0, 0]
    assert failures(tmp_path) == []
    assert weights(tmp_path, rank=0) != weights(tmp_path, rank=1)


def test_of_three_the_one_that_was_hit_is_named(tmp_path: Path) -> None:
    assert life(tmp_path, world=3, flip=["gradient", 2, HIT], **REPLICAS) == [0, 0, 0]
    (line,) = failures(tmp_path)
    assert line["evidence"]["suspects"] == ["dp2"]


@pytest.mark.parametrize(
    ("world", "flip", "detector"),
    [
        (2, ["gradient", 1, HIT], {"replicas_every": PERIOD}),
        (1, ["computing", 0, 9], {"recompute_every": PERIOD}),
    ],
    ids=["replicas", "recompute"],
)
def test_a_run_that_was_hit_goes_back_and_ends_as_the_one_that_never_was(
    world: int, flip: list[Any], detector: dict[str, int], tmp_path: Path
) -> None:
    """SDC-02: flipped at step s, found at s + k, restored from a known-good checkpoint before; the same
    bits."""
    assert life(tmp_path, world=world, root="control", **detector) == [0] * world
    control = open_run(tmp_path / "control").state
    assert not control.failures
    good = [info for info in control.checkpoints.values() if info.known_good]
    judges = {each["name"] for each in good[-1].evidence["detectors"]}
    assert judges == {
        "non-finite",
        "spike:loss",
        "spike:grad_norm",
        next(iter(detector)).removesuffix("_every"),
    }

    assert life(tmp_path, world=world, flip=flip, on_numeric="stop", **detector) == [77] * world
    (line,) = open_run(tmp_path / "run").state.failures
    assert line.payload["class"] == "F13" and line.payload["step"] <= flip[2]
    assert line.payload["evidence"]["found"] < flip[2] + PERIOD

    assert life(tmp_path, world=world, on_numeric="stop", **detector) == [0] * world
    state = open_run(tmp_path / "run").state
    point = state.checkpoints[state.restore_point]
    assert point.known_good and point.step < line.payload["step"]
    assert point.step >= flip[2] - 2 * PERIOD, "one window and one interval, and no further"
    assert (state.generation, len(state.failures)) == (2, 1)
    for rank in range(world):
        assert weights(tmp_path, "run", rank) == weights(tmp_path, "control", rank)
