"""Copies from CUDA, with a CUDA that is played: what is asked of it, and in which order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from durable_core.errors import UsageError
from durable_core.state.staging import Slot, SlotPool, Staged, device

DEADLINE = 60.0


class OnDevice(torch.Tensor):
    """Host memory that says it is a device's."""

    is_cuda = True
    log: list[str]

    def record_stream(self, stream: Any) -> None:
        self.log.append(f"record on {stream.name}")


class Event:
    def __init__(self, cuda: Cuda, name: str) -> None:
        self.cuda, self.name = cuda, name

    def synchronize(self) -> None:
        assert self.cuda.landed.wait(DEADLINE)
        self.cuda.log.append(f"host waits for {self.name}")


class Stream:
    def __init__(self, cuda: Cuda, name: str) -> None:
        self.cuda, self.name = cuda, name

    def wait_stream(self, other: Stream) -> None:
        self.cuda.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: Event) -> None:
        self.cuda.log.append(f"{self.name} waits for {event.name}")

    def record_event(self) -> Event:
        return Event(self.cuda, f"the copies on {self.name}")


class Cuda:
    """What ``torch.cuda`` is asked for."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.landed = threading.Event()
        self.landed.set()
        self.pinned: dict[int, int] = {}
        self.refuses = False

    def current_stream(self, device: torch.device) -> Stream:
        return Stream(self, "training")

    def Stream(self, device: torch.device) -> Stream:
        return Stream(self, "side")

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self.log.append(f"on {stream.name}")
        yield

    def cudart(self) -> Cuda:
        return self

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        self.pinned[address] = nbytes
        return 2 if self.refuses else 0

    def cudaHostUnregister(self, address: int) -> int:
        del self.pinned[address]
        return 0


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    played = Cuda()
    monkeypatch.setattr(device, "cuda", played)
    return played


def on_device(cuda: Cuda, tensor: torch.Tensor) -> torch.Tensor:
    moved = tensor.as_subclass(OnDevice)
    moved.log = cuda.log
    return moved


def acquire(pool: SlotPool) -> Slot:
    slot = pool.acquire()
    assert slot is not None
    return slot


def content(staged: Staged) -> dict[str, bytes]:
    return {piece.key: bytes(staged.view(piece)) for piece in staged.slices}


def tensors(cuda: Cuda) -> dict[str, torch.Tensor]:
    return {
        "w": on_device(cuda, torch.arange(100.0)),
        "buffer": on_device(cuda, torch.arange(5.0)),
        "host": torch.arange(7),
    }


def raw(live: dict[str, torch.Tensor]) -> dict[str, bytes]:
    return {key: tensor.as_subclass(torch.Tensor).numpy().tobytes() for key, tensor in live.items()}


def test_staged_at_once_the_host_waits_for_the_side_stream(cuda: Cuda) -> None:
    pool = SlotPool(1)
    live = tensors(cuda)
    staged = acquire(pool).stage(live)
    assert content(staged) == raw(live)
    copied = ["side waits for training", "on side", "record on side", "host waits for the copies on side"]
    assert cuda.log == [*copied, *copied]  # before and after the crash point
    assert list(cuda.pinned.values()) == [pool.nbytes]


def test_the_next_update_waits_on_the_device_and_not_on_the_host(cuda: Cuda) -> None:
    pool = SlotPool(1)
    pool._background = 2  # past the saves that are compared
    live = tensors(cuda)
    slot = acquire(pool)
    with_buffers = slot.stage(live)  # maps and pins
    with_buffers.release()
    cuda.log.clear()
    staged = acquire(pool).stage(live, stable={"w", "host"})
    cuda.landed.clear()
    staged.settle()  # returns although nothing has landed
    assert cuda.log[-1] == "training waits for the copies on side"
    seen: list[dict[str, bytes]] = []
    reader = threading.Thread(target=lambda: seen.append(content(staged)))
    reader.start()
    assert not seen
    cuda.landed.set()
    reader.join(DEADLINE)
    assert seen == [raw(live)] and staged.confirmed(0.0)
    assert cuda.log[-1] == "host waits for the copies on side"


def test_a_comparison_waits_for_the_bytes_and_finds_a_change(cuda: Cuda) -> None:
    pool, live = SlotPool(1), tensors(cuda)
    staged = acquire(pool).stage(live, stable={"w"})
    staged.view(staged.slices[0])
    live["w"].as_subclass(torch.Tensor)[3] = 9.0
    staged.settle()
    assert staged.void is not None and "'w'" in staged.void


def test_memory_is_unpinned_before_it_is_unmapped(cuda: Cuda) -> None:
    pool = SlotPool(1)
    acquire(pool).stage({"w": on_device(cuda, torch.zeros(10))}).release()
    acquire(pool).stage({"w": on_device(cuda, torch.zeros(100_000))}).release()
    assert list(cuda.pinned.values()) == [pool.nbytes]
    pool.close(remove=False)
    assert not cuda.pinned


def test_memory_that_cannot_be_pinned_is_refused(cuda: Cuda) -> None:
    cuda.refuses = True
    pool = SlotPool(1)
    with pytest.raises(UsageError, match="cudaHostRegister: error 2"):
        acquire(pool).stage(tensors(cuda))
    assert pool.acquire() is not None


def test_a_state_on_the_host_never_asks_for_cuda(cuda: Cuda) -> None:
    acquire(SlotPool(1)).stage({"w": torch.zeros(10)}, stable={"w"}).settle()
    assert not cuda.log and not cuda.pinned
