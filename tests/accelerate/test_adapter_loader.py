"""A prepared loader that trains answers as Accelerate's own would; one that does not is Accelerate's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from accelerate.data_loader import DataLoaderShard
from accelerate.utils import DataLoaderConfiguration
from adapter_parts import SAMPLES, Numbers, as_in_a_new_process, forget_accelerate, step, training
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from accelerate_durable import Accelerator, DurableOptions
from accelerate_durable.leaving import How
from durable_core.data import DurableLoader


class Stream(IterableDataset[Any]):
    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[Any]:
        while self.position < SAMPLES:
            self.position += 1
            yield torch.tensor(self.position - 1), torch.full((3,), float(self.position))
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


@pytest.fixture(autouse=True)
def one_accelerator_each() -> Iterator[None]:
    yield
    forget_accelerate()


def loaders() -> dict[str, DataLoader[Any]]:
    numbers = Numbers()
    return {
        "shuffled": DataLoader(numbers, 4, shuffle=True),
        "in order": DataLoader(numbers, 4),
        "dropping": DataLoader(numbers, 4, shuffle=True, drop_last=True),
        "batch sampler": DataLoader(numbers, batch_sampler=BatchSampler(RandomSampler(numbers), 5, False)),
        "stream": DataLoader(Stream(), 4),
    }


ANSWERS = ("total_batch_size", "total_dataset_length", "batch_size", "num_workers", "drop_last", "device")


def answers(loader: Any) -> dict[str, Any]:
    found = {name: getattr(loader, name, "none") for name in ANSWERS}
    return found | {"len": len(loader) if loader.batch_sampler is not None else None}


@pytest.mark.parametrize(
    "config", [{}, {"use_seedable_sampler": True}, {"non_blocking": True}, {"use_stateful_dataloader": True}]
)
@pytest.mark.parametrize("kind", sorted(loaders()))
def test_it_answers_as_accelerates_own(kind: str, config: dict[str, Any], tmp_path: Path) -> None:
    def told(accelerator: Any) -> list[Any]:
        model, optimizer, loader = training(accelerator, loaders()[kind])
        state, seen = accelerator.gradient_state, []
        assert isinstance(loader, DataLoader)
        seen.append(answers(loader) if kind != "stream" else {})
        for _ in range(2):
            for batch in loader:
                step(accelerator, model, optimizer, batch)
                gathered = accelerator.gather_for_metrics(batch[0])
                seen.append((state.in_dataloader, state.end_of_dataloader, state.remainder, len(gathered)))
            seen.append((state.in_dataloader, loader.iteration))
        return seen

    given = DataLoaderConfiguration(**config)
    own = told(accelerate.Accelerator(cpu=True, dataloader_config=given))
    forget_accelerate()
    durable = Accelerator(cpu=True, dataloader_config=given, durable=tmp_path / "run")
    assert told(durable) == own
    durable.end_training()


def test_each_sample_once_and_the_streams_are_left_alone(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, durable=tmp_path / "run")
    model, optimizer, loader = training(accelerator, DataLoader(Numbers(), 4, shuffle=True))
    orders = []
    for _ in range(2):
        before = torch.get_rng_state()
        ids: list[int] = []
        for batch in loader:
            ids += batch[0].tolist()
            step(accelerator, model, optimizer, batch)
        assert torch.equal(before, torch.get_rng_state())
        assert sorted(ids) == list(range(SAMPLES))
        orders.append(ids)
    assert orders[0] != orders[1]
    accelerator.end_training()


def test_the_seed_of_the_data_may_be_given(tmp_path: Path) -> None:
    def order(name: str, seed: int | None, torch_seed: int) -> list[int]:
        torch.manual_seed(torch_seed)
        given = DataLoaderConfiguration(data_seed=seed, use_seedable_sampler=True)
        accelerator = Accelerator(cpu=True, durable=tmp_path / name, dataloader_config=given)
        model, optimizer, loader = training(accelerator, DataLoader(Numbers(), 4, shuffle=True))
        ids = []
        for batch in loader:
            ids += batch[0].tolist()
            step(accelerator, model, optimizer, batch)
        accelerator.end_training()
        return ids

    assert order("a", 5, 1) == order("b", 5, 2)
    assert order("c", None, 1) == order("d", None, 1)
    assert order("e", None, 2) != order("f", None, 1)


def test_the_others_stay_accelerates_own(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, durable=tmp_path / "run")
    model, optimizer, loader = training(accelerator, DataLoader(Numbers(), 4, shuffle=True))
    other = accelerator.prepare(DataLoader(Numbers(), 8))
    for batch in loader:
        step(accelerator, model, optimizer, batch)
    assert next(batch[0].tolist() for batch in other) == list(range(8))
    assert accelerator.durable.training_data.dataset is loader.dataset
    assert isinstance(other, DataLoaderShard)
    accelerator.end_training()


def test_an_evaluating_pass_over_the_training_loader_is_no_epoch(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, durable=tmp_path / "run")
    model, optimizer, loader = training(accelerator, DataLoader(Numbers(), 4, shuffle=True))
    for _ in range(2):
        for batch in loader:
            step(accelerator, model, optimizer, batch)
        with torch.no_grad():
            assert sum(len(batch[0]) for batch in loader) == SAMPLES
    assert accelerator.durable.loop.epoch == 1
    accelerator.end_training()


def test_a_durable_loader_of_the_scripts_own(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, durable=tmp_path / "run", gradient_accumulation_steps=2)
    mine = DurableLoader(Numbers(), 4, seed=3, drop_last=True)
    model, optimizer, loader = training(accelerator, mine)
    ends = []
    for batch in loader:
        step(accelerator, model, optimizer, batch)
        ends.append(accelerator.gradient_state.end_of_dataloader)
    assert ends == [False] * (len(loader) - 1) + [True]
    assert accelerator.durable.loader is mine
    accelerator.end_training()
    assert accelerator.durable.steps == -(-len(loader) // 2)


@pytest.mark.parametrize("batches", [1, 3])
def test_a_pass_left_early_is_over(batches: int, tmp_path: Path) -> None:
    """Also after its very first step, of which the loader hears at the next pass only."""
    accelerator = Accelerator(cpu=True, durable=tmp_path / "run")
    model, optimizer, loader = training(accelerator, DataLoader(Numbers(), 4))
    for epoch in range(3):
        for taken, batch in enumerate(loader, 1):
            step(accelerator, model, optimizer, batch)
            if taken == batches:
                break
        assert accelerator.durable.loop.epoch == epoch
    accelerator.end_training()
    assert accelerator.durable.steps == 3 * batches


def test_a_look_at_the_first_batch_is_no_pass(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, durable=tmp_path / "run")
    model, optimizer, loader = training(accelerator, DataLoader(Numbers(), 4, shuffle=True))
    first = next(iter(loader))
    for number, batch in enumerate(loader):
        assert number or torch.equal(first[0], batch[0])
        step(accelerator, model, optimizer, batch)
    assert accelerator.durable.loop.epoch == 0
    accelerator.end_training()


def test_sequential_and_random_sampler_are_told_apart(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, durable=tmp_path / "run")
    numbers = Numbers()
    other = accelerator.prepare(DataLoader(numbers, 4, sampler=SequentialSampler(numbers)))
    model, optimizer, loader = training(accelerator, DataLoader(numbers, 4, sampler=RandomSampler(numbers)))
    for batch in loader:
        step(accelerator, model, optimizer, batch)
        break
    assert accelerator.durable._trains is loader is not other
    accelerator.end_training()


@pytest.mark.parametrize("where", ["save_state", "commit", "batch"])
def test_modules_train_where_the_script_says_so(where: str, tmp_path: Path) -> None:
    """A checkpoint that was taken after an evaluation is not trained on in evaluation mode."""

    def life(epochs: int) -> list[bool]:
        as_in_a_new_process(tmp_path / "run")
        accelerator = Accelerator(
            cpu=True, durable=DurableOptions(root=tmp_path / "run", every_n_steps=1, backlog="delay")
        )
        model, optimizer, loader = training(accelerator, DataLoader(Numbers(), 4, shuffle=True))
        modes = []
        for _ in range(epochs):
            model.train()
            for batch in loader:
                modes.append(model.training)
                step(accelerator, model, optimizer, batch)
            model.eval()
            if where == "save_state":
                accelerator.save_state(str(tmp_path / "saved"))
            elif where == "commit":
                accelerator.commit(wait=True)
        accelerator.durable.close(How.FINISHED)
        forget_accelerate()
        return modes

    assert life(1) == [True] * 6
    left = 1 if where == "batch" else 0  # of the last step nothing was saved
    assert life(2) == [True] * (6 + left)
