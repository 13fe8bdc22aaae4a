"""A restore is proven by numbers (VERIF-01, -02, -04): the steps that it does again are compared with their
first execution, and what is wrong with it shows within two of them."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from durable_core import DurableSession, Integrity
from durable_core.engine.inspect import open_run
from durable_core.errors import NumericFault

EVERY, LAST = 4, 7


class Loop:
    """One life of a small run with Adam and dropout."""

    def __init__(self, root: Path, **settings: Any) -> None:
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.01)
        self.run = DurableSession.open(
            root, state={"model": self.model, "optimizer": self.optimizer}, every_n_steps=EVERY,
            backlog="delay", takeover=True, **settings,
        )  # fmt: skip

    def to(self, last: int) -> list[float]:
        losses = []
        while self.run.steps < last:
            batch = torch.randn(8, 4)
            loss = (self.model(batch) - batch.sum(1, keepdim=True)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
            self.run.step(loss=losses[-1])
        return losses


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """A run as a kill after step 7 leaves it: checkpoints of 0 and 4, the numbers of all; and its losses."""
    home = tmp_path_factory.mktemp("killed")
    loop = Loop(home / "live")
    losses = loop.to(LAST)
    loop.run.flush()
    heartbeat = loop.run.run._heartbeat
    assert heartbeat is not None
    heartbeat.beat()  # what the background thread does every few seconds
    shutil.copytree(home / "live", home / "left")
    loop.run.close()
    return home / "left", losses


def reopened(killed: tuple[Path, list[float]], root: Path, **settings: Any) -> tuple[Loop, list[float]]:
    shutil.copytree(killed[0], root)
    loop = Loop(root, **settings)
    assert loop.run.steps == EVERY
    return loop, killed[1][EVERY:]


def test_every_restore_of_one_checkpoint_gives_the_same_bits(killed: Any, tmp_path: Path) -> None:
    for number in range(3):
        loop, expected = reopened(killed, tmp_path / str(number))
        assert loop.to(LAST) == expected
        assert loop.run.run.replayed == LAST - EVERY
        loop.run.close()
        assert not open_run(tmp_path / str(number)).state.failures


def moment(loop: Loop) -> torch.Tensor:
    return next(iter(loop.optimizer.state.values()))["exp_avg"]


CORRUPTIONS: dict[str, tuple[Callable[[Loop], None], int]] = {
    "a moment": (lambda loop: moment(loop).view(torch.int32).view(-1)[:1].bitwise_xor_(1 << 28) and None, 6),
    "a weight": (lambda loop: loop.model[0].weight.data.view(-1)[:1].mul_(1.001) and None, 5),
    "the random stream": (lambda loop: torch.rand(1) and None, 5),
}


@pytest.mark.parametrize("what", CORRUPTIONS)
def test_a_wrong_restore_shows_and_speaks_against_its_checkpoint(
    what: str, killed: Any, tmp_path: Path
) -> None:
    corrupt, seen = CORRUPTIONS[what]
    root = tmp_path / "run"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loop, _ = reopened(killed, root, integrity=Integrity(on_numeric="stop"))
        with torch.no_grad():
            corrupt(loop)
        with pytest.raises(NumericFault, match="the replay differs") as caught:
            loop.to(LAST)
        loop.run.close()
    assert (caught.value.failure, caught.value.found, caught.value.onset) == ("F13", seen, EVERY)
    (line,) = open_run(root).state.failures
    assert line.payload["signature"] == "replay-mismatch"
    with pytest.warns(UserWarning, match="no checkpoint before step 4 is known good"):
        back = Loop(root)
    assert back.run.steps == 0, "the one that it was restored from is not trusted"
    assert back.to(LAST) == killed[1]
    back.run.close()


def test_a_wrong_restore_is_told_when_training_goes_on(killed: Any, tmp_path: Path) -> None:
    loop, _ = reopened(killed, tmp_path / "run")
    with torch.no_grad():
        loop.model[0].weight += 0.01
    with pytest.warns(UserWarning, match="the replay differs .* training goes on"):
        loop.to(LAST)
    loop.run.close()
    state = open_run(tmp_path / "run").state
    assert len(state.failures) == 1, "what follows from the first difference is no news"
    assert not any(info.known_good and info.step >= EVERY for info in state.checkpoints.values())
