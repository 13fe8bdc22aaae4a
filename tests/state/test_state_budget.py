"""Memory is counted before it is taken: a full tmpfs would be a SIGBUS, a full control group a SIGKILL."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from slot_subject import RUN, acquire, check, save, seal_of, state

from durable_core.errors import TierFull, UsageError
from durable_core.state import budget, slotfile
from durable_core.state.budget import Room
from durable_core.state.snapshots import SlotMemory
from durable_core.state.staging import SlotPool

MIB = 1 << 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A real tmpfs of 8 MiB."""
    root = tmp_path / "shm"
    root.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(root)], capture_output=True)
    if made.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {made.stderr.decode().strip()}")
    yield root
    subprocess.run(["umount", "-l", str(root)], check=True)


def found(directory: Path) -> list[int]:
    return [check(snapshot) for snapshot in SlotMemory(RUN, directory=directory).sealed()]


def test_a_state_that_does_not_fit_is_refused_with_the_numbers(small: Path) -> None:
    pool = SlotPool(2, SlotMemory(RUN, directory=small))
    with pytest.raises(UsageError, match=r"needs \d+ more bytes .* has \d+ left"):
        pool.prepare({"w": torch.zeros(4 * MIB)})
    save(pool, 1).release()  # the slot is usable for what fits
    assert found(small) == [1]


def test_what_the_count_misses_is_an_error_and_no_signal(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes that both asked before either took: the kernel refuses one of them."""
    pool = SlotPool(2, SlotMemory(RUN, directory=small))
    save(pool, 1).release()
    monkeypatch.setattr(budget, "require", lambda *args, **kwargs: None)
    with pytest.raises(UsageError, match="No space left"):
        acquire(pool).stage({"w": torch.zeros(4 * MIB)})
    assert found(small) == [1]
    save(pool, 2).release()
    assert found(small) == [1, 2]


def test_a_full_file_system_refuses_new_slots(small: Path) -> None:
    fill(small)
    with pytest.raises(UsageError, match="No space left"):
        acquire(SlotPool(2, SlotMemory(RUN, directory=small))).stage(state(1))


def test_a_seal_without_room_leaves_the_bytes_and_no_snapshot(small: Path) -> None:
    pool = SlotPool(2, SlotMemory(RUN, directory=small))
    staged = acquire(pool).stage(state(1))
    seal = seal_of(staged, 1)
    with pytest.raises(TierFull, match="seal"):
        staged.seal(dataclasses.replace(seal, ledger=b"x" * 8 * MIB))
    assert found(small) == []
    staged.view(staged.slices[0])
    staged.seal(seal)  # a smaller one fits into what was reserved
    assert found(small) == [1]


def test_sealing_works_when_the_file_system_is_full_because_room_was_reserved(small: Path) -> None:
    pool = SlotPool(2, SlotMemory(RUN, directory=small))
    pool.prepare(state(1))
    fill(small)
    for step in (1, 2, 3):
        save(pool, step).release()
    assert found(small) == [2, 3]


def fill(directory: Path) -> None:
    with pytest.raises(OSError, match="No space"), (directory / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def system(tmp_path: Path) -> tuple[Path, Path]:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    write(proc / "meminfo", "MemTotal: 9000 kB\nMemAvailable:    7000 kB\n")
    return proc, cgroup


def limits(system: tuple[Path, Path]) -> dict[str, int]:
    proc, cgroup = system
    rooms = budget.rooms(proc, proc=proc, cgroup=cgroup)
    assert rooms == sorted(rooms, key=lambda room: room.free)
    return {room.what: room.free for room in rooms if "file system" not in room.what}


def test_the_machine_counts(system: tuple[Path, Path]) -> None:
    assert limits(system) == {"this machine": 7000 * 1024}


def test_every_control_group_around_this_process_counts_and_its_cache_does_not(
    system: tuple[Path, Path],
) -> None:
    proc, cgroup = system
    write(proc / "self/cgroup", "0::/job/task\n")
    write(cgroup / "job/task/memory.max", "max\n")
    write(cgroup / "job/task/memory.current", "500\n")
    write(cgroup / "job/memory.max", "1000\n")
    write(cgroup / "job/memory.current", "700\n")
    write(cgroup / "job/memory.stat", "anon 400\ninactive_file 50\nactive_file 25\nshmem 9\n")
    assert limits(system)["the control group /job"] == 375
    assert "the control group /job/task" not in limits(system)


def test_the_older_kind_of_control_group_counts(system: tuple[Path, Path]) -> None:
    proc, cgroup = system
    write(proc / "self/cgroup", "7:cpu,memory:/a\n3:pids:/b\n")
    write(cgroup / "memory/a/memory.limit_in_bytes", "1000\n")
    write(cgroup / "memory/a/memory.usage_in_bytes", "1100\n")
    write(cgroup / "memory/memory.limit_in_bytes", "9223372036854771712\n")
    write(cgroup / "memory/memory.usage_in_bytes", "5\n")
    assert limits(system) == {"the control group /a": 0, "this machine": 7000 * 1024}


def test_the_tightest_limit_is_named() -> None:
    budget.require(10, [Room("a", 10), Room("b", 20)], what="it")
    with pytest.raises(UsageError, match="it needs 11 more bytes of memory, and a has 10 left"):
        budget.require(11, [Room("a", 10), Room("b", 20)], what="it")


def test_a_preflight_can_ask(tmp_path: Path) -> None:
    memory = SlotMemory(RUN, directory=tmp_path)
    memory.require(1)
    with pytest.raises(UsageError, match=RUN):
        memory.require(1 << 60)


def test_a_run_id_cannot_leave_the_directory(tmp_path: Path) -> None:
    for run_id in ("", "..", "a/b", "/etc", "A b"):
        with pytest.raises(UsageError):
            SlotMemory(run_id, directory=tmp_path)
    assert slotfile.user_directory(tmp_path).parent == tmp_path
