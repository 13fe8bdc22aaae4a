"""What cannot be made exact, and what is a mistake: said before it costs anything, with the way out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from adapter_parts import Numbers, as_in_a_new_process, forget_accelerate, shuffled, step, training
from torch import nn
from torch.utils.data import DataLoader, Sampler

from accelerate_durable import Accelerator, DurableOptions, attach, hooks, swap
from accelerate_durable.gathering import check
from durable_core.engine.inspect import open_run
from durable_core.errors import SpecMismatchError, UnsupportedError, UsageError


@pytest.fixture(autouse=True)
def nothing_goes_on() -> Iterator[None]:
    yield
    forget_accelerate()


@pytest.fixture
def accelerator(tmp_path: Path) -> Iterator[Any]:
    made = Accelerator(cpu=True, durable=tmp_path / "run")
    yield made
    made.durable.reset()


def test_a_run_lives_somewhere() -> None:
    made = Accelerator(cpu=True)
    loader = training(made, shuffled())[2]
    with pytest.raises(UsageError, match="nobody says where") as caught:
        next(iter(loader))
    assert "project_dir" in caught.value.hint


def test_the_project_has_a_place_for_it(tmp_path: Path) -> None:
    made = Accelerator(cpu=True, project_dir=str(tmp_path))
    model, optimizer, loader = training(made, shuffled())
    step(made, model, optimizer, next(iter(loader)))
    made.end_training()
    assert open_run(tmp_path / "durable").state.terminal is not None


def test_processes_that_accelerate_takes_for_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = accelerate.Accelerator(cpu=True)
    monkeypatch.setenv("WORLD_SIZE", "2")  # as torchrun says it, where nobody has said cpu=True
    with pytest.raises(UsageError, match="2 processes were started, and Accelerate knows of 1"):
        attach(made, tmp_path / "run")


def test_two_loaders_that_shuffle(accelerator: Any) -> None:
    loader = training(accelerator, shuffled())[2]
    accelerator.prepare(shuffled())
    with pytest.raises(UnsupportedError, match="2 of 2 prepared loaders shuffle"):
        next(iter(loader))


def test_the_option_says_which(tmp_path: Path) -> None:
    made = Accelerator(cpu=True, durable=DurableOptions(root=tmp_path / "run", train_loader=1))
    model, optimizer, first = training(made, shuffled())
    second = made.prepare(shuffled())
    step(made, model, optimizer, next(iter(second)))
    assert made.durable._trains is second is not first
    made.end_training()


def test_a_step_on_batches_of_another_loader(accelerator: Any) -> None:
    other = accelerator.prepare(DataLoader(Numbers(), 4))
    model, optimizer, _ = training(accelerator, shuffled())
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(UnsupportedError, match="prepared loader 0, and the one that trains is 1"):
        step(accelerator, model, optimizer, next(iter(other)))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_step_on_batches_that_no_prepared_loader_has_handed_out(accelerator: Any) -> None:
    model, optimizer, loader = training(accelerator, shuffled())
    accelerator.durable.open()  # as load_state does
    rest = accelerate.skip_first_batches(loader, 2)  # accelerate's own: another loader, of which nobody knows
    with pytest.raises(UnsupportedError, match=r"loader 0 .* has not handed out .*accelerator.skip_first"):
        step(accelerator, model, optimizer, next(iter(rest)))


def test_under_zero_code_the_function_skips_what_the_method_skips(accelerator: Any) -> None:
    loader = training(accelerator, shuffled())[2]
    assert swap.skip_first_batches(loader, 2) is loader
    assert len(list(loader)) == len(loader) - 2
    plain = DataLoader(Numbers(), 4)
    assert len(list(swap.skip_first_batches(plain, 2))) == len(plain) - 2


def test_a_loader_that_is_read_along(accelerator: Any) -> None:
    model, optimizer, loader = training(accelerator, shuffled())
    other = accelerator.prepare(DataLoader(Numbers(), 4))
    with pytest.raises(UnsupportedError, match=r"prepared loader 1 .* read along"):
        for batch, _ in zip(loader, other, strict=True):
            step(accelerator, model, optimizer, batch)


def test_evaluation_within_an_epoch_is_none_of_these(accelerator: Any) -> None:
    model, optimizer, loader = training(accelerator, shuffled())
    other = accelerator.prepare(DataLoader(Numbers(), 4))
    for batch in loader:
        step(accelerator, model, optimizer, batch)
        for inputs in other:
            with torch.no_grad():
                model(inputs[1])
    accelerator.end_training()


class Backwards(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(21, -1, -1))

    def __len__(self) -> int:
        return 22


def test_a_sampler_without_a_state(accelerator: Any) -> None:
    loader = training(accelerator, DataLoader(Numbers(), 4, sampler=Backwards()))[2]
    with pytest.raises(UnsupportedError, match="Backwards is a sampler without state_dict"):
        next(iter(loader))


class Registered:
    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


@pytest.mark.parametrize(
    ("what", "late"),
    [
        ("a model", lambda made, model: made.prepare(nn.Linear(2, 2))),
        ("an optimizer", lambda made, model: made.prepare(torch.optim.SGD(model.parameters(), 0.1))),
        ("an object", lambda made, model: made.register_for_checkpointing(Registered())),
    ],
    ids=["model", "optimizer", "registered"],
)
def test_what_comes_after_training_has_begun(what: str, late: Any, accelerator: Any) -> None:
    model, optimizer, loader = training(accelerator, shuffled())
    step(accelerator, model, optimizer, next(iter(loader)))
    with pytest.raises(UsageError, match=f"{what} was .* after training has begun"):
        late(accelerator, model)
    accelerator.prepare(DataLoader(Numbers(), 4))  # what is evaluated with may come at any time
    accelerator.prepare_model(nn.Linear(2, 2), evaluation_mode=True)


def test_another_model_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
    def life(width: int) -> Any:
        made = Accelerator(cpu=True, durable=tmp_path / "run")
        model, optimizer, loader = training(made, shuffled(), width)
        step(made, model, optimizer, next(iter(loader)))
        made.durable.reset()

    life(1)
    slots = open_run(tmp_path / "run").view.next_seq
    with pytest.raises(SpecMismatchError, match="model/weight is 1x3 there and 2x3"):
        life(2)
    assert open_run(tmp_path / "run").view.next_seq == slots


def test_a_second_accelerator_takes_the_run(tmp_path: Path) -> None:
    first = Accelerator(cpu=True, durable=tmp_path / "run")
    model, optimizer, loader = training(first, shuffled())
    step(first, model, optimizer, next(iter(loader)))
    second = Accelerator(cpu=True, durable=tmp_path / "run")
    for batch in (taken := training(second, shuffled()))[2]:
        step(second, taken[0], taken[1], batch)
    with pytest.raises(UsageError, match="another Accelerator of this process"):
        next(iter(loader))
    second.end_training()


def test_endless_loops_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelerate_durable.passes.BEYOND", 20)
    options = DurableOptions(root=tmp_path / "run", max_steps=8)
    made = Accelerator(cpu=True, durable=options)
    model, optimizer, loader = training(made, shuffled())
    steps = passes = 0
    with (
        pytest.warns(UserWarning, match="ended at step 8, and 10 passes .* Register"),
        pytest.raises(UsageError, match="ended at step 8"),
    ):
        while True:
            passes += 1
            for batch in loader:
                steps += 1
                step(made, model, optimizer, batch)
    assert (steps, passes) == (8, 23)
    assert made.durable.session.newest[1] == 8
    made.durable.reset()


def test_loops_that_wait_for_a_count_end_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an epoch that the script names by its count of steps, and of a run that is over; a script that asks
    for no more than the epochs of a run that is over is told nothing but that."""
    monkeypatch.setattr("accelerate_durable.passes.BEYOND", 12)

    def another(epochs: int = 0) -> tuple[Accelerator, Any]:
        as_in_a_new_process(tmp_path / "run")
        made = Accelerator(cpu=True, durable=tmp_path / "run")
        model, optimizer, loader = training(made, shuffled())
        for epoch in range(epochs):
            loader.set_epoch(epoch)
            for batch in loader:
                step(made, model, optimizer, batch)
        return made, loader

    def asks(loader: Any, passes: int) -> None:
        for _ in range(passes):
            loader.set_epoch(0)
            assert not list(loader)

    another(epochs=2)[0].save_state(tmp_path / "saved")
    made, loader = another()
    with pytest.warns(UserWarning, match="epoch 0 is over, and 10 passes"):
        asks(loader, 11)  # the first one is where every restart begins
    with pytest.raises(UsageError, match="epoch 0 is over"):
        asks(loader, 3)
    made.durable.reset()
    another(epochs=3)[0].end_training()
    made, loader = another()
    with pytest.warns(UserWarning, match="has ended at step 18, and nothing is trained") as caught:
        asks(loader, 12)
    assert len(caught) == 1
    with pytest.warns(UserWarning, match="ended at step 18, and 10 passes"):
        asks(loader, 1)
    made.durable.reset()


class Spread:
    distributed_type = accelerate.utils.DistributedType.FSDP
    parallelism_config = None


def test_a_model_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "check", lambda accelerator: None)
    with pytest.raises(UnsupportedError, match="FSDP"):
        check(Spread())  # type: ignore[arg-type]


# --- attach ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_accelerator_that_exists(when: str, tmp_path: Path) -> None:
    """Also with what it has prepared already: the script goes on with the objects that it has."""
    made = accelerate.Accelerator(cpu=True)
    if when == "before":
        assert attach(made, tmp_path / "run") is made
    model, optimizer, loader = training(made, shuffled())
    if when == "after":
        attach(made, tmp_path / "run")
    for batch in loader:
        step(made, model, optimizer, batch)
    made.end_training()
    assert isinstance(made, Accelerator)
    assert open_run(tmp_path / "run").newest_usable().step == 6


def test_a_class_of_the_scripts_own_keeps_what_it_does(tmp_path: Path) -> None:
    class Mine(accelerate.Accelerator):  # type: ignore[misc]
        losses = 0

        def backward(self, loss: Any, **kwargs: Any) -> None:
            self.losses += 1
            super().backward(loss, **kwargs)

    made = attach(Mine(cpu=True), tmp_path / "run")
    model, optimizer, loader = training(made, shuffled())
    step(made, model, optimizer, next(iter(loader)))
    made.end_training()
    assert isinstance(made, Mine)
    assert made.losses == 1


def test_once_is_enough(accelerator: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="durable already"):
        attach(accelerator, tmp_path / "other")


def test_another_share_for_one_pass(accelerator: Any) -> None:
    model, optimizer, loader = training(accelerator, shuffled())
    for batch in loader:
        step(accelerator, model, optimizer, batch)
    loader.batch_sampler.even_batches = False  # as join_uneven_inputs does for a while
    with pytest.raises(UnsupportedError, match="even_batches was True"):
        next(iter(loader))
