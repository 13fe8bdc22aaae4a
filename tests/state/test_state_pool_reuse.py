"""One snapshot is kept, whatever is sealed; and whoever waits for the guard's verdict gets one."""

from __future__ import annotations

import pytest
from slot_subject import RUN, acquire, seal_of, shared_directory, state

from durable_core.errors import StaleSnapshotError
from durable_core.state.staging import SlotMemory, SlotPool, copying


def test_a_step_that_is_sealed_twice_leaves_a_slot() -> None:
    with shared_directory() as directory:
        pool = SlotPool(2, SlotMemory(RUN, directory=directory))
        for _ in range(3):
            with acquire(pool).stage(state(10)) as staged:
                staged.seal(seal_of(staged, 10))
        kept = [step for _, step in pool.held()]
        assert kept == [10, 10]
        slot = pool.acquire()
        assert slot is not None and pool.acquire() is None
        slot.cancel()
        other = pool.acquire(keep=10)
        assert other is not None and pool.acquire(keep=10) is None
        other.cancel()
        pool.close(remove=True)


def test_a_guard_that_fails_voids_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = SlotPool(1)
    tensors = state(1)
    staged = acquire(pool).stage(tensors, stable={"w"})
    monkeypatch.setattr(copying.Copy, "difference", lambda self: (_ for _ in ()).throw(MemoryError("none")))
    with pytest.raises(MemoryError):
        staged.settle()
    with pytest.raises(StaleSnapshotError, match="guard failed"):
        staged.confirmed(10.0)
    staged.release()
    assert pool.acquire() is not None
