"""Staged bytes are a sealed copy: exact, never aliasing live tensors or another slot."""

from __future__ import annotations

import math
import mmap
import struct
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_core.errors import CodecError, UsageError
from durable_core.format.coverage import cover
from durable_core.state.slices import flat_begin, slice_bytes, split
from durable_core.state.staging import Slot, SlotPool, Staged
from durable_core.state.staging import buffer as buffers
from durable_core.types import CrashPoint, SliceKey


def tensors() -> dict[str, torch.Tensor]:
    return {
        "w": torch.arange(12.0).reshape(3, 4),
        "b": torch.arange(5, dtype=torch.int8),
        "t": torch.arange(12.0).reshape(3, 4).t(),
        "step": torch.tensor(7.0),
        "none": torch.empty(0, 3),
        "half": torch.arange(3, dtype=torch.bfloat16),
        "flag": torch.tensor([True, False]),
    }


def acquire(pool: SlotPool) -> Slot:
    slot = pool.acquire()
    assert slot is not None
    return slot


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def content(staged: Staged) -> dict[SliceKey, bytes]:
    return {piece: bytes(staged.view(piece)) for piece in staged.slices}


def test_bytes_shapes_and_dtypes_are_those_of_the_tensors() -> None:
    live = tensors()
    staged = acquire(SlotPool()).stage(live)
    assert [piece.key for piece in staged.slices] == sorted(live)
    assert staged.nbytes == sum(tensor.numel() * tensor.itemsize for tensor in live.values())
    for piece in staged.slices:
        assert bytes(staged.view(piece)) == raw(live[piece.key])
        assert staged.view(piece).readonly
        assert staged.global_shape(piece.key) == tuple(live[piece.key].shape)
    assert staged.dtype("half") == "BF16"


def test_changing_the_live_tensors_changes_no_staged_byte() -> None:
    live = tensors()
    staged = acquire(SlotPool()).stage(live)
    before = content(staged)
    for tensor in live.values():
        tensor.zero_()
    assert content(staged) == before


def test_two_slots_never_alias_and_slots_are_reused() -> None:
    pool = SlotPool(2)
    live = tensors()
    first = acquire(pool).stage(live)
    before = content(first)
    for tensor in live.values():
        tensor.zero_()
    second = acquire(pool).stage(live)
    assert content(first) == before != content(second)
    assert pool.acquire() is None
    mapped = pool.nbytes
    first.release()
    third = acquire(pool).stage(live)
    assert pool.nbytes == mapped
    assert content(third) == content(second)


def test_released_bytes_cannot_be_read_and_a_slot_goes_back_once() -> None:
    pool = SlotPool(2)
    slot = acquire(pool)
    staged = slot.stage(tensors())
    slot.cancel()  # used up: not handed back a second time
    staged.release()
    staged.release()
    with pytest.raises(UsageError):
        staged.view(staged.slices[0])
    with pytest.raises(UsageError):
        slot.stage(tensors())
    assert [pool.acquire() is None for _ in range(3)] == [False, False, True]


def test_a_failed_stage_gives_the_slot_back() -> None:
    pool = SlotPool(1)
    with pytest.raises(CodecError, match="odd"):
        acquire(pool).stage({"odd": torch.zeros(2, dtype=torch.complex128)})

    def die(point: CrashPoint) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        acquire(pool).stage(tensors(), reached=die)
    assert pool.acquire() is not None


def test_the_crash_point_is_reached_half_way() -> None:
    live = {str(i): torch.full((2,), float(i)) for i in range(4)}
    seen: list[CrashPoint] = []

    def reached(point: CrashPoint) -> None:
        seen.append(point)
        live["0"].fill_(9.0)
        live["3"].fill_(9.0)

    staged = acquire(SlotPool()).stage(live, reached=reached)
    assert seen == [CrashPoint.K3]
    values = [struct.unpack("<2f", staged.view(piece))[0] for piece in staged.slices]
    assert values == [0.0, 1.0, 2.0, 9.0]  # the first half was copied before, the second after


def test_memory_grows_with_the_layout_and_never_shrinks() -> None:
    pool = SlotPool(1)
    sizes = []
    for count in (1000, 500_000, 10):
        live = {"x": torch.arange(count)}
        staged = acquire(pool).stage(live)
        assert b"".join(bytes(staged.view(piece)) for piece in staged.slices) == raw(live["x"])
        sizes.append(pool.nbytes)
        staged.release()
    assert sizes[0] < sizes[1] == sizes[2]


def test_prepare_maps_every_slot_before_the_first_save() -> None:
    pool = SlotPool(2)
    live = tensors()
    pool.prepare(live)
    mapped = pool.nbytes
    assert mapped >= 2 * sum(tensor.numel() * tensor.itemsize for tensor in live.values())
    acquire(pool).stage(live)
    acquire(pool).stage(live)
    assert pool.nbytes == mapped


def test_a_state_that_will_grow_is_mapped_for_at_its_full_size() -> None:
    pool = SlotPool(2)
    pool.prepare(tensors(), capacity=1 << 20)
    mapped = pool.nbytes
    assert mapped == 2 << 20
    for _ in range(2):
        acquire(pool).stage({**tensors(), "moment": torch.zeros(1 << 17)})
    assert pool.nbytes == mapped


def test_a_slot_can_be_acquired_while_others_are_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = SlotPool(2)
    seen: list[bool] = []
    real = buffers._anonymous

    def mapping(nbytes: int) -> mmap.mmap:
        slot = pool.acquire()
        seen.append(slot is not None)
        if slot is not None:
            slot.cancel()
        return real(nbytes)

    monkeypatch.setattr(buffers, "_anonymous", mapping)
    pool.prepare(tensors())
    assert seen == [True, True]


def test_acquire_waits_for_a_release_on_another_thread() -> None:
    pool = SlotPool(1)
    staged = acquire(pool).stage(tensors())
    entered = threading.Event()

    def writer() -> None:
        entered.wait()
        staged.release()

    thread = threading.Thread(target=writer)
    thread.start()
    entered.set()
    assert pool.acquire(timeout=None) is not None
    thread.join()
    assert pool.acquire(timeout=0.001) is None


def test_gather_joins_neighbours_and_keeps_the_order_asked_for() -> None:
    live = {f"p{i:04}": torch.full((3,), float(i)) for i in range(2000)}
    staged = acquire(SlotPool()).stage(live)
    assert len(staged.gather(staged.slices)) == 1
    backwards = staged.slices[::-1]
    joined = b"".join(staged.gather(backwards))
    assert joined == b"".join(bytes(staged.view(piece)) for piece in backwards)


def test_two_thousand_tensors_are_staged_with_one_copy_call_per_half(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = torch._foreach_copy_
    monkeypatch.setattr(torch, "_foreach_copy_", lambda *a: calls.append(len(a[0])) or real(*a))
    acquire(SlotPool()).stage({str(i): torch.zeros(4) for i in range(2000)})
    assert calls == [1000, 1000]


shapes = st.lists(st.integers(0, 6), max_size=4).map(tuple)


@settings(max_examples=200, deadline=None)
@given(shapes, st.sampled_from([1, 2, 8]), st.integers(1, 64))
def test_slices_cover_a_tensor_exactly_once_in_contiguous_runs(
    shape: tuple[int, ...], itemsize: int, limit: int
) -> None:
    pieces = list(split("k", shape, itemsize, limit))
    cover(shape, pieces)
    position = 0
    for piece in pieces:  # row-major and back to back: each is one run, in order
        assert flat_begin(piece, shape) == position
        position += math.prod(piece.shape)
        assert math.prod(piece.shape) * itemsize <= max(limit, itemsize)
        index = tuple(slice(o, o + n) for o, n in zip(piece.offsets, piece.shape, strict=True))
        begin, count = flat_begin(piece, shape), math.prod(piece.shape)
        whole = torch.arange(math.prod(shape)).reshape(shape)
        assert torch.equal(whole[index].reshape(-1), whole.reshape(-1)[begin : begin + count])


def test_a_slice_is_a_small_part_of_its_tensor_within_limits() -> None:
    mebibyte = 1 << 20
    sizes = [0, 2 * mebibyte, 64 * mebibyte, 96 * mebibyte, 1 << 31, 1 << 40]
    assert [slice_bytes(n) // mebibyte for n in sizes] == [2, 2, 2, 3, 64, 64]


def test_big_tensors_are_cut_along_the_first_dimension() -> None:
    live = {"big": torch.arange(70 << 20, dtype=torch.uint8).reshape(70, 1 << 20)}
    staged = acquire(SlotPool(1)).stage(live)
    assert [(piece.offsets, piece.shape) for piece in staged.slices] == [
        ((row, 0), (2, 1 << 20)) for row in range(0, 70, 2)
    ]
    assert b"".join(staged.view(piece) for piece in staged.slices) == raw(live["big"])
