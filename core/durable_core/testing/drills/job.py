"""L6. The training job of every drill: ``python -m durable_core.testing.drills.job ORDERS.json``.

A small model with dropout and augmentation under DistributedDataParallel (gloo), data by manifest, a
``DurableSession``: what a real job is made of. It does to itself what its orders say.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from durable_core import DurableSession, Integrity, Memory, Tiers
from durable_core.clock import SystemClock
from durable_core.data import DurableLoader, RecordDataset
from durable_core.data.manifest import load
from durable_core.engine import probe
from durable_core.testing import crash
from durable_core.testing.drills import undefended
from durable_core.testing.drills.orders import Injection, Mark, Orders
from durable_core.types import CrashPoint

FEATURES, CLASSES, GLOBAL_BATCH = 16, 4, 8
CLOCK = SystemClock()


class Job:
    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.rank, self.world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.generation = 0
        self._marks = os.open(
            Path(orders.marks) / f"{self.rank}.marks", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        self._extra = 0.0

    # --- training ----------------------------------------------------------------------------

    def run(self) -> None:
        undefended.take_away(self.orders.without)
        if self.world > 1:
            dist.init_process_group("gloo")
        torch.manual_seed(7)
        inner = nn.Sequential(
            nn.Linear(FEATURES, self.orders.width), nn.ReLU(), nn.Dropout(0.1),
            nn.Linear(self.orders.width, CLASSES),
        )  # fmt: skip
        model: nn.Module = DistributedDataParallel(inner) if self.world > 1 else inner
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        loader = self._loader()
        state = {"model": inner, "optimizer": optimizer, "loader": loader}
        tiers = Tiers(memory=Memory(directory=self.orders.memory)) if self.orders.memory else None
        with DurableSession.open(
            self.orders.root, state=state, every_n_steps=self.orders.every, tiers=tiers,
            promise=self.orders.promise or None, on_rpo_breach=self.orders.on_breach,
            rpo_steps=self.orders.rpo_steps,
            integrity=Integrity(replicas_every=self.orders.agree_every or None),
        ) as run:  # fmt: skip
            self.generation = run.run.generation
            self._mark("opened", run.steps)
            while run.steps < self.orders.steps:
                for batch in loader:
                    self._step(run, model, optimizer, batch)
                    if run.steps >= self.orders.steps:
                        break
            run.finish()
            self._end(run.steps, inner)
        if dist.is_initialized():
            dist.destroy_process_group()

    def _loader(self) -> DurableLoader:
        home = Path(self.orders.data)
        dataset = RecordDataset(load(home / "records.json"), home, transform=augmented)
        return DurableLoader(
            dataset, batch_size=GLOBAL_BATCH // self.world, seed=11, replica=self.rank,
            replicas=self.world, sample_rng="always",
        )  # fmt: skip

    def _step(
        self,
        run: DurableSession,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        batch: dict[str, Tensor],
    ) -> None:
        step = run.steps + 1
        began = CLOCK.monotonic()
        self._suffer(step, ("kill", "point", "hang", "slow", "raise", "leave", "stubborn", "disk"))
        if self._extra:
            CLOCK.sleep(self._extra)
        loss = cross_entropy(model(batch["x"]), batch["y"])
        if self._suffer(step, ("nan",)):
            loss = loss * float("nan")
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self._suffer(step, ("flip",)):
            flip(next(model.parameters()))
        optimizer.step()
        left = self.orders.step_seconds - (CLOCK.monotonic() - began)
        if left > 0:
            CLOCK.sleep(left)  # the length of a step, so that what a drill costs in steps has a meaning
        run.step(loss=loss.item())
        self._mark("step", run.steps)
        if self.orders.noted and self.rank == 0:
            with (Path(self.orders.marks) / "noted.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(reached(run.steps, model)) + "\n")
        if self.orders.wait:
            run.flush()

    def _end(self, step: int, model: nn.Module) -> None:
        self._mark("ended", step)
        if self.rank == 0:
            path = Path(self.orders.marks) / "final.json"
            path.write_text(json.dumps(reached(step, model)), encoding="utf-8")

    # --- what is done to it ------------------------------------------------------------------

    def _suffer(self, step: int, kinds: tuple[str, ...]) -> bool:
        due = [
            each
            for each in self.orders.injections
            if (each.step, each.rank) == (step, self.rank) and each.kind in kinds and self._first(each)
        ]
        for each in due:
            self._mark("injected", step, each.kind)
            getattr(self, f"_do_{each.kind}", lambda _: None)(each)
        return bool(due)

    def _first(self, injection: Injection) -> bool:
        """Whether it is due in this life."""
        if not injection.once:
            return True
        name = f"{injection.kind}-{injection.step}-{injection.rank}.done"
        try:
            os.close(os.open(Path(self.orders.marks) / name, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _do_kill(self, _: Injection) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _do_point(self, each: Injection) -> None:
        """Dies at the next arrival at that crash point."""
        probe.install(crash.killer({CrashPoint[each.argument]: 1}, crash.kill_self))

    def _do_hang(self, _: Injection) -> None:
        while True:  # a signal that is handled ends one pause only
            signal.pause()

    def _do_slow(self, each: Injection) -> None:
        self._extra = float(each.argument)

    def _do_raise(self, each: Injection) -> None:
        raise RuntimeError(f"a fault of the program, in step {each.step}")

    def _do_leave(self, each: Injection) -> None:
        os._exit(int(each.argument or "0"))

    def _do_stubborn(self, _: Injection) -> None:
        """From here on this worker ignores a polite request to end, and goes on without the others."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            signal.pause()

    def _do_disk(self, each: Injection) -> None:
        undefended.break_storage(each.argument)

    # --- what it says ------------------------------------------------------------------------

    def _mark(self, what: str, step: int, detail: str = "") -> None:
        mark = Mark(CLOCK.monotonic(), what, self.rank, os.getpid(), self.generation, step, detail)
        os.write(self._marks, (json.dumps(asdict(mark)) + "\n").encode())


def augmented(record: Any) -> dict[str, Tensor]:
    """Drawn anew whenever the record is read: of the sample's own random stream."""
    x = torch.tensor(record["x"])
    return {"x": x + 0.1 * torch.randn(x.shape), "y": torch.tensor(record["y"])}


def reached(step: int, model: nn.Module) -> dict[str, Any]:
    """Where a run has got to: the step, and the digest of its weights."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    whole = hashlib.sha256()
    for name, value in sorted(inner.state_dict().items()):
        whole.update(name.encode() + value.numpy().tobytes())
    return {"step": step, "digest": whole.hexdigest()}


def flip(parameter: nn.Parameter) -> None:
    """One exponent bit of one gradient, on this replica alone, after the replicas had agreed."""
    assert parameter.grad is not None
    bits = parameter.grad.view(-1)[:1].view(torch.int32)
    bits ^= 1 << 27


if __name__ == "__main__":
    Job(Orders.read(Path(sys.argv[1]))).run()
