"""One process's part in a run: starting, restoring, stepping down, being refused."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest
from session_helpers import check, restored, start, state_at, train

from durable_core import errors, events
from durable_core.clock import SystemClock
from durable_core.commit.retention import Retention
from durable_core.engine import heartbeat
from durable_core.engine.inspect import open_run
from durable_core.format import canonical, layout
from durable_core.session import Run, Settings
from durable_core.session.opening import Coordinator
from durable_core.spec import ModelSpec, RunSpec, Target
from durable_core.tier.posix import PosixTier


def shards(root: Path) -> list[Path]:
    """Shard files, oldest checkpoint first."""
    return sorted(
        root.glob("checkpoints/*/shard-*.safetensors"), key=lambda path: path.parent.name.split("-c")[1]
    )


def flip(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_new_process_continues_from_the_newest_commit(tmp_path: Path) -> None:
    run = start(tmp_path)
    assert (run.fresh, run.generation) == (True, 1)
    train(run, 1, 3)
    run.close()
    again = Run.open(tmp_path)
    assert (again.fresh, again.generation, again.restored_from) == (False, 2, (3, 3))
    loaded = again.load()
    check(3, loaded.state)
    again.confirm()
    again.close()


def test_nothing_steps_before_the_restore_is_confirmed(tmp_path: Path) -> None:
    start(tmp_path).close()
    run = Run.open(tmp_path)
    with pytest.raises(errors.RestoreError, match="start over"):
        run.confirm()
    with pytest.raises(errors.UsageError, match="confirm"):
        run.save(state_at(1), {}, step=1)
    run.close()


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "header"])
def test_a_damaged_newest_checkpoint_steps_down_and_is_journaled(tmp_path: Path, damage: str) -> None:
    run = start(tmp_path)
    train(run, 1, 2)
    run.close()
    newest = shards(tmp_path)[-1]
    if damage == "flip":
        flip(newest)
    elif damage == "header":
        flip(newest, 20)
    elif damage == "truncate":
        newest.write_bytes(newest.read_bytes()[:-1])
    else:
        newest.unlink()
    after = Run.open(tmp_path)
    loaded = after.load()
    check(1, loaded.state)
    assert (after.generation, after.restored_from) == (3, (1, 1))
    after.confirm()
    # the lineage goes on from there, and step 2 is committed anew
    train(after, 2, 2)
    after.close()
    step, state = restored(tmp_path)
    check(2, state)
    assert step == 2


def test_a_damaged_manifest_steps_down(tmp_path: Path) -> None:
    run = start(tmp_path)
    train(run, 1, 1)
    run.close()
    manifest = sorted(tmp_path.glob("checkpoints/*c00000001*/manifest.json"))[0]
    flip(manifest, 50)
    step, state = restored(tmp_path)
    check(0, state)
    assert step == 0


def test_when_everything_is_damaged_it_never_starts_over(tmp_path: Path) -> None:
    run = start(tmp_path)
    train(run, 1, 1)
    run.close()
    for path in shards(tmp_path):
        flip(path)
    with pytest.raises(errors.NoUsableCheckpoint):
        Run.open(tmp_path).load()
    with pytest.raises(errors.NoUsableCheckpoint):
        Run.open(tmp_path, settings=Settings(takeover=True))


def test_resume_modes(tmp_path: Path) -> None:
    with pytest.raises(errors.RunNotFoundError, match="must"):
        Run.open(tmp_path, settings=Settings(resume="must"))
    start(tmp_path).close()
    with pytest.raises(errors.UsageError, match="never"):
        Run.open(tmp_path, settings=Settings(resume="never"))
    run = start(tmp_path, resume="must")
    assert run.restored_from == (0, 0)
    run.close()


def test_the_same_launch_started_twice_does_not_fence_itself_before_a_root_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its launchers know of no root yet, so nothing was claimed for these workers."""
    monkeypatch.setenv("DURABLE_LAUNCH_ID", "job")
    start(tmp_path).close()
    with subprocess.Popen(["sleep", "600"]) as other:
        tier = PosixTier(tmp_path)

        def beat(*_: object) -> None:
            now, began = SystemClock().now(), heartbeat.process_start(other.pid)
            fields = (socket.gethostname(), heartbeat.boot_id(), other.pid, began or 0, now, [])
            owner = heartbeat.Owner("durable_launch_id:job", 1, *fields)
            tier.put(layout.OWNER_HINT, canonical.dumps(vars(owner)))

        try:
            beat()
            with pytest.raises(errors.RunBusy, match="owns the run"):
                Run.open(tmp_path)  # of the same job, and healthy
            monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
            start(tmp_path).close()  # an orphan of a supervisor that is gone, for all that is known
            beat()
            monkeypatch.setenv("DURABLE_ATTEMPT", "job/1")
            monkeypatch.setattr("durable_core.session.run.follow", lambda: None)
            start(tmp_path).close()  # what we have started ourselves
            beat()
            monkeypatch.setattr("durable_core.session.opening._kin", lambda: frozenset({os.getpid() + 1}))
            monkeypatch.setattr(SystemClock, "sleep", beat)  # instead: it beats again and again
            with pytest.raises(errors.RunBusy, match="owns the run"):
                Run.open(tmp_path)
        finally:
            other.kill()


def test_a_live_run_is_not_started_twice_unless_it_is_taken_over(tmp_path: Path) -> None:
    first = start(tmp_path)
    with pytest.raises(errors.RunBusy, match="takeover"):
        Run.open(tmp_path)
    second = start(tmp_path, takeover=True)
    assert second.generation == 2
    train(second, 1, 1)
    with pytest.raises(errors.FencedError):
        train(first, 1, 1)
    with pytest.raises(errors.FencedError):
        first.boundary(2)
    train(second, 2, 2)
    second.close()
    first.close()
    step, state = restored(tmp_path)
    assert step == 2
    check(2, state)


def test_a_fenced_launch_restarted_by_an_unaware_supervisor_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DURABLE_LAUNCH_ID", "job-1")
    first = start(tmp_path)
    monkeypatch.setenv("DURABLE_LAUNCH_ID", "job-2")
    second = start(tmp_path, takeover=True)
    second.close()
    monkeypatch.setenv("DURABLE_LAUNCH_ID", "job-1")
    with pytest.raises(errors.Superseded, match="took the run over"):
        Run.open(tmp_path)
    first.close()
    taken = start(tmp_path, takeover=True)
    taken.close()


def test_a_run_that_succeeds_while_a_start_waits_for_it_has_succeeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start(tmp_path)
    train(first, 1, 2)

    def wait(coordinator: Coordinator) -> None:
        first.succeed({"steps": 2})
        first.close()
        monkeypatch.undo()

    monkeypatch.setattr(Coordinator, "_refuse_live_owner", wait)
    again = Run.open(tmp_path)
    assert (again.completed, again.generation) == (True, 1)
    again.close()


def test_a_finished_run_is_opened_for_reading(tmp_path: Path) -> None:
    run = start(tmp_path)
    train(run, 1, 2)
    run.succeed({"steps": 2})
    run.close()
    again = Run.open(tmp_path)
    assert (again.completed, again.generation) == (True, 1)
    check(2, again.load().state)
    again.confirm()
    with pytest.raises(errors.UsageError, match="reading only"):
        again.save(state_at(3), {}, step=3)
    again.close()


def test_a_larger_target_extends_a_finished_run(tmp_path: Path) -> None:
    run = start(tmp_path, spec=RunSpec(target=Target(max_steps=2)))
    train(run, 1, 2)
    run.succeed({"max_steps": 2})
    run.close()
    again = start(tmp_path, spec=RunSpec(target=Target(max_steps=4)))
    assert (again.completed, again.restored_from) == (False, (2, 2))
    assert any("target" in line for line in again.warnings)
    train(again, 3, 4)
    again.close()
    assert (
        restored(
            tmp_path,
        )[0]
        == 4
    )


def test_a_run_without_an_end_is_given_one(tmp_path: Path) -> None:
    def ends(step: int | None) -> RunSpec:
        return RunSpec(target=Target(max_steps=step))

    run = start(tmp_path, spec=ends(None))
    train(run, 1, 3)
    run.close()
    with pytest.raises(errors.SpecMismatchError, match="the run is at step 3 already"):
        Run.open(tmp_path, spec=ends(2))
    again = start(tmp_path, spec=ends(5))
    assert any("None -> 5" in line for line in again.warnings)
    train(again, 4, 5)
    again.succeed({"max_steps": 5})
    again.close()
    for step in (5, None, 6):  # there already; nothing was recorded of an end, so none is dropped; on
        last = start(tmp_path, spec=ends(step))
        assert (last.completed, last.restored_from[1]) == (step != 6, 5)
        last.close()


def test_another_model_is_refused_or_forked(tmp_path: Path) -> None:
    start(tmp_path, spec=RunSpec(model=ModelSpec(cls="A"))).close()
    with pytest.raises(errors.SpecMismatchError, match=r"model\.cls") as caught:
        Run.open(tmp_path, spec=RunSpec(model=ModelSpec(cls="B")))
    assert caught.value.fields == ("model.cls",)
    fork = start(tmp_path, resume="fork", spec=RunSpec(model=ModelSpec(cls="B")))
    train(fork, 1, 1)
    fork.close()
    # a restart of the fork goes on with it
    again = start(tmp_path, resume="fork", spec=RunSpec(model=ModelSpec(cls="B")))
    assert again.restored_from == (1, 1)
    again.close()
    assert len(open_run(tmp_path).state.forks) == 1


def test_a_foreign_checkpoint_beside_a_history_is_refused_or_forked(tmp_path: Path) -> None:
    start(tmp_path).close()
    with pytest.raises(errors.UsageError, match="history of its own"):
        Run.open(tmp_path, external="other.ckpt")
    fork = Run.open(tmp_path, settings=Settings(resume="fork"), external="other.ckpt")
    assert fork.fresh
    fork.confirm()
    fork.save(state_at(7), {}, step=7, wait=True)
    fork.close()
    again = Run.open(tmp_path, settings=Settings(resume="fork"), external="other.ckpt")
    assert again.restored_from is not None and again.restored_from[1] == 7
    again.close()


def test_retention_keeps_what_is_declared(tmp_path: Path) -> None:
    run = start(tmp_path, retention=Retention(keep_last=2, keep_every_n_steps=4))
    train(run, 1, 10)
    run.flush()
    run.close()
    steps = {int(path.parent.name.split("-")[1][1:]) for path in shards(tmp_path)}
    assert steps == {0, 4, 8, 9, 10}
    step, _ = restored(tmp_path)
    assert step == 10


def test_replayed_steps_are_compared_with_their_first_execution(tmp_path: Path) -> None:
    run = start(tmp_path)
    for step in (1, 2, 3):
        run.note_metrics(step, loss=1.0 / step)
    assert run._heartbeat is not None
    run._heartbeat.beat()  # what the background thread does every few seconds
    hint = (tmp_path / "hints/owner.json").read_bytes()
    run.close()
    (tmp_path / "hints/owner.json").write_bytes(hint)
    again = start(tmp_path, takeover=True)
    seen: list[events.Event] = []
    again.board.listeners.append(seen.append)
    again.note_metrics(1, loss=1.0)
    again.note_metrics(2, loss=0.5 + 1e-12)
    again.flush()
    again.close()
    assert again.replayed == 2
    failures = [line.payload for line in open_run(tmp_path).state.failures]
    assert [line["signature"] for line in failures] == ["replay-mismatch"]
    assert [event.step for event in seen if isinstance(event, events.ReplayMismatched)] == [2]


def test_what_dead_writers_left_is_collected(tmp_path: Path) -> None:
    run = start(tmp_path)
    half = tmp_path / "tmp" / "4194304-0-dead"
    half.write_bytes(b"x" * 1000)
    train(run, 1, 8)
    run.close()
    assert not half.exists()
    kept = {path.name.split("-")[1] for path in (tmp_path / "checkpoints").iterdir()}
    assert kept == {"c00000006", "c00000007", "c00000008"}  # not even empty directories of the others


def test_a_lost_journal_record_is_never_taken_for_the_tail(tmp_path: Path) -> None:
    run = start(tmp_path)
    train(run, 1, 2)
    run.close()
    lost = tmp_path / "journal" / f"{3:020d}.json"
    kept = lost.read_bytes()
    before = sorted((tmp_path / "journal").iterdir())
    lost.unlink()
    with pytest.raises(errors.JournalBrokenError, match=lost.name):
        Run.open(tmp_path)
    assert sorted((tmp_path / "journal").iterdir()) == [path for path in before if path != lost]
    lost.write_bytes(kept)
    assert restored(tmp_path)[0] == 2
