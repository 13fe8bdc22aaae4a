"""A restart with another number of processes: the samples of each step stay, and the journal says it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from elastic_writer import main
from test_two_writers import Meeting

from durable_core.engine.audit import audit
from durable_core.engine.inspect import open_run
from durable_core.errors import SpecMismatchError, UnsupportedError
from durable_core.session import Run, Settings, World
from durable_core.spec import RunSpec
from durable_core.types import CheckpointState, Promise
from tests.lives import all_ended, start

Line = dict[str, Any]


def life(
    home: Path, steps: int, world: int, *, fails: bool = False, **told: Any
) -> tuple[list[list[Line]], str]:
    """One life of ``world`` processes up to ``steps``: the lines of each, and what they said."""
    place = home / f"life{len(list(home.glob('life*')))}"
    place.mkdir()
    defaults = {
        "accumulate": 1, "promise": "exact-order", "resume": "auto", "from_first": [], "normed": False
    }  # fmt: skip
    common = {"root": str(home / "run"), "store": str(place / "store"), "world": world, "steps": steps}
    logs = [place / f"{rank}.log" for rank in range(world)]
    pids = []
    for rank, log in enumerate(logs):
        log.touch()
        member = {**defaults, **common, "rank": rank, "log": str(log), **told}
        pids.append(start(place, partial(main, member)))
    codes = all_ended(pids)
    said = (place / "output").read_text()
    assert all(codes) if fails else not any(codes), said
    lines = [[json.loads(text) for text in log.read_text().splitlines()] for log in logs]
    return lines, said


def steps_of(lives: list[list[list[Line]]]) -> dict[int, tuple[list[int], float]]:
    """Step -> the ids of all its processes together, sorted, and its loss."""
    found: dict[int, tuple[list[int], float]] = {}
    for ranks in lives:
        for line in (line for line in ranks[0] if "step" in line):
            same = [other for rank in ranks for other in rank if other.get("step") == line["step"]]
            assert line["step"] not in found
            found[line["step"]] = (sorted(i for other in same for i in other["ids"]), line["loss"])
    return found


def reasons(home: Path, kind: str) -> list[str]:
    return [e.record.payload["reason"] for e in open_run(home / "run").entries() if e.record.kind == kind]


def test_one_two_one_processes_are_one_order(tmp_path: Path) -> None:
    """6 steps are an epoch, the last is short: changes in the first one, in the second, and at its end."""
    whole, changed = tmp_path / "whole", tmp_path / "changed"
    whole.mkdir(), changed.mkdir()
    expected = steps_of([life(whole, 18, 1)[0]])
    worlds = [(3, 1, 1), (7, 2, 1), (12, 1, 2), (15, 2, 1), (18, 2, 2)]
    lives = []
    for steps, world, accumulate in worlds:
        lines, _ = life(changed, steps, world, accumulate=accumulate)
        lives.append(lines)
    assert [ranks[0][0]["start"] for ranks in lives] == [0, 3, 7, 12, 15]
    found = steps_of(lives)
    assert {step: ids for step, (ids, _) in found.items()} == {k: ids for k, (ids, _) in expected.items()}
    assert [loss for _, loss in found.values()] == pytest.approx(
        [loss for _, loss in expected.values()], rel=1e-4
    )
    report = audit(open_run(changed / "run"))
    assert report.sound, report.to_json()
    assert (report.consumption.repeated, report.consumption.skipped) == (0, 0)
    assert report.consumption.ids_checked and report.consumption.samples == 3 * 44
    assert "saved by dp0, restored by dp0, dp1" in reasons(changed, "generation.started")[1]
    assert "saved by dp0, dp1, restored by dp0" in reasons(changed, "generation.started")[2]
    assert open_run(changed / "run").state.promise is Promise.EXACT_ORDER


def test_a_new_replica_draws_from_streams_of_its_own_the_same_at_every_try(tmp_path: Path) -> None:
    life(tmp_path, 3, 1)
    tries = [life(tmp_path, 3, 2)[0] for _ in range(2)]
    first, second = ([ranks[k][0]["stream"] for ranks in tries] for k in (0, 1))
    assert first[0] == first[1] == life(tmp_path, 3, 1)[0][0][0]["stream"]  # dp0 goes on with its own
    assert second[0] == second[1] != first[0]


def test_bits_are_promised_for_the_same_replicas_only(tmp_path: Path) -> None:
    life(tmp_path, 3, 1, promise=None)
    said = life(tmp_path, 6, 2, promise=None, fails=True)[1]
    assert "roles" in said and 'go on with promise="exact-order"' in said
    said = life(tmp_path, 6, 2, promise="bitwise", resume="fork", fails=True)[1]
    assert "bitwise cannot be kept: roles was 'dp0' and is 'dp0, dp1'" in said
    state = open_run(tmp_path / "run").state
    assert state.promise is Promise.BITWISE and state.commits == 4
    assert not any(info.state is CheckpointState.CORRUPT for info in state.checkpoints.values())
    life(tmp_path, 6, 2)
    (reason,) = reasons(tmp_path, "promise.lowered")
    assert reason == "roles was 'dp0' and is 'dp0, dp1'"
    assert not open_run(tmp_path / "run").state.forks
    assert audit(open_run(tmp_path / "run")).sound


def test_what_differed_between_the_replicas_is_named_and_needs_a_word(tmp_path: Path) -> None:
    life(tmp_path, 3, 2, normed=True)
    said = life(tmp_path, 6, 1, normed=True, fails=True)[1]
    assert "no place there: model/1.running_mean, model/1.running_var" in said
    assert "from_first=('model/1.running_mean', ...)" in said
    reader = open_run(tmp_path / "run")
    assert reader.newest_usable().step == 3  # nothing is held against the checkpoint
    said = life(tmp_path, 6, 1, normed=True, from_first=["model/1.running_*"])[1]
    assert "goes on with dp0; of dp0 alone: model/1.running_mean, model/1.running_var" in said


# --- one process, two writers in threads -------------------------------------------------------


def saved(root: Path, state: Any, cursor: Any = None) -> None:
    """By two writers; both arguments are functions of the rank."""

    def member(world: World) -> None:
        rank = world.roles.index(world.role)
        run = Run.open(root, world=world, settings=Settings(promise=Promise.EXACT_ORDER))
        run.confirm()
        run.save(state(rank), {}, step=0, cursor=None if cursor is None else cursor(rank), wait=True)
        run.close()

    Meeting(2).all(member)


def alone(root: Path, **changes: Any) -> Run:
    settings = Settings(promise=Promise.EXACT_ORDER, takeover=True, **changes)
    return Run.open(root, settings=settings, spec=RunSpec(promise=Promise.EXACT_ORDER))


def test_plain_values_that_differ_are_named_too(tmp_path: Path) -> None:
    saved(tmp_path, lambda rank: {"same": 1, "deep": {"n": [0, rank]}, "tuple": (rank,), 5: {"x": rank}})
    run = alone(tmp_path)
    with pytest.raises(SpecMismatchError) as caught:
        run.load()
    assert caught.value.fields == ("5/x", "deep/n/1", "tuple/0")
    run.close()
    run = alone(tmp_path, from_first=("*",))
    assert run.load().state == {"same": 1, "deep": {"n": [0, 0]}, "tuple": (0,), 5: {"x": 0}}
    run.close()


def test_a_position_in_a_stream_belongs_to_its_replica(tmp_path: Path) -> None:
    saved(tmp_path, lambda rank: {}, lambda rank: {"epoch": 0, "source": {"workers": 1, "state": rank}})
    run = alone(tmp_path)
    with pytest.raises(UnsupportedError, match="each had a position of their own in a stream"):
        run.load()
    run.close()
