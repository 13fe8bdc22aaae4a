"""A disk in front of the root: commits land on it, the root gets its copy, either alone restores the run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from session_helpers import check, start, state_at

from durable_core import Disk, Goal, Memory, Tiers, events
from durable_core.clock import SystemClock
from durable_core.commit.retention import Retention
from durable_core.engine.inspect import open_run
from durable_core.engine.verify import verify
from durable_core.errors import CommitAborted, UsageError
from durable_core.session import Cadence, Run
from durable_core.session import run as session_run
from durable_core.session.copying import Copier
from durable_core.session.saving import Due
from durable_core.tier.limit import RateLimit, RateLimited
from durable_core.tier.posix import PosixTier

SIZE = 4096


def tiers_of(base: Path) -> Tiers:
    return Tiers(disk=Disk(base / "disk"))


def trained(base: Path, last: int, **settings: object) -> Run:
    run = start(base / "root", tiers=tiers_of(base), **settings)
    for step in range(1, last + 1):
        run.boundary(step)
        run.save(state_at(step, SIZE), {}, step=step, wait=True)
    return run


def reopened(base: Path) -> tuple[Run, dict[str, int], list[events.Event]]:
    """A new generation: the run, the bytes it restored from each tier, and all that it told."""
    told: list[events.Event] = []
    run = Run.open(base / "root", settings=start_settings(base))
    run.board.listeners.append(told.append)
    loaded = run.load()
    check(loaded.step, loaded.state)
    done = next(event for event in told if isinstance(event, events.RestoreDone))
    return run, dict(done.sources), told


def start_settings(base: Path):
    from durable_core.session import Settings

    return Settings(takeover=True, tiers=tiers_of(base))


def shards(place: Path) -> set[str]:
    found = (path.relative_to(place) for path in place.rglob("*.safetensors"))
    return {str(path) for path in found if path.parts[0] == "checkpoints"}


def test_commits_land_on_the_disk_and_the_root_gets_its_copy(tmp_path: Path) -> None:
    run = trained(tmp_path, 3)
    run.flush()
    run.close()
    reader = open_run(tmp_path / "root")
    origin, newest = reader.state.checkpoints[0], reader.state.checkpoints[3]
    assert origin.tiers == ("remote",)  # the origin of the run lies where the run lies
    assert newest.tiers == ("disk", "remote")
    named = {each.key for each in reader.manifest(newest).objects}
    assert named <= shards(tmp_path / "root") and named & shards(tmp_path / "disk")
    assert not verify(open_run(tmp_path / "root")).findings
    run, sources, _ = reopened(tmp_path)
    assert list(sources) == ["disk"]
    run.close()


@pytest.mark.parametrize("front", [True, False], ids=["disk in front", "root alone"])
def test_an_adopted_checkpoint_is_named_by_where_it_lies_and_copied_to_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, front: bool
) -> None:
    """Though the run ends with it: nothing else is ever committed. The root is none of this host's."""
    far = RateLimited(PosixTier(tmp_path / "root"), RateLimit(1e12, SystemClock()))
    monkeypatch.setattr(session_run, "open_tier", lambda root: far)
    memory = Memory(every_n_steps=1, directory=tmp_path)
    tiers = replace(tiers_of(tmp_path), memory=memory) if front else Tiers(memory=memory)
    run = start(tmp_path / "root", tiers=tiers, cadence=Cadence(1000))
    run.boundary(1)
    run.save(state_at(1, SIZE), {}, step=1, due=Due(checkpoint=False))
    run.settle()  # sealed, and that is all that its process does
    successor = start(tmp_path / "root", tiers=tiers, takeover=True)
    assert successor.restored_from == (1, 1)
    successor.succeed()
    expected = ("disk", "remote") if front else ("remote",)
    assert open_run(tmp_path / "root").state.checkpoints[1].tiers == expected
    assert not verify(open_run(tmp_path / "root")).findings
    successor.close()
    run._stores.pool.close(remove=True)


def test_what_a_writer_died_before_copying_is_copied_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(Copier, "_promote", lambda *_: (_ for _ in ()).throw(UnreachableTier()))
        run = trained(tmp_path, 2)
        run.close()
    assert open_run(tmp_path / "root").state.checkpoints[2].tiers == ("disk",)
    run, _, _ = reopened(tmp_path)
    run.confirm()
    run.flush()
    assert open_run(tmp_path / "root").state.checkpoints[2].tiers == ("disk", "remote")
    run.close()


def test_a_lost_disk_costs_nothing_that_was_copied(tmp_path: Path) -> None:
    run = trained(tmp_path, 3)
    run.flush()
    run.close()
    shutil.rmtree(tmp_path / "disk")
    run, sources, told = reopened(tmp_path)
    assert run.restored_from == (3, 3) and list(sources) == ["remote"]
    assert not [event for event in told if isinstance(event, events.CopyDamaged)]  # absent, not damaged
    run.confirm()
    run.boundary(4)
    run.save(state_at(4, SIZE), {}, step=4, wait=True)  # the parent's objects are in the root only
    run.flush()
    run.close()
    assert not verify(open_run(tmp_path / "root")).findings


def test_a_damaged_object_is_served_by_the_other_copy_and_mended(tmp_path: Path) -> None:
    run = trained(tmp_path, 2)
    run.flush()
    run.close()
    victim = max((tmp_path / "disk").rglob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
    whole = victim.read_bytes()
    victim.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    run, _, told = reopened(tmp_path)
    assert run.restored_from == (2, 2)
    damaged = [event for event in told if isinstance(event, events.CopyDamaged)]
    assert [event.place for event in damaged] == ["disk"]
    run.confirm()
    run.flush()
    assert [event.done for event in told if isinstance(event, events.CopyRepaired)] == [True]
    assert victim.read_bytes() == whole
    run.close()


def test_what_the_root_does_not_have_yet_is_not_let_go_of(tmp_path: Path, monkeypatch) -> None:
    """The copies fail: the newest checkpoint that is in the root stays, whatever is kept otherwise."""
    run = trained(tmp_path, 1, retention=Retention(keep_last=1))
    run.flush()
    monkeypatch.setattr(Copier, "_promote", lambda *_: (_ for _ in ()).throw(UnreachableTier()))
    told: list[events.Event] = []
    run.board.listeners.append(told.append)
    for step in range(2, 6):
        run.boundary(step)
        run.save(state_at(step, SIZE), {}, step=step, wait=True)
    run.flush()
    assert any(isinstance(event, events.CopyFailed) for event in told)
    run.close()
    shutil.rmtree(tmp_path / "disk")
    monkeypatch.undo()
    run, _, _ = reopened(tmp_path)
    assert run.restored_from == (1, 1)
    run.close()


class UnreachableTier(Exception):
    def __new__(cls):
        from durable_core.errors import TierUnavailable

        return TierUnavailable("the root cannot be reached")


def test_a_goal_that_no_tier_can_meet_is_refused_with_the_arithmetic(tmp_path: Path) -> None:
    tiers = Tiers(memory=Memory(every_n_steps=1, directory=tmp_path), goals=(Goal("host", rpo_steps=10),))
    with pytest.raises(UsageError, match="journal is in disk"):
        start(tmp_path / "root", tiers=tiers)


def test_a_disk_cannot_be_put_in_front_of_a_run_that_has_begun_without(tmp_path: Path) -> None:
    run = start(tmp_path / "root")
    run.close()
    with pytest.raises(UsageError, match="began without a disk"):
        Run.open(tmp_path / "root", settings=start_settings(tmp_path))


def test_a_run_may_go_on_without_the_disk_in_front(tmp_path: Path) -> None:
    run = trained(tmp_path, 2)
    run.flush()
    run.close()
    run = start(tmp_path / "root", takeover=True)
    assert run.restored_from == (2, 2)
    run.save(state_at(3, SIZE), {}, step=3, wait=True)
    run.close()
    assert open_run(tmp_path / "root").newest_usable().tiers == ("remote",)


def test_a_run_has_not_succeeded_before_its_end_is_in_the_root(tmp_path: Path, monkeypatch) -> None:
    from durable_core.errors import TierUnavailable
    from durable_core.session.copying import Copier

    run = trained(tmp_path, 2)
    with monkeypatch.context() as broken:
        broken.setattr(Copier, "_promote", lambda *_: (_ for _ in ()).throw(UnreachableTier()))
        run.boundary(3)
        run.save(state_at(3, SIZE), {}, step=3, wait=True)
        with pytest.raises(TierUnavailable, match="not in the root yet"):
            run.succeed()
    assert open_run(tmp_path / "root").state.terminal is None
    run.succeed()
    run.close()
    shutil.rmtree(tmp_path / "disk")
    reader = open_run(tmp_path / "root")  # of the end alone: older ones need no copy once there is a newer
    assert not verify(reader, reader.state.head, strict=True).findings


def test_who_waits_for_a_checkpoint_is_told_when_there_is_none(tmp_path: Path, monkeypatch) -> None:
    run = start(tmp_path / "root")
    monkeypatch.setattr(run._saver.snapshots, "acquire", lambda *_, **__: (None, True))
    assert run.save(state_at(1), {}, step=1) is False
    with pytest.raises(CommitAborted, match="every slot is in use"):
        run.save(state_at(1), {}, step=1, wait=True)
    run.close()
