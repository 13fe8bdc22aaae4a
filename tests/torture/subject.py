"""The run that is killed: a tiny Lightning training that writes down everything it does.

Every rank of every life appends to one log of its own: where it starts, each batch (the state before it,
ids, a hash of the augmented input and of the activations behind dropout) and the state after each step. A
history is right when every line of every life, the steps that a kill then undid included, is a line of the
uninterrupted run.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tests.torture.tiers_places import Places

SAMPLES = 48
WIDTH = 16


@dataclass(frozen=True)
class Cell:
    """One combination of the matrix."""

    workers: int
    accumulate: int
    world: int
    steps: int = 16
    every: int = 2
    batch: int = 4

    @property
    def name(self) -> str:
        return f"workers{self.workers}-accumulate{self.accumulate}-processes{self.world}"


@dataclass(frozen=True)
class Birth:
    """What one rank of one life is told."""

    cell: Cell
    root: str
    log: str
    rank: int
    port: int
    crash: str = ""
    places: Places | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Birth:
        document = json.loads(text)
        places = document["places"]
        parts = {"cell": Cell(**document["cell"]), "places": places and Places.from_json(places)}
        return Birth(**{**document, **parts})


class Journal:
    """Append-only lines, one ``write`` each: a SIGKILL leaves whole lines."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, **line: Any) -> None:
        os.write(self._fd, json.dumps(line, sort_keys=True).encode() + b"\n")


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, bytes]]:
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from leaves(value[key], f"{path}/{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}/{index}")
    elif hasattr(value, "numpy"):
        yield path, value.detach().contiguous().numpy().tobytes()
    else:
        yield path, repr(value).encode()


def digest(*states: Any) -> str:
    total = hashlib.blake2b(digest_size=12)
    for path, data in leaves(states):
        total.update(path.encode() + b"=" + data)
    return total.hexdigest()


def overhear(board: Any, journal: Journal) -> None:
    """Every event of this process into a file, the ones from before a listener can be added included."""
    emit = board.emit

    def heard(self: Any, event: Any) -> None:
        journal.write(**event.to_json())
        emit(self, event)

    board.emit = heard


def train(birth: Birth) -> None:
    """One life of one rank, from its first line to its last. Frameworks are imported here."""
    cell = birth.cell
    os.environ["PYTHONWARNINGS"] = "ignore"
    if birth.places is not None:
        os.environ.update(birth.places.env)
    if cell.world > 1:
        os.environ.update(
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(birth.port), NODE_RANK="0", LOCAL_RANK=str(birth.rank)
        )  # fmt: skip

    import lightning as L
    import torch
    from torch.utils.data import DataLoader

    from durable_core.engine import probe
    from durable_core.session.status import Board
    from durable_core.testing import crash
    from durable_core.types import CrashPoint
    from lightning_durable import DurableCheckpoint
    from tests.torture.model import Noted, Samples

    strike = crash.killer(crash.parse(birth.crash), crash.kill_self)
    arrivals: Counter[str] = Counter()

    def arrived(point: CrashPoint) -> None:
        arrivals[point.name] += 1
        strike(point)

    probe.install(arrived)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    L.seed_everything(20, workers=True, verbose=False)
    journal = Journal(birth.log)
    tiers = None if birth.places is None else birth.places.tiers()
    overhear(Board, Journal(f"{birth.log}.events"))
    model = Noted(journal)
    train_loader = DataLoader(
        Samples(SAMPLES, WIDTH), batch_size=cell.batch, shuffle=True, num_workers=cell.workers
    )
    val_loader = DataLoader(Samples(8, WIDTH), batch_size=8)
    trainer = L.Trainer(
        accelerator="cpu", devices=cell.world, strategy="ddp" if cell.world > 1 else "auto",
        max_steps=cell.steps, accumulate_grad_batches=cell.accumulate,
        val_check_interval=5 * cell.accumulate, check_val_every_n_epoch=None,
        callbacks=[DurableCheckpoint(birth.root, every_n_train_steps=cell.every, tiers=tiers)],
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, train_loader, val_loader)
    journal.write(kind="end", step=trainer.global_step, state=model.state_digest(), arrivals=arrivals)


def born(text: str) -> None:
    """A forked child: its own session, its output in a file, then the life."""
    birth = Birth.from_json(text)
    os.setsid()
    multiprocessing.set_start_method("fork", force=True)  # for loader workers, as in any script
    output = os.open(f"{birth.log}.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    train(birth)


if __name__ == "__main__":
    born(sys.argv[1])
