"""Two processes of gloo: shares and ends as Accelerate's own, exits as the session's."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from accelerate.utils import DataLoaderConfiguration
from accelerate_lives import group
from adapter_parts import SAMPLES, Numbers, forget_accelerate, shuffled, step, training
from torch.utils.data import DataLoader, IterableDataset

from accelerate_durable import Accelerator
from durable_core.engine.inspect import open_run
from durable_core.session.run import Run
from durable_core.session.settings import Settings


class Stream(IterableDataset[Any]):
    """24 samples: what a stream has must fill the shares of all."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[Any]:
        while self.position < 24:
            self.position += 1
            yield torch.tensor(self.position - 1), torch.full((3,), float(self.position))
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


#: Models under DDP, to the end of the process. Freed earlier, the last one takes the process group along, and
#: torch joins its thread while holding the lock that a gather just done makes that thread wait for.
_kept: list[Any] = []


def write(path: Path, **line: Any) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def passes(accelerator: Any, loader: Any, path: Path) -> None:
    """Two, with all that Accelerate tells a script about their batches."""
    model, optimizer, loader = training(accelerator, loader)
    _kept.append(model)
    state = accelerator.gradient_state
    for _ in range(2):
        for batch in loader:
            step(accelerator, model, optimizer, batch)
            gathered = accelerator.gather_for_metrics(batch[0])
            write(
                path, ids=sorted(gathered.tolist()), own=len(batch[0]), end=state.end_of_dataloader,
                remainder=state.remainder, sync=accelerator.sync_gradients,
            )  # fmt: skip
    weights = [parameter.sum().item() for parameter in model.parameters()]
    write(path, iteration=loader.iteration, same=weights)


LOADERS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "evened out": (lambda: DataLoader(Numbers(), 4), {}),
    "shuffled": (shuffled, {}),
    "dropping": (lambda: DataLoader(Numbers(), 4, drop_last=True), {}),
    "split": (lambda: DataLoader(Numbers(), 8), {"split_batches": True}),
    "dispatched": (lambda: DataLoader(Numbers(), 4), {"dispatch_batches": True}),
    "stream": (lambda: DataLoader(Stream(), 4, drop_last=True), {}),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes of Accelerate's own were told of each kind of loader, and two of ours."""
    home = tmp_path_factory.mktemp("told")

    def life(rank: int, durable: bool) -> None:
        for kind, (make, config) in LOADERS.items():
            forget_accelerate()
            torch.manual_seed(3)
            given: dict[str, Any] = {
                "cpu": True,
                "dataloader_config": DataLoaderConfiguration(**config),
                "gradient_accumulation_steps": 2,
            }
            if durable:
                made = Accelerator(**given, durable=home / f"run of {kind}")
                passes(made, make(), home / f"{kind}.ours.{rank}")
                made.durable.finish()
            else:
                passes(accelerate.Accelerator(**given), make(), home / f"{kind}.own.{rank}")

    for durable in (False, True):
        ended = group(home, 2, lambda rank, durable=durable: life(rank, durable))
        assert ended == [0, 0], (home / "output").read_text()
    return home


@pytest.mark.parametrize("kind", sorted(LOADERS))
def test_shares_and_ends_are_accelerates(kind: str, told: Path) -> None:
    own, ours = (read(told / f"{kind}.{whose}.0") for whose in ("own", "ours"))
    assert _without_order(ours) == _without_order(own)
    samples = [[i for line in lines[:-1] for i in line["ids"]] for lines in (own, ours)]
    assert len(samples[0]) == len(samples[1])
    if kind != "dropping":
        every = set(range(24 if kind == "stream" else SAMPLES))
        assert set(samples[0]) == set(samples[1]) == every
    assert read(told / f"{kind}.ours.1")[-1]["same"] == ours[-1]["same"]


def _without_order(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Which samples a batch has is another matter, and so is what is learnt from them."""
    return [{name: line[name] for name in line if name not in ("ids", "same")} for line in lines]


def training_until(tmp_path: Path, act: Callable[[int, int], None]) -> list[int]:
    """Exit codes; ``act(rank, batch)`` before the step on each."""

    def life(rank: int) -> None:
        made = Accelerator(cpu=True, durable=tmp_path / "run")
        model, optimizer, loader = training(made, shuffled())
        _kept.append(model)
        number = 0
        for _ in range(4):
            for batch in loader:
                number += 1
                act(rank, number)
                step(made, model, optimizer, batch)
        made.end_training()

    return group(tmp_path, 2, life)


def test_sigterm_to_one_drains_all(tmp_path: Path) -> None:
    def act(rank: int, batch: int) -> None:
        if rank == 1 and batch == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    assert training_until(tmp_path, act) == [75, 75], (tmp_path / "output").read_text()
    assert open_run(tmp_path / "run").newest_usable().step >= 4
    assert training_until(tmp_path, lambda rank, batch: None) == [0, 0], (tmp_path / "output").read_text()
    assert open_run(tmp_path / "run").newest_usable().step == 12


def test_who_is_superseded_exits_as_fenced(tmp_path: Path) -> None:
    """Another launch takes the run over while this one trains."""

    def life(_: int) -> None:
        made = Accelerator(cpu=True, durable=tmp_path / "run")
        model, optimizer, loader = training(made, shuffled())
        for number in range(2000):
            for batch in loader:
                step(made, model, optimizer, batch)
            if number == 0:
                session = made.durable.session
                settings = Settings(takeover=True)
                Run.open(tmp_path / "run", settings=settings, spec=session.run._coordinator.spec).close()
        made.end_training()

    assert group(tmp_path, 1, life) == [76], (tmp_path / "output").read_text()
