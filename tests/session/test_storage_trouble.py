"""Storage that fills up, fails or turns read-only: training goes on, and everybody can see why."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from session_helpers import check, restored, start, state_at

from durable_core import errors, events
from durable_core.engine.inspect import open_run
from durable_core.session import Run
from durable_core.tier.posix import PosixTier

SIZE = 64 * 1024  # 256 KiB a checkpoint


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real tmpfs of 1 MiB."""
    root = tmp_path / "disk"
    root.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(root)], capture_output=True)
    if made.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {made.stderr.decode().strip()}")
    yield root
    subprocess.run(["umount", "-l", str(root)], check=True)


def listen(run: Run) -> list[events.Event]:
    seen: list[events.Event] = []
    run.board.listeners.append(seen.append)
    return seen


def test_a_full_disk_does_not_stop_training_and_saves_resume(small_disk: Path) -> None:
    run = start(small_disk / "run")
    seen = listen(run)
    run.save(state_at(1, SIZE), {}, step=1, wait=True)
    ballast = small_disk / "ballast"
    with pytest.raises(OSError) as full, ballast.open("wb") as file:
        while True:
            file.write(b"x" * 4096)
            file.flush()
    assert full.value.errno == errno.ENOSPC
    run.save(state_at(2, SIZE), {}, step=2)
    run.flush()
    status = run.status()
    assert (status.newest_step, status.failed) == (1, 1)
    assert status.last_error is not None and "No space left" in status.last_error
    failed = [event for event in seen if isinstance(event, events.SaveFailed)]
    assert [event.step for event in failed] == [2]
    run.boundary(3)  # training goes on
    ballast.unlink()
    run.save(state_at(3, SIZE), {}, step=3)
    run.flush()
    assert (run.status().newest_step, run.status().last_error) == (3, None)
    run.close()
    lines = [line.payload for line in open_run(small_disk / "run").state.failures]
    assert [(line["class"], line["step"]) for line in lines] == [("F10", 2)]
    step, state = restored(small_disk / "run")
    assert step == 3
    check(3, state)


def test_a_read_only_disk_does_not_stop_training(small_disk: Path) -> None:
    run = start(small_disk / "run")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    run.save(state_at(1), {}, step=1)
    run.flush()
    assert "Read-only" in (run.status().last_error or "")
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    run.save(state_at(2), {}, step=2, wait=True)
    run.close()
    assert restored(small_disk / "run")[0] == 2


@pytest.mark.parametrize("action", ["create", "write", "fsync", "link", "fsync-dir"])
def test_an_io_error_anywhere_leaves_the_checkpoint_before_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    run = start(tmp_path)
    run.save(state_at(1), {}, step=1, wait=True)
    broken = True

    def before(self: PosixTier, what: str, path: Path) -> None:
        if broken and what == action and "hints" not in str(path):
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(PosixTier, "before", before)
    run.save(state_at(2), {}, step=2)
    run.flush()
    assert run.status().failed >= 1
    assert run.status().newest_step == 1
    broken = False
    run.save(state_at(3), {}, step=3, wait=True)
    run.close()
    assert restored(tmp_path)[0] == 3


def test_permission_denied_at_the_start_is_a_typed_error(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(errors.TierDenied):
        Run.open(small_disk / "run")


@pytest.fixture
def broken_writes(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    switch = {"on": False}

    def before(self: PosixTier, what: str, path: Path) -> None:
        if switch["on"] and what == "write" and "hints" not in str(path):
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(PosixTier, "before", before)
    return switch


def test_a_breached_recovery_point_is_reported_and_training_continues(
    tmp_path: Path, broken_writes: dict[str, bool]
) -> None:
    run = start(tmp_path, rpo_steps=2, on_rpo_breach="continue")
    seen = listen(run)
    broken_writes["on"] = True
    for step in range(1, 6):
        run.save(state_at(step), {}, step=step)
        run.flush()
    breaches = [event for event in seen if isinstance(event, events.RpoBreached)]
    assert [event.step for event in breaches] == [3]
    assert run.status().rpo_breached
    broken_writes["on"] = False
    run.save(state_at(6), {}, step=6, wait=True)
    assert not run.status().rpo_breached
    run.close()


def test_a_breached_recovery_point_aborts_when_so_declared(
    tmp_path: Path, broken_writes: dict[str, bool]
) -> None:
    run = start(tmp_path, rpo_steps=2, on_rpo_breach="abort")
    broken_writes["on"] = True
    for step in (1, 2):
        run.save(state_at(step), {}, step=step)
        run.flush()
    with pytest.raises(errors.RpoBreachedError, match="declared recovery point"):
        run.save(state_at(3), {}, step=3)
    run.close()


def test_a_breached_recovery_point_pauses_until_storage_is_back(
    tmp_path: Path, broken_writes: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(tmp_path, rpo_steps=2, on_rpo_breach="pause")
    broken_writes["on"] = True
    for step in (1, 2):
        run.save(state_at(step), {}, step=step)
        run.flush()
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        broken_writes["on"] = len([s for s in waits if s >= 1]) < 3

    monkeypatch.setattr(run.clock, "sleep", sleep)
    assert run.save(state_at(3), {}, step=3)
    assert run.status().newest_step == 3
    assert len([s for s in waits if s >= 1]) == 3
    run.close()


def test_a_commit_in_doubt_is_settled_by_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit record arrives, its acknowledgement never does, and no later save would ask."""
    run = start(tmp_path)
    lost = 0

    def before(self: PosixTier, what: str, path: Path) -> None:
        nonlocal lost
        # the directory of the journal cannot be synced: created, perhaps not durable
        if lost < 64 and what == "fsync-dir" and path.name == "journal" and armed(tmp_path):
            lost += 1
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(PosixTier, "before", before)
    run.save(state_at(1), {}, step=1)
    run._saver.committer.writer.drain()  # type: ignore[union-attr]
    assert lost > 0
    assert run.status().failed == 1
    lost = 64
    assert run.flush()
    assert run.status().newest_step == 1
    run.close()
    assert restored(tmp_path)[0] == 1


def armed(root: Path) -> bool:
    """From the publication of c1's manifest on, so that only the commit record is in doubt."""
    return bool(list(root.glob("checkpoints/*c00000001*/manifest.json")))
