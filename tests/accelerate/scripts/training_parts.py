"""What the scripts train: noise with augmentation, a net with dropout, and a log of what was computed."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, get_worker_info

SAMPLES, WIDTH = 64, 6

#: Told of every line when it is written: where a test ends the process.
strike: Callable[[str], None] | None = None


def digest(*tensors: Tensor) -> str:
    total = hashlib.blake2b(digest_size=10)
    for tensor in tensors:
        total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


class Kill:
    """``TRAINING_KILL=rank:what:number:file``: that rank dies at its ``number``-th line of a kind, in the
    process that finds no ``file`` yet and makes it."""

    def __init__(self, rank: str, what: str, number: str, file: str) -> None:
        self._here = rank == os.environ.get("RANK", "0")
        self._what, self._left, self._file = what, int(number), Path(file)

    @classmethod
    def asked(cls, told: str | None) -> Kill | None:
        return None if told is None else cls(*told.split(":", 3))

    def count(self, what: str) -> None:
        self._left -= what == self._what
        if self._here and what == self._what and self._left == 0 and not self._file.exists():
            self._file.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Notes:
    """Appends one JSON line at a time: a process that is killed leaves whole ones."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._kill = Kill.asked(os.environ.get("TRAINING_KILL"))
        if self._kill is not None:
            self.write("begun")

    def write(self, what: str, **told: Any) -> None:
        os.write(self._fd, json.dumps({"what": what, **told}).encode() + b"\n")
        if strike is not None:
            strike(what)
        if self._kill is not None:
            self._kill.count(what)


def ranked(path: str) -> str:
    """Each process has files of its own."""
    return f"{path}.{os.environ.get('RANK', '0')}"


def ended(notes: Notes, weights: str, *modules: nn.Module) -> None:
    """The final weights: to a file, and their digest to the log."""
    state = {f"{n}.{name}": value for n, m in enumerate(modules) for name, value in m.state_dict().items()}
    torch.save(state, Path(ranked(weights)))
    notes.write("end", weights=digest(*state.values()))


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """``(id, x)``, x with fresh noise at each look."""

    def __init__(self, count: int = SAMPLES) -> None:
        self.base = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(7))

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.tensor(index), self.base[index] + 0.1 * torch.rand(WIDTH)


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """The same without a length, with a position of its own, shared out to the workers by stride."""

    def __init__(self, count: int = SAMPLES) -> None:
        self.source = Samples(count)
        self.position = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        while self.position * workers + worker < len(self.source):
            index = self.position * workers + worker
            self.position += 1
            yield self.source[index]
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class Net(nn.Module):
    """Keeps what came through the dropout last."""

    hidden: Tensor

    def __init__(self, *, norm: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 12)
        self.norm = nn.BatchNorm1d(12) if norm else nn.Identity()
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.drop(torch.relu(self.norm(self.first(x))))
        self.hidden = hidden.detach()
        out: Tensor = self.last(hidden)
        return out.squeeze(1)


class Counter:
    """What a script registers, so that its own count goes on."""

    def __init__(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


def loss_of(out: Tensor, x: Tensor) -> Tensor:
    return (out - x.sum(1)).square().mean()
