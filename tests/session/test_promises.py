"""The four promises: selectable, written down, never strengthened, weakened in the open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from durable_core import DurableSession, errors
from durable_core.data import DurableLoader
from durable_core.engine.audit import audit
from durable_core.engine.audit.explain import explain
from durable_core.engine.inspect import open_run
from durable_core.types import Promise

LATTICE = [(was, now) for was in Promise for now in Promise]
WHY = "only the shape of the loss curve is compared"


def accepted(promise: Promise) -> dict[str, Any]:
    return {"promise": promise, "accept_distribution": WHY if promise is Promise.DISTRIBUTION else ""}


def train(root: Path, steps: int = 1, **settings: Any) -> None:
    model = torch.nn.Linear(1, 1)
    loader = DurableLoader([float(i) for i in range(12)], batch_size=2, seed=3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    state = {"model": model, "optimizer": optimizer, "loader": loader}
    with DurableSession.open(root, state=state, every_n_steps=1, **settings) as session:
        for _, batch in zip(range(steps), loader, strict=False):
            model(batch[:, None].float()).sum().backward()
            optimizer.step()
            session.step()
            session.flush()


@pytest.mark.parametrize(("was", "now"), LATTICE, ids=lambda promise: promise.value)
def test_a_restart_may_ask_for_less_and_never_for_more(tmp_path: Path, was: Promise, now: Promise) -> None:
    train(tmp_path, **accepted(was))
    if not was.implies(now):
        with pytest.raises(errors.SpecMismatchError, match="never stronger"):
            train(tmp_path, **accepted(now))
        assert open_run(tmp_path).state.promise is was
        return
    train(tmp_path, **accepted(now))
    reader = open_run(tmp_path)
    assert reader.state.promise is now and reader.state.spec["promise"] == was.value
    assert reader.manifest(reader.newest_usable()).promise is now
    lowered = [e.record.payload for e in reader.entries() if e.record.kind == "promise.lowered"]
    assert [(entry["from"], entry["to"]) for entry in lowered] == (
        [] if was is now else [(was.value, now.value)]
    )
    if lowered:
        assert "was asked for" in lowered[0]["reason"]
        assert (WHY in lowered[0]["reason"]) is (now is Promise.DISTRIBUTION)
        with pytest.raises(errors.PromiseError, match="earlier restart"):
            train(tmp_path, **accepted(was))


@pytest.mark.parametrize("strong", Promise)
@pytest.mark.parametrize("weak", Promise)
def test_each_implies_those_after_it(strong: Promise, weak: Promise) -> None:
    order = list(Promise)
    assert strong.implies(weak) is (order.index(strong) <= order.index(weak))


@pytest.mark.parametrize("why", ["", "  "])
def test_the_weakest_needs_to_be_accepted_with_a_reason(tmp_path: Path, why: str) -> None:
    with pytest.raises(errors.PromiseError, match="accept_distribution"):
        train(tmp_path / "new", promise="distribution", accept_distribution=why)
    assert not (tmp_path / "new").exists() or not list((tmp_path / "new").rglob("*.json"))
    train(tmp_path / "old")
    with pytest.raises(errors.PromiseError, match="accept_distribution"):
        train(tmp_path / "old", promise="distribution", accept_distribution=why)
    assert open_run(tmp_path / "old").state.promise is Promise.BITWISE


def test_the_reason_is_in_the_spec(tmp_path: Path) -> None:
    train(tmp_path, **accepted(Promise.DISTRIBUTION))
    spec = open_run(tmp_path).state.spec
    assert (spec["accept_distribution"], spec["reason"]) == (True, WHY)


# --- what a promise rests on ------------------------------------------------------------------


class Stateless(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(12))


def test_a_run_promises_no_more_than_its_data_can_keep(tmp_path: Path) -> None:
    def opened(**settings: Any) -> DurableSession:
        loader = DurableLoader(Stateless(), 2, seed=1, promise="distribution")
        return DurableSession.open(tmp_path, state={"loader": loader}, **settings)

    with pytest.raises(errors.PromiseError, match="no more than 'distribution'"):
        opened()
    opened(**accepted(Promise.DISTRIBUTION)).close()
    assert open_run(tmp_path).state.promise is Promise.DISTRIBUTION


def test_a_cursor_of_another_checkpoint_is_not_paired_with_the_model(tmp_path: Path) -> None:
    """Rolled back it would repeat, rolled on it would skip what the model has (not) learnt from."""
    loader = DurableLoader(list(range(12)), batch_size=2, seed=3)
    with DurableSession.open(tmp_path, state={"loader": loader}, every_n_steps=1) as session:
        early = loader.state_dict()
        for _ in zip(range(3), loader, strict=False):
            session.step()
    for other in (early, {**early, "batch": 5, "consumed_samples": 10}):
        loader = DurableLoader(list(range(12)), batch_size=2, seed=3)
        with DurableSession.open(tmp_path, state={"loader": loader}) as session:
            loader.load_state_dict(other)
            with pytest.raises(errors.OrderError, match="epoch 0 batch 3"):
                next(iter(loader))
            loader.before_next.clear()
    assert audit(open_run(tmp_path)).sound


def test_a_manifest_with_the_cursor_of_another_is_refused(tmp_path: Path) -> None:
    train(tmp_path, 2)
    first, last = sorted(tmp_path.glob("checkpoints/*/manifest.json"))[-2:]
    last.chmod(0o644)
    last.write_bytes(first.read_bytes())
    train(tmp_path, 0)  # steps down to the checkpoint before it, model and cursor together
    assert open_run(tmp_path).newest_usable().step == 1


# --- data_step and optimizer_step -------------------------------------------------------------


def test_an_overflow_consumes_its_batch_and_updates_nothing(tmp_path: Path) -> None:
    """A scaler that meets an overflow skips the optimizer's step; the run goes on over a restart."""

    def opened() -> tuple[DurableSession, DurableLoader, Any, Any]:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        loader = DurableLoader([float(i) for i in range(8)], batch_size=2, seed=3)
        state = {"model": model, "optimizer": optimizer, "loader": loader}
        return DurableSession.open(tmp_path, state=state, every_n_steps=1), loader, model, optimizer

    for life in range(2):
        session, loader, model, optimizer = opened()
        with session:
            for k, batch in zip(range(2), loader, strict=False):
                model(batch[:, None].float()).sum().backward()
                if k == life:  # the first life overflows at step 1, the second at step 4
                    optimizer.step()
                session.step()
                session.flush()
    reader = open_run(tmp_path)
    manifest = reader.manifest(reader.newest_usable())
    assert manifest.counters == {"step": 4, "data_step": 4, "optimizer_step": 2}
    assert audit(reader).sound and audit(reader).consumption.samples == 8
    applied = [use.applied for sample in range(8) for use in explain(reader, sample).uses]
    assert sorted(applied) == [False] * 4 + [True] * 4
