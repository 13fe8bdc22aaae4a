"""A loop that waits for its data, and a mixture that strays, are told: once, with what a person needs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from durable_core import DurableSession, events
from durable_core.clock import SystemClock
from durable_core.data import DurableLoader, Mixture
from durable_core.errors import UsageError
from durable_core.session.notices import sentence_of
from durable_core.session.settings import Settings
from durable_core.session.watching import MixtureWatch, SupplyWatch

EVERY = 100


class Hand(SystemClock):
    """Monotonic time moves when the test says so."""

    at = 0.0

    def monotonic(self) -> float:
        return self.at


class Heard:
    """All of a board that is needed here."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def emit(self, event: events.Event) -> None:
        self.events.append(event)


def loader(**more: Any) -> DurableLoader:
    return DurableLoader(list(range(1000)), 10, num_workers=1, seed=1, **more)


class Loop:
    """Steps of ``step_s`` seconds beside waiting; fetches and waits as a loader would have measured them."""

    def __init__(self, data: DurableLoader, *, every: int = EVERY, batches: int = 1) -> None:
        self.clock, self.heard, self.data, self.batches = Hand(), Heard(), data, batches
        self.watch = SupplyWatch(every, self.heard, self.clock)  # type: ignore[arg-type]
        self.step = 0
        self.boundary()

    def boundary(self) -> None:
        self.watch.boundary(self.step, self.data)

    def run(
        self,
        steps: int,
        *,
        step_s: float = 0.05,
        fetch: Callable[[int], float] = lambda _: 0.01,
        waited: Callable[[int], float] = lambda _: 0.0,
        compute: float = 0.0,
        read: float = 0.0,
    ) -> list[Any]:
        for _ in range(steps):
            self.step += 1
            for _ in range(self.batches):
                measured = self.data.metrics()
                seconds = fetch(self.step)
                measured.measure("fetch", seconds)
                measured.measure("compute", seconds * compute)
                measured.measure("read", seconds * read)
                measured.measure("wait", waited(self.step))
                self.clock.at += waited(self.step)
            self.clock.at += step_s
            self.boundary()
        return self.heard.events


def slow_now_and_then(step: int) -> float:
    return 0.5 if step % 20 == 0 else 0.01


def test_a_steady_supply_says_nothing() -> None:
    assert not Loop(loader()).run(5 * EVERY)


def test_a_mean_that_suffices_with_a_tail_that_does_not_is_told() -> None:
    loop = Loop(loader())
    (event,) = loop.run(EVERY, fetch=slow_now_and_then, waited=lambda s: 0.45 * (s % 20 == 0), read=2.0)
    assert isinstance(event, events.InputStarved)
    assert (event.step, event.windows, event.bottleneck) == (EVERY, 1, "I/O")
    assert event.required == pytest.approx(10 / 0.05)  # of the step without its waiting
    assert event.supplied < event.required and "slow ones stop the step" in event.reason
    assert event.waited == pytest.approx(5 * 0.45 / (EVERY * 0.05 + 5 * 0.45))
    said = sentence_of(event)
    assert said is not None and "31% of its time" in said and "I/O" in said and "\n" not in said
    assert event.to_json()["bottleneck"] == "I/O"


@pytest.mark.parametrize(("read", "named"), [(3.0, "I/O"), (0.9, "parallelism")])
def test_what_holds_reading_back_is_named(read: float, named: str) -> None:
    (event,) = Loop(loader()).run(EVERY, fetch=lambda _: 0.2, waited=lambda _: 0.15, compute=0.01, read=read)
    assert event.bottleneck == named and "on average" in event.reason


def test_a_step_of_several_batches_needs_all_of_them() -> None:
    assert not Loop(loader(), batches=1).run(EVERY, fetch=lambda _: 0.03)
    (event,) = Loop(loader(), batches=4).run(EVERY, fetch=lambda _: 0.03)
    assert event.required == pytest.approx(4 * 10 / 0.05)
    assert sentence_of(event) is None  # nothing was waited for: what was read ahead made up for it


def test_only_the_window_counts_and_it_is_told_less_and_less() -> None:
    loop = Loop(loader())
    assert not loop.run(EVERY)
    loop.run(7 * EVERY, fetch=lambda _: 0.2, waited=lambda _: 0.15)
    told = [event for event in loop.heard.events if sentence_of(event)]
    assert [event.step for event in loop.heard.events] == [EVERY * k for k in range(2, 9)]
    assert [event.windows for event in told] == [1, 2, 4]
    loop.run(2 * EVERY)
    assert len(loop.heard.events) == 7  # over, and the slow ones are forgotten


def test_it_can_be_switched_off_and_needs_a_loader_whose_fetches_are_known() -> None:
    assert not Loop(loader(), every=0).run(3 * EVERY, fetch=lambda _: 0.2, waited=lambda _: 0.15)
    heard = Heard()
    watch = SupplyWatch(1, heard, Hand())  # type: ignore[arg-type]
    for step in range(5):
        watch.boundary(step, None)
    assert not heard.events
    with pytest.raises(UsageError, match="supply_window"):
        Settings(supply_window=-1)


def test_another_loader_begins_a_window() -> None:
    loop = Loop(loader())
    loop.run(EVERY // 2, fetch=lambda _: 0.2, waited=lambda _: 0.15)
    loop.data = loader()
    assert not loop.run(EVERY // 2, fetch=lambda _: 0.2, waited=lambda _: 0.15)
    assert [event.step for event in loop.run(EVERY, fetch=lambda _: 0.2, waited=lambda _: 0.15)] == [200]


# --- mixtures --------------------------------------------------------------------------------------


class Numbers:
    def __init__(self, name: str, size: int) -> None:
        self.dataset_id, self.size = f"sha256:{name}", size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


def mixture(**more: Any) -> Mixture:
    return Mixture({"a": Numbers("a", 60), "b": Numbers("b", 40)}, {"a": 0.6, "b": 0.4}, **more)


def position(mixed: Mixture, draws: tuple[int, int], **more: Any) -> dict[str, Any]:
    sequence = mixed.sequence(seed=1)
    state = {**sequence.start(0), "draws": list(draws), **more}
    return {"plan": dict(sequence.description), "source": {"state": {"batches": 1, "sequence": state}}}


def test_a_skewed_mixture_is_told_with_source_target_actual_and_window() -> None:
    heard, mixed = Heard(), mixture(schedule="categorical", window=1000)
    watch = MixtureWatch(heard, SystemClock())  # type: ignore[arg-type]
    watch.saving(1, position(mixed, (60, 40)))
    watch.saving(2, position(mixed, (360, 40)))  # skewed, and not over a whole window yet
    assert not heard.events
    watch.saving(3, position(mixed, (860, 290)))
    assert [(event.source, event.target, event.actual, event.window) for event in heard.events] == [
        ("a", pytest.approx(630), 800, (100, 1150)),
        ("b", pytest.approx(420), 250, (100, 1150)),
    ]
    said = sentence_of(heard.events[0])
    assert said is not None and "step 3" in said and "'a'" in said and "630" in said
    watch.saving(4, position(mixed, (1460, 690)))
    assert len(heard.events) == 2  # a new window, as it should be


def test_other_weights_begin_another_window() -> None:
    heard, mixed = Heard(), mixture(schedule="categorical", window=100)
    watch = MixtureWatch(heard, SystemClock())  # type: ignore[arg-type]
    watch.saving(1, position(mixed, (0, 0)))
    watch.saving(2, position(mixed, (500, 0), version=1))
    watch.saving(3, position(mixed, (560, 40), version=1))
    assert not heard.events


def test_data_without_a_mixture_costs_nothing() -> None:
    heard = Heard()
    MixtureWatch(heard, SystemClock()).saving(1, {"epoch": 0, "batch": 3})  # type: ignore[arg-type]
    assert not heard.events


def train(root: Path, mixed: Mixture, steps: int, **more: Any) -> list[str]:
    """What a person is told."""
    data = DurableLoader(mixed, 4, seed=3)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = {"model": model, "optimizer": optimizer, "loader": data}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with DurableSession.open(root, state=state, every_n_steps=1, backlog="delay", **more) as session:
            while session.steps < steps:
                for _ in data:
                    optimizer.step()
                    session.step()
                    if session.steps == steps:
                        break
    return [str(each.message) for each in said]


def test_a_source_that_ran_out_is_told_once_and_not_again_after_a_restart(tmp_path: Path) -> None:
    sources, weights = {"a": Numbers("a", 60), "b": Numbers("b", 40)}, {"a": 0.9, "b": 0.1}
    mixed = Mixture(sources, weights, exhaustion="renormalize")
    told = [said for said in train(tmp_path / "run", mixed, 20) if "ran out" in said]
    assert len(told) == 1 and "'a'" in told[0] and "60 draws" in told[0]
    assert not [said for said in train(tmp_path / "run", mixed, 23) if "ran out" in said]


def test_a_session_looks_every_so_many_steps_or_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[int] = []
    monkeypatch.setattr(SupplyWatch, "_judge", lambda _, step, *rest: judged.append(step))
    train(tmp_path / "some", mixture(), 10, supply_window=3)
    assert judged == [4, 7, 10]
    judged.clear()
    train(tmp_path / "none", mixture(), 10, supply_window=0)
    assert not judged
