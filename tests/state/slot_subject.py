"""Seals for tests, a directory in real shared memory, and the child that is killed while it stages."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from durable_core.format import digests
from durable_core.format.seal import Seal
from durable_core.state.snapshots import Snapshot
from durable_core.state.staging import Slot, SlotPool, Staged
from durable_core.types import SliceInfo

RUN = "a" * 32


@contextmanager
def shared_directory() -> Iterator[Path]:
    """A fresh directory in shared memory, removed at the end."""
    base = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    path = Path(tempfile.mkdtemp(prefix="durable-test-", dir=base))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def acquire(pool: SlotPool) -> Slot:
    slot = pool.acquire()
    assert slot is not None
    return slot


def infos_of(staged: Staged) -> tuple[SliceInfo, ...]:
    return tuple(
        SliceInfo(
            piece, staged.dtype(piece.key), staged.global_shape(piece.key), staged.view(piece).nbytes,
            digests.xxh3(staged.view(piece)), digests.crc32c(staged.view(piece)),
        )
        for piece in staged.slices
    )  # fmt: skip


def seal_of(staged: Staged, step: int, *, generation: int = 1, run_id: str = RUN, role: str = "dp0") -> Seal:
    return Seal(
        run_id=run_id, generation=generation, launch_id="b" * 32, role=role, roles=(role,), step=step,
        head=None, after=None, infos=infos_of(staged), body={"step": step}, ledger=b"rows" * step,
    )  # fmt: skip


def state(step: int, size: int = 40_000) -> dict[str, torch.Tensor]:
    return {
        "w": torch.full((size,), float(step)),
        "t": torch.full((40, size // 40), float(step)).t(),
        "h": torch.full((size // 4,), float(step), dtype=torch.bfloat16),
        "step": torch.tensor(step),
    }


def save(pool: SlotPool, step: int, *, generation: int = 1, role: str = "dp0", size: int = 40_000) -> Staged:
    """Stage in the background, guard, seal; not released."""
    staged = acquire(pool).stage(state(step, size), stable={"w", "t"})
    staged.settle()
    staged.seal(seal_of(staged, step, generation=generation, role=role))
    return staged


def check(snapshot: Snapshot) -> int:
    """Every byte of the snapshot is that of its step, which is returned."""
    step = snapshot.seal.step
    wanted = {key: tensor.contiguous() for key, tensor in state(step).items()}
    assert {info.slice.key for info in snapshot.seal.infos} == set(wanted)
    for info in snapshot.seal.infos:
        bytes_of = wanted[info.slice.key].reshape(-1).view(torch.uint8).numpy().tobytes()
        assert snapshot.view(info) == bytes_of, info
    assert (snapshot.seal.body, snapshot.seal.ledger) == ({"step": step}, b"rows" * step)
    return step


def train_until_killed(pool: SlotPool, acknowledge: int) -> None:
    """Save for ever; one byte into the pipe ``acknowledge`` after each seal."""
    step = 0
    while True:
        step += 1
        save(pool, step).release()
        os.write(acknowledge, b".")
