"""Copying while training computes: the guard finds every change, and what it cannot vouch for is void."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from durable_core.errors import CommitAborted, StaleSnapshotError, UsageError
from durable_core.state.staging import Slot, SlotPool, Staged, copying
from durable_core.state.staging import pool as pools
from durable_core.types import CrashPoint

STABLE = frozenset({"w", "t", "m"})
DEADLINE = 60.0


def tensors() -> dict[str, torch.Tensor]:
    return {
        "w": torch.randn(300, 100),
        "t": torch.randn(64, 32).t(),
        "m": torch.randn(1000, dtype=torch.float64).to(torch.bfloat16),
        "buffer": torch.arange(10.0),
        "step": torch.tensor(3.0),
    }


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def acquire(pool: SlotPool) -> Slot:
    slot = pool.acquire()
    assert slot is not None
    return slot


def content(staged: Staged) -> dict[str, bytes]:
    return {piece.key: bytes(staged.view(piece)) for piece in staged.slices}


class Gate:
    """Holds the copying thread before its first tensor until opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.reached = threading.Event(), threading.Event()
        real = copying._copy_alone

        def held(destination: torch.Tensor, source: torch.Tensor) -> None:
            self.reached.set()
            assert self.open.wait(DEADLINE)
            real(destination, source)

        monkeypatch.setattr(copying, "_copy_alone", held)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open.set()


def test_the_bytes_are_those_of_the_boundary_whatever_changes_after_the_guard() -> None:
    pool, live = SlotPool(), tensors()
    before = {key: raw(tensor) for key, tensor in live.items()}
    staged = acquire(pool).stage(live, stable=STABLE)
    live["buffer"].zero_()  # not stable: it was copied at once
    staged.settle()
    for tensor in live.values():
        tensor.zero_()
    assert content(staged) == before
    assert staged.confirmed(0.0) and staged.void is None


def test_stage_returns_before_the_stable_tensors_are_copied_and_the_guard_waits(gate: Gate) -> None:
    pool, live = SlotPool(), tensors()
    staged = acquire(pool).stage(live, stable=STABLE)
    assert gate.reached.wait(DEADLINE)
    assert not staged.confirmed(0.0)
    settled = threading.Event()

    def guard() -> None:
        staged.settle()
        settled.set()

    thread = threading.Thread(target=guard)
    thread.start()
    assert not settled.is_set()
    gate.open.set()
    thread.join(DEADLINE)
    assert settled.is_set() and staged.confirmed(0.0)
    assert content(staged) == {key: raw(tensor) for key, tensor in live.items()}


def test_a_reader_waits_for_the_copy(gate: Gate) -> None:
    live = tensors()
    staged = acquire(SlotPool()).stage(live, stable=STABLE)
    seen: list[dict[str, bytes]] = []
    thread = threading.Thread(target=lambda: seen.append(content(staged)))
    thread.start()
    assert gate.reached.wait(DEADLINE) and not seen
    gate.open.set()
    thread.join(DEADLINE)
    assert seen == [{key: raw(tensor) for key, tensor in live.items()}]


def test_a_waiting_writer_is_woken_by_the_guard() -> None:
    staged = acquire(SlotPool()).stage(tensors(), stable=STABLE)
    confirmed: list[bool] = []
    thread = threading.Thread(target=lambda: confirmed.append(staged.confirmed(DEADLINE)))
    thread.start()
    staged.settle()
    thread.join(DEADLINE)
    assert confirmed == [True]


def by_data(tensor: torch.Tensor) -> None:
    tensor.data.flatten()[0:1].add_(1)
    tensor.data[0] += 1


def by_numpy(tensor: torch.Tensor) -> None:
    tensor.view(torch.int32).numpy()[0] ^= 1


def by_fused_step(tensor: torch.Tensor) -> None:
    parameter = torch.nn.Parameter(tensor.detach())  # the same memory
    parameter.grad = torch.ones_like(parameter)
    torch.optim.AdamW([parameter], fused=True).step()


def to_minus_zero(tensor: torch.Tensor) -> None:
    tensor.numpy()[0] = -0.0


@pytest.mark.parametrize("change", [by_data, by_numpy, by_fused_step, to_minus_zero])
def test_the_guard_finds_what_version_counters_do_not_see(change: Callable[[torch.Tensor], None]) -> None:
    pool, live = SlotPool(), tensors()
    live["w"][0] = 0.0
    staged = acquire(pool).stage(live, stable=STABLE)
    staged.view(staged.slices[0])  # copied
    change(live["w"])
    staged.settle()
    assert staged.void is not None and "'w'" in staged.void
    assert pool.eager_reason == staged.void
    for use in (
        lambda: staged.view(staged.slices[0]),
        lambda: staged.gather(staged.slices),
        lambda: staged.confirmed(0.0),
    ):
        with pytest.raises(StaleSnapshotError, match="changed") as caught:
            use()
        assert isinstance(caught.value, CommitAborted)
    staged.release()
    again = acquire(pool).stage(live, stable=STABLE)  # everything at once from now on
    assert again.confirmed(0.0)
    live["w"].zero_()
    again.settle()
    assert again.void is None


def test_a_nan_is_no_change() -> None:
    live = tensors()
    live["w"].fill_(float("nan"))
    staged = acquire(SlotPool()).stage(live, stable=STABLE)
    staged.settle()
    assert staged.confirmed(0.0)


def test_the_first_saves_and_a_sample_afterwards_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    number = -1
    real = copying.Copy.difference

    def difference(self: copying.Copy) -> str | None:
        compared.append(number)
        return real(self)

    monkeypatch.setattr(copying.Copy, "difference", difference)
    pool, live = SlotPool(), {"w": torch.zeros(4)}
    for number in range(2 * pools.COMPARED_EVERY + 1):  # noqa: B007  (``difference`` notes it)
        staged = acquire(pool).stage(live, stable={"w"})
        staged.settle()
        staged.settle()
        staged.release()
    assert compared == [0, 1, pools.COMPARED_EVERY, 2 * pools.COMPARED_EVERY]


def test_a_write_that_torch_counts_is_found_when_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "COMPARED_FIRST", 0)
    pool, live = SlotPool(), tensors()
    acquire(pool).stage(live, stable=STABLE).settle()  # number 0 of every so many is compared
    staged = acquire(pool).stage({key: tensor.detach() for key, tensor in live.items()}, stable=STABLE)
    live["t"].mul_(1)  # a write, although of the same bytes
    staged.settle()
    assert "'t'" in (staged.void or "") and pool.eager_reason


def test_large_tensors_are_copied_and_compared_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "_CHUNK", 1024)
    live = {"w": torch.randn(5000), "t": torch.randn(100, 70).t(), "b": torch.randn(333).to(torch.bfloat16)}
    staged = acquire(SlotPool()).stage(live, stable=set(live))
    assert content(staged) == {key: raw(tensor) for key, tensor in live.items()}
    live["w"][4999] += 1
    staged.settle()
    assert "'w'" in (staged.void or "")


def test_a_conjugate_view_is_copied_at_once_and_right() -> None:
    live = {"w": torch.randn(50, dtype=torch.complex64).conj()}
    assert live["w"].is_conj()
    staged = acquire(SlotPool()).stage(live, stable={"w"})
    assert staged.confirmed(0.0)
    assert content(staged)["w"] == live["w"].resolve_conj().numpy().tobytes()


def test_live_tensors_are_not_held_longer_than_needed() -> None:
    pool = SlotPool()
    for number in range(4):  # two that are compared, two that are not
        live = tensors()
        alive = [weakref.ref(tensor) for tensor in live.values()]
        staged = acquire(pool).stage(live, stable=STABLE)
        staged.settle()
        live.clear()
        gc.collect()
        assert [ref() for ref in alive] == [None] * len(alive), number
        staged.release()


def test_a_release_ends_the_copy_before_the_slot_is_used_again(gate: Gate) -> None:
    pool, live = SlotPool(1), {key: torch.randn(100) for key in "abc"}
    staged = acquire(pool).stage(live, stable=set(live))
    assert gate.reached.wait(DEADLINE)
    released = threading.Thread(target=staged.release)
    released.start()
    gate.open.set()
    released.join(DEADLINE)
    staged.settle()  # compares nothing: what was not copied did not change
    assert pool.eager_reason is None
    with pytest.raises(StaleSnapshotError, match="released"):
        staged.confirmed(0.0)
    other = acquire(pool).stage({"x": torch.ones(5)})
    assert content(other)["x"] == raw(torch.ones(5))


def test_a_copy_that_fails_voids_the_snapshot_and_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(destination: torch.Tensor, source: torch.Tensor) -> None:
        raise RuntimeError("gone")

    monkeypatch.setattr(copying, "_copy_alone", broken)
    pool = SlotPool(1)
    staged = acquire(pool).stage(tensors(), stable=STABLE)
    staged.settle()
    for use in (lambda: staged.view(staged.slices[0]), lambda: staged.confirmed(0.0)):
        with pytest.raises(StaleSnapshotError, match="gone"):
            use()
    staged.release()
    assert pool.acquire() is not None


def test_a_crash_half_way_leaves_the_stable_tensors_uncopied(gate: Gate) -> None:
    def die(point: CrashPoint) -> None:
        assert point is CrashPoint.K3
        raise KeyboardInterrupt

    pool = SlotPool(1)
    with pytest.raises(KeyboardInterrupt):
        acquire(pool).stage(tensors(), stable=STABLE, reached=die)
    assert not gate.reached.is_set()
    assert pool.acquire() is not None


def test_a_pool_that_is_never_settled_ends_with_the_process() -> None:
    live = {"w": torch.randn(1000)}
    child = os.fork()
    if child == 0:
        acquire(SlotPool()).stage(live, stable={"w"})
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_forked_child_has_a_pool_of_its_own_and_cannot_touch_the_parents(gate: Gate) -> None:
    pool, live = SlotPool(2), {"w": torch.randn(100)}
    staged = acquire(pool).stage(live, stable={"w"})
    held = acquire(pool)
    assert gate.reached.wait(DEADLINE)  # forked while the copying thread is at work
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        gate.open.set()
        outcome = "broken"
        try:
            outcome = _in_child(pool, staged, held)
        finally:
            os.write(writer, outcome.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read() == "as it should be"
    os.waitpid(child, 0)
    gate.open.set()
    staged.settle()
    assert content(staged)["w"] == raw(live["w"])


def _in_child(pool: SlotPool, staged: Staged, held: Slot) -> str:
    staged.settle()
    staged.release()
    for use in (lambda: staged.view(staged.slices[0]), lambda: held.stage({"w": torch.zeros(100)})):
        try:
            use()
        except UsageError:
            continue
        return "the parent's slot was usable"
    own = acquire(pool).stage({"w": torch.ones(100)}, stable={"w"})
    own.settle()
    right = np.frombuffer(content(own)["w"], np.float32).tolist() == [1.0] * 100
    both = pool.acquire() is not None and pool.acquire() is None
    return "as it should be" if right and both else "its own slots were not"


def test_memory_does_not_grow_over_many_background_saves() -> None:
    pool, live = SlotPool(2), {str(i): torch.randn(50_000) for i in range(4)}
    pool.prepare(live)
    mapped = pool.nbytes
    threads = None
    for _ in range(50):
        staged = acquire(pool).stage(live, stable=set(live))
        staged.settle()
        staged.release()
        threads = threads or threading.active_count()
    assert (pool.nbytes, threading.active_count()) == (mapped, threads)
