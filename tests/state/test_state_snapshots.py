"""Sealed slots outlive their process, whole or not at all, and are believed by digest only."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from slot_subject import RUN, acquire, check, infos_of, save, seal_of, shared_directory, state

from durable_core.errors import (
    CorruptError,
    DigestMismatchError,
    FormatError,
    StaleSnapshotError,
    TierUnavailable,
    UsageError,
)
from durable_core.format.seal import HEADER_BYTES, SlotHeader, SlotState, decode_header, encode_header
from durable_core.state import slotfile
from durable_core.state.snapshots import SlotMemory, Snapshot, leftovers
from durable_core.state.staging import SlotPool
from durable_core.types import CrashPoint

HERE = Path(__file__).parent


@pytest.fixture
def directory() -> Iterator[Path]:
    with shared_directory() as path:
        yield path


def pool_in(directory: Path, slots: int = 2, run_id: str = RUN) -> SlotPool:
    return SlotPool(slots, SlotMemory(run_id, directory=directory, role="dp0"))


def steps(directory: Path, run_id: str = RUN) -> list[int]:
    return [check(snapshot) for snapshot in SlotMemory(run_id, directory=directory).sealed()]


def headers(directory: Path) -> list[SlotHeader]:
    files = sorted(SlotMemory(RUN, directory=directory).path.iterdir())
    return [decode_header(path.read_bytes()[:HEADER_BYTES], key=path.name) for path in files]


def in_child(work: Callable[[], object]) -> None:
    """Run ``work`` in a forked child that then dies by SIGKILL."""
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)  # its other threads are the parent's
            work()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


# --- sealing ---------------------------------------------------------------------------------


def test_a_sealed_slot_is_found_and_stays_so_after_release(directory: Path) -> None:
    pool = pool_in(directory)
    staged = save(pool, 1)
    assert steps(directory) == [1]
    staged.release()
    assert steps(directory) == [1]


def test_only_this_user_can_read_it(directory: Path) -> None:
    pool = pool_in(directory)
    save(pool, 1)
    memory = SlotMemory(RUN, directory=directory)
    modes = [
        path.stat().st_mode & 0o777 for path in (memory.path.parent, memory.path, *memory.path.iterdir())
    ]
    assert modes == [0o700, 0o700, 0o600]


@pytest.mark.parametrize("kind", ["link", "open", "file"])
def test_a_directory_that_is_not_ours_is_refused(directory: Path, kind: str) -> None:
    place = directory / f"durable-{os.geteuid()}"
    if kind == "link":
        (directory / "elsewhere").mkdir(mode=0o700)
        place.symlink_to(directory / "elsewhere")
    elif kind == "open":
        place.mkdir()
        place.chmod(0o755)
    else:
        place.touch()
    with pytest.raises(UsageError, match="durable-"):
        save(pool_in(directory), 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused(directory: Path) -> None:
    place = directory / "durable-0"
    place.mkdir(mode=0o700)
    os.chown(place, 12345, 12345)
    with pytest.raises(UsageError, match="belongs to user 12345"):
        save(pool_in(directory), 1)
    with pytest.raises(UsageError, match="belongs to user 12345"):
        (place / RUN).mkdir()
        SlotMemory(RUN, directory=directory).sealed()


def test_what_may_not_be_sealed(directory: Path) -> None:
    pool = pool_in(directory)
    staged = acquire(pool).stage(state(1), stable={"w"})
    seal = seal_of(staged, 1)
    with pytest.raises(UsageError, match="settle"):
        staged.seal(seal)
    staged.settle()
    for bad in (
        dataclasses.replace(seal, run_id="c" * 32),
        dataclasses.replace(seal, role="dp1", roles=("dp1",)),
        dataclasses.replace(seal, infos=seal.infos[1:]),
        dataclasses.replace(seal, infos=(*seal.infos, seal.infos[0])),
    ):
        with pytest.raises(UsageError):
            staged.seal(bad)
        assert steps(directory) == []
    staged.seal(seal)
    assert steps(directory) == [1]
    staged.release()
    with pytest.raises(UsageError, match="released"):
        staged.seal(seal)
    plain = acquire(SlotPool()).stage(state(1))
    with pytest.raises(UsageError, match="anonymous"):
        plain.seal(seal_of(plain, 1))


def test_void_bytes_are_never_sealed(directory: Path) -> None:
    pool, live = pool_in(directory), state(1)
    staged = acquire(pool).stage(live, stable={"w"})
    seal = seal_of(staged, 1)
    live["w"][3] += 1
    staged.settle()
    with pytest.raises(StaleSnapshotError):
        staged.seal(seal)
    staged.release()
    assert steps(directory) == []


# --- the order of things ---------------------------------------------------------------------


def test_the_header_is_dirty_before_the_first_byte_changes(directory: Path) -> None:
    pool = pool_in(directory)
    for step in (1, 2):
        save(pool, step).release()
    seen: list[list[SlotState]] = []

    def reached(point: CrashPoint) -> None:
        assert point is CrashPoint.K3
        seen.append(sorted(header.state for header in headers(directory)))
        assert steps(directory) == [2]  # the older one is being overwritten

    staged = acquire(pool).stage(state(3), stable={"w", "t"}, reached=reached)
    assert seen == [[SlotState.DIRTY, SlotState.SEALED]]
    staged.settle()
    assert steps(directory) == [2]
    staged.seal(seal_of(staged, 3))
    assert steps(directory) == [2, 3]


def test_a_slot_whose_staging_failed_is_empty_and_used_next(directory: Path) -> None:
    pool = pool_in(directory)
    for step in (1, 2):
        save(pool, step).release()

    def die(point: CrashPoint) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        acquire(pool).stage(state(3), reached=die)
    assert sorted(header.state for header in headers(directory)) == [SlotState.EMPTY, SlotState.SEALED]
    save(pool, 4).release()
    assert steps(directory) == [2, 4]


def test_the_newest_snapshot_is_never_handed_out(directory: Path) -> None:
    pool = pool_in(directory)
    first = save(pool, 1)
    second = acquire(pool).stage(state(2))
    first.release()
    assert pool.acquire() is None  # the only whole snapshot
    second.seal(seal_of(second, 2))
    taken = acquire(pool)  # the older one
    assert steps(directory) == [1, 2]
    second.release()
    assert pool.acquire() is None
    taken.cancel()
    save(pool, 3).release()
    assert steps(directory) == [2, 3]


def test_a_slot_that_was_never_sealed_is_preferred_to_an_old_snapshot(directory: Path) -> None:
    pool = pool_in(directory, slots=3)
    for step in (1, 2):
        save(pool, step).release()
    save(pool, 3).release()
    assert steps(directory) == [1, 2, 3]
    save(pool, 4).release()
    assert steps(directory) == [2, 3, 4]


def test_a_memory_tier_needs_two_slots(directory: Path) -> None:
    with pytest.raises(UsageError, match="2 slots"):
        pool_in(directory, slots=1)


def test_memory_does_not_grow_over_many_saves(directory: Path) -> None:
    pool = pool_in(directory)
    path = SlotMemory(RUN, directory=directory).path
    sizes = set()
    for step in range(1, 60):
        save(pool, step).release()
        sizes.add((pool.nbytes, *(file.stat().st_blocks for file in sorted(path.iterdir()))))
    assert len(sizes) <= 2  # one slot after the first save, two from the second on


def test_preparing_and_growing_leave_snapshots_as_they_are(directory: Path) -> None:
    pool = pool_in(directory)
    save(pool, 1).release()
    pool.prepare(state(1), capacity=4 << 20)
    assert steps(directory) == [1]
    save(pool, 2, size=400_000).release()
    assert [snapshot.seal.step for snapshot in SlotMemory(RUN, directory=directory).sealed()] == [1, 2]
    assert pool.nbytes >= 8 << 20


# --- what is found ---------------------------------------------------------------------------


def one_slot(directory: Path) -> tuple[Snapshot, Path]:
    save(pool_in(directory), 1).release()
    (snapshot,) = SlotMemory(RUN, directory=directory).sealed()
    return snapshot, snapshot.path


def overwrite(path: Path, begin: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(data)


def refused(directory: Path, run_id: str = RUN) -> list[str]:
    survey = SlotMemory(run_id, directory=directory).survey()
    assert not survey.snapshots
    return list(survey.refused.values())


def test_torn_headers_and_seals_are_left_out_with_the_reason(directory: Path) -> None:
    snapshot, path = one_slot(directory)
    whole = path.read_bytes()
    header = decode_header(whole[:HEADER_BYTES], key="x")
    damages = {
        0: b"\0",
        20: b"\xff",
        header.seal_begin: b"\xff" * 8,
        header.seal_begin + header.seal_nbytes - 1: b"\0",
    }
    for begin, data in damages.items():
        overwrite(path, begin, data)
        (reason,) = refused(directory)
        assert str(path) in reason
        overwrite(path, 0, whole)
    os.truncate(path, header.seal_begin)
    assert "beyond the end" in refused(directory)[0]
    os.truncate(path, 10)
    assert "no slot header" in refused(directory)[0]
    with pytest.raises(CorruptError):
        snapshot.view(snapshot.seal.infos[0])


def test_a_seal_of_a_smaller_state_is_not_believed_for_a_larger_one(directory: Path) -> None:
    _, path = one_slot(directory)
    header = decode_header(path.read_bytes()[:HEADER_BYTES], key="x")
    moved = header.seal_begin + HEADER_BYTES
    data = path.read_bytes()[header.seal_begin : header.seal_begin + header.seal_nbytes]
    overwrite(path, moved, data)
    overwrite(path, 0, encode_header(dataclasses.replace(header, seal_begin=moved)))
    assert "tensors" in refused(directory)[0]


def test_a_slot_of_another_run_is_left_out(directory: Path) -> None:
    _, path = one_slot(directory)
    other = SlotMemory("c" * 32, directory=directory)
    other.path.mkdir(mode=0o700)
    path.rename(other.path / path.name)
    assert "sealed by run" in refused(directory, "c" * 32)[0]


def test_a_link_in_place_of_a_slot_is_not_followed(directory: Path) -> None:
    _, path = one_slot(directory)
    path.rename(directory / "elsewhere")
    path.symlink_to(directory / "elsewhere")
    assert len(refused(directory)) == 1


def test_a_byte_that_changes_after_the_listing_is_found_when_it_is_read(directory: Path) -> None:
    snapshot, path = one_slot(directory)
    overwrite(path, HEADER_BYTES + 5, b"\xff")
    with pytest.raises(DigestMismatchError):
        check(snapshot)


def test_a_snapshot_can_be_read_after_it_was_removed_and_not_beyond_its_end(directory: Path) -> None:
    snapshot, path = one_slot(directory)
    path.unlink()
    assert check(snapshot) == 1
    out = bytearray(8)
    for offset in (-1, snapshot.seal.nbytes - 7):
        with pytest.raises(CorruptError):
            snapshot.read(offset, memoryview(out))
    snapshot.close()
    snapshot.close()
    with pytest.raises(TierUnavailable):
        snapshot.read(0, memoryview(out))


# --- filling ---------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [True, False])
def test_a_snapshot_is_filled_in_verified_and_sealed_anew(directory: Path, named: bool) -> None:
    snapshot, _ = one_slot(directory)
    memory = SlotMemory(RUN, directory=directory) if named else None
    staged = acquire(SlotPool(2, memory)).fill(snapshot.seal, snapshot.read)
    assert staged.confirmed(0.0) and staged.nbytes == snapshot.seal.nbytes
    assert {info.slice: info for info in infos_of(staged)} == {
        info.slice: info for info in snapshot.seal.infos
    }
    assert list(staged.slices) == sorted(staged.slices, key=lambda piece: (piece.key, piece.offsets))
    if named:
        staged.seal(dataclasses.replace(snapshot.seal, generation=2))
        found = SlotMemory(RUN, directory=directory).sealed()
        assert [(check(one), one.seal.generation) for one in found] == [(1, 1), (1, 2)]


def test_a_slot_that_was_filled_can_be_staged_into(directory: Path) -> None:
    snapshot, _ = one_slot(directory)
    pool = SlotPool(2, SlotMemory(RUN, directory=directory))
    for _ in range(2):
        acquire(pool).fill(snapshot.seal, snapshot.read).release()
    save(pool, 5).release()
    assert steps(directory) == [1, 5]


def test_wrong_bytes_are_refused_and_the_slot_is_empty_again(directory: Path) -> None:
    snapshot, _ = one_slot(directory)
    pool = SlotPool(2, SlotMemory(RUN, directory=directory))

    def read(offset: int, out: memoryview) -> None:
        snapshot.read(offset, out)
        if offset:
            out[0] ^= 1

    with pytest.raises(DigestMismatchError, match="step 1"):
        acquire(pool).fill(snapshot.seal, read)
    assert steps(directory) == [1]
    assert [header.state for header in headers(directory)].count(SlotState.EMPTY) == 1

    def fail(offset: int, out: memoryview) -> None:
        raise TierUnavailable("unplugged")

    with pytest.raises(TierUnavailable):
        acquire(pool).fill(snapshot.seal, fail)
    assert pool.acquire() is not None and pool.acquire() is not None


def test_an_owner_that_wakes_up_while_its_slot_is_copied_is_found_out_or_too_late(directory: Path) -> None:
    snapshot, path = one_slot(directory)
    pool = SlotPool(2, SlotMemory(RUN, directory=directory))

    def read(offset: int, out: memoryview) -> None:
        snapshot.read(offset, out)
        overwrite(path, HEADER_BYTES, b"\xff" * (offset + 2 * len(out)))

    with pytest.raises(DigestMismatchError):
        acquire(pool).fill(snapshot.seal, read)
    path.unlink()
    whole, _ = one_slot(directory)
    staged = acquire(pool).fill(whole.seal, whole.read)
    before = infos_of(staged)
    overwrite(whole.path, HEADER_BYTES, b"\xff" * whole.seal.nbytes)
    assert infos_of(staged) == before


def test_a_seal_whose_slices_are_not_whole_tensors_is_refused(directory: Path) -> None:
    snapshot, _ = one_slot(directory)
    seal = snapshot.seal
    scalar, first, *others = seal.infos
    longer = first._replace(global_shape=tuple(2 * n for n in first.global_shape))
    unknown = first._replace(dtype="F7")
    for infos in ((scalar, longer, *others), (scalar, unknown, *others), (*seal.infos, first)):
        with pytest.raises(FormatError, match="slice"):
            acquire(SlotPool()).fill(dataclasses.replace(seal, infos=infos), snapshot.read)


def test_a_seal_larger_than_any_memory_is_refused(directory: Path) -> None:
    snapshot, _ = one_slot(directory)
    info = snapshot.seal.infos[0]
    for length in (1 << 44, 1 << 60):  # beyond this machine; beyond all machines
        piece = info.slice._replace(offsets=(0,), shape=(length,))
        huge = info._replace(slice=piece, dtype="U8", global_shape=(length,), nbytes=length)
        seal = dataclasses.replace(snapshot.seal, infos=(huge,))
        for memory in (None, SlotMemory(RUN, directory=directory)):
            with pytest.raises((UsageError, FormatError)):
                acquire(SlotPool(2, memory)).fill(seal, snapshot.read)


# --- ownership -------------------------------------------------------------------------------


def test_slots_of_a_killed_process_are_found_and_freed(directory: Path) -> None:
    in_child(lambda: save(pool_in(directory), 7).release())
    assert steps(directory) == [7]
    (left,) = leftovers(directory)
    assert (left.run_id, left.live) == (RUN, False) and left.nbytes > 0
    assert SlotMemory(RUN, directory=directory).free() == left.nbytes
    assert leftovers(directory) == [] and steps(directory) == []


def test_slots_of_a_live_process_are_left_alone(directory: Path) -> None:
    pool = pool_in(directory)
    save(pool, 1).release()
    assert [left.live for left in leftovers(directory)] == [True]
    memory = SlotMemory(RUN, directory=directory)
    assert memory.free() == memory.free(older_than=9) == 0
    assert steps(directory) == [1]
    pool.close(remove=False)
    assert [left.live for left in leftovers(directory)] == [False]
    assert memory.free(older_than=1) == 0 and steps(directory) == [1]
    assert memory.free(older_than=2) > 0 and steps(directory) == []


def test_a_forked_child_does_not_keep_its_parents_slots_alive(directory: Path) -> None:
    pool = pool_in(directory)
    save(pool, 1).release()
    reader, writer = os.pipe()
    started, start = os.pipe()
    child = os.fork()  # a data-loader worker: it outlives its parent
    if child == 0:
        os.close(writer)
        os.write(start, b".")
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    try:
        os.read(started, 1)
        pool.close(remove=False)  # what the kernel does when the parent dies
        assert [left.live for left in leftovers(directory)] == [False]
    finally:
        for descriptor in (writer, started, start):
            os.close(descriptor)
        os.waitpid(child, 0)


def test_what_is_no_snapshot_goes_whatever_generation_is_kept(directory: Path) -> None:
    def work() -> None:
        pool = pool_in(directory)
        save(pool, 1, generation=3).release()
        acquire(pool).stage(state(2))

    in_child(work)
    assert SlotMemory(RUN, directory=directory).free(older_than=3) > 0
    assert len(headers(directory)) == 1 and steps(directory) == [1]


def test_a_closed_pool_removes_its_slots_also_those_still_in_use(directory: Path) -> None:
    pool = pool_in(directory)
    save(pool, 1).release()
    staged = save(pool, 2)
    pool.close(remove=True)
    assert steps(directory) == [2]
    staged.release()
    assert headers(directory) == []
    with pytest.raises(UsageError, match="closed"):
        pool.acquire()
    SlotMemory(RUN, directory=directory).free()
    assert leftovers(directory) == []


def test_a_slot_made_while_a_collector_removes_it_is_made_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = SlotMemory(RUN, directory=directory)
    real, removed = os.open, []

    def racing(path: str | os.PathLike[str], flags: int, mode: int = 0o777) -> int:
        descriptor = real(path, flags, mode)
        if flags & os.O_CREAT and not removed:
            removed.append(path)
            assert memory.free() == 0  # just made, not yet locked, no memory yet
        return descriptor

    monkeypatch.setattr(os, "open", racing)
    pool = pool_in(directory)
    save(pool, 1).release()
    assert removed and steps(directory) == [1]


def test_another_writer_that_frees_the_last_slot_at_the_same_time_does_no_harm(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both writers of a host close together: the directory goes while one of them looks at it."""
    memory = SlotMemory(RUN, directory=directory)
    memory.create().remove()
    check_private = slotfile.check_private

    def removed_first(path: Path) -> None:
        if path == memory.path:
            path.rmdir()
        check_private(path)

    monkeypatch.setattr(slotfile, "check_private", removed_first)
    assert memory.free() == 0


def test_memory_that_is_not_there_is_refused(directory: Path) -> None:
    with pytest.raises(UsageError, match="cannot make a slot"):
        SlotMemory(RUN, directory=directory / "nowhere").create()


def test_killed_at_random_instants_only_whole_snapshots_are_left(directory: Path) -> None:
    command = [sys.executable, str(HERE / "slot_killing.py"), str(directory), "25", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(done.stdout)
    assert (counts["kills"], counts["torn"], counts["lost"], counts["left"]) == (25, 0, 0, 0)
    assert counts["refused"] > 0  # some were killed with a slot half written: the test tests something
