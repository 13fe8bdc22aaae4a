"""Savers of a plain loop, peers and ours. Each takes its side in one small function."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch

from tests.bench.rivals.meters import Landings, Plan, Tape, fsync_tree
from tests.bench.rivals.workload import Workload

Boundary = Callable[[int], None]


class Saver:
    """What a loop calls. ``before_update`` is what a peer's own documentation tells its users to wait for."""

    def __init__(self, save: Boundary, *, every_boundary: bool = False) -> None:
        self.save, self.every_boundary = save, every_boundary
        self.before_update: Callable[[], None] = lambda: None
        self.after_boundary: Callable[[], object] = lambda: None
        self.close: Callable[[], object] = lambda: None


Make = Callable[[Workload, Plan, Path, Landings], Saver]


def train(work: Workload, plan: Plan, base: Path, tape: Tape, make: Make) -> None:
    saver = make(work, plan, base, tape.landings)
    work.optimizer.register_step_pre_hook(lambda *_: saver.before_update())
    tape.watch(work.optimizer)
    for number in range(1, plan.steps + 1):
        tape.begin()
        work.compute()
        tape.mark("computed")
        work.optimizer.step()
        tape.updated()
        if saver.every_boundary or plan.due(number):
            saver.save(number)
        tape.mark("ended")
        saver.after_boundary()
    saver.close()


def trees(work: Workload) -> dict[str, Any]:
    return {"model": work.model.state_dict(), "optimizer": work.optimizer.state_dict()}


def nothing(work: Workload, plan: Plan, base: Path, landings: Landings) -> Saver:
    """No save at all: what the harness itself sees, as an error bar."""
    return Saver(landings.land)


def torch_save(work: Workload, plan: Plan, base: Path, landings: Landings) -> Saver:
    def save(number: int) -> None:
        _replaced(base / f"{number}.pt", lambda path: torch.save(trees(work), path))
        landings.land(number)

    return Saver(save)


def safetensors(work: Workload, plan: Plan, base: Path, landings: Landings) -> Saver:
    from safetensors.torch import save_file

    def save(number: int) -> None:
        tensors = {f"model.{name}": value for name, value in work.model.state_dict().items()}
        for index, moments in work.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": value for name, value in moments.items()}
        _replaced(base / f"{number}.safetensors", lambda path: save_file(tensors, path))
        landings.land(number)

    return Saver(save)


def _replaced(path: Path, write: Callable[[str], object]) -> None:
    """As a careful script does it: a temporary, fsync, rename, fsync of the directory."""
    temporary = path.with_suffix(".tmp")
    write(str(temporary))
    for target in (temporary, path.parent):
        if target == path.parent:
            temporary.replace(path)
        fd = os.open(target, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def dcp_sync(work: Workload, plan: Plan, base: Path, landings: Landings) -> Saver:
    from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

    def save(number: int) -> None:
        dcp_save(trees(work), checkpoint_id=base / str(number), no_dist=True)

    return _synced_afterwards(save, base, landings)


def _synced_afterwards(save: Boundary, base: Path, landings: Landings) -> Saver:
    """Sync by a loop's eyes, and not durable: the fsync is ours, between the steps, in no stall."""
    saver = Saver(save)

    def after() -> None:
        if landings.pending:
            fsync_tree(base)
            landings.land()

    saver.after_boundary = after
    return saver


def dcp_thread(work: Workload, plan: Plan, base: Path, landings: Landings) -> Saver:
    return _dcp_async(work, base, landings, "THREAD")


def dcp_process(work: Workload, plan: Plan, base: Path, landings: Landings) -> Saver:
    return _dcp_async(work, base, landings, "PROCESS", shared=True)


def dcp_overlapped(work: Workload, plan: Plan, base: Path, landings: Landings) -> Saver:
    """Its staging in a thread as well: awaited before the update, as its documentation says."""
    return _dcp_async(work, base, landings, "THREAD", overlapped=True)


def _dcp_async(
    work: Workload, base: Path, landings: Landings, kind: str, *, shared: bool = False,
    overlapped: bool = False,
) -> Saver:  # fmt: skip
    """At its best: one stager kept for all saves, so that its buffers are reused."""
    import torch.distributed as dist
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save

    dist.init_process_group("gloo", init_method=f"file://{base}.store", rank=0, world_size=1)
    stager = DefaultStager(StagingOptions(False, shared, overlapped, False))
    staged: list[Future[Any]] = []

    def save(number: int) -> None:
        reply = async_save(
            trees(work), checkpoint_id=base / str(number), async_stager=stager,
            async_checkpointer_type=AsyncCheckpointerType[kind],
        )  # fmt: skip
        written = reply if isinstance(reply, Future) else reply.upload_completion
        if not isinstance(reply, Future):
            staged.append(reply.staging_completion)
        written.add_done_callback(lambda done: _landed(done, base, number, landings))

    def before_update() -> None:
        while staged:
            staged.pop().result()

    def close() -> None:
        stager.close()
        dist.destroy_process_group()

    saver = Saver(save)
    saver.before_update, saver.close = before_update, close
    return saver


def _landed(done: Future[Any], base: Path, number: int, landings: Landings) -> None:
    error = done.exception()
    if error is not None:
        landings.lose(number, repr(error))
        return
    fsync_tree(base)  # DCP syncs its files; what is left are the directories
    landings.land(number)


def accelerate(work: Workload, plan: Plan, base: Path, landings: Landings) -> Saver:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    accelerator.prepare(work.model, work.optimizer)

    def save(number: int) -> None:
        accelerator.save_state(str(base / str(number)))

    return _synced_afterwards(save, base, landings)


def durable_session(work: Workload, plan: Plan, base: Path, landings: Landings) -> Saver:
    return _durable(work, plan, base, landings, None)


def durable_memory(work: Workload, plan: Plan, base: Path, landings: Landings) -> Saver:
    """The staging slots are files in shared memory, sealed: what a worker's death leaves behind."""
    from durable_core.session.places import Memory, Tiers

    shared = tempfile.TemporaryDirectory(prefix="durable-bench-", dir="/dev/shm")
    saver = _durable(work, plan, base, landings, Tiers(memory=Memory(directory=shared.name)))
    close = saver.close

    def close_and_remove() -> None:
        close()
        shared.cleanup()

    saver.close = close_and_remove
    return saver


def _durable(work: Workload, plan: Plan, base: Path, landings: Landings, tiers: Any) -> Saver:
    from durable_core import DurableSession

    state = {"model": work.model, "optimizer": work.optimizer}
    session = DurableSession.open(base / "run", state=state, every_n_steps=plan.every, tiers=tiers)
    listen(session.run, landings)

    def boundary(number: int) -> None:
        session.step()

    saver = Saver(boundary, every_boundary=True)
    saver.close = session.close
    return saver


def listen(run: Any, landings: Landings) -> None:
    """Our commits and losses, on the thread they happen on."""
    from durable_core import events

    def hear(event: events.Event) -> None:
        if isinstance(event, events.SaveCommitted):
            landings.land(event.step)
        elif isinstance(event, events.SaveFailed):
            landings.lose(event.step, event.error)
        elif isinstance(event, events.SaveSkipped):
            landings.lose(event.step, event.reason)

    run.board.listeners.append(hear)
