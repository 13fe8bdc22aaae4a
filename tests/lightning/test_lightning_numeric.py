"""Wrong numbers under Lightning: told, or the end of the fit; the next one is the fit that never met them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_check import References, run_life
from lightning_subject import MODULES, Case, Plain, at_line, lines
from torch import Tensor

from durable_core import Integrity
from durable_core.engine.inspect import open_run
from durable_core.errors import UnsupportedError
from lightning_durable import DurableCheckpoint

STOP = Integrity(on_numeric="stop")
HIT: set[str] = set()


class Struck(Plain):
    """Does what ``HIT`` says, once, in the process that it was said in."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        if "nan" in HIT:
            HIT.clear()
            return loss * torch.nan
        return loss

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        if "flip" in HIT:  # the replicas have averaged by now
            HIT.clear()
            assert self.last.bias.grad is not None
            self.last.bias.grad.view(torch.int32)[:1] ^= 1 << 20


MODULES["Struck"] = Struck


def strike(what: str, batch: int) -> Any:
    return at_line("batch", batch, lambda: HIT.add(what))


def findings(home: Path) -> list[dict[str, Any]]:
    return [dict(line.payload) for line in open_run(home / "run").state.failures]


def test_a_loss_that_is_no_number_is_told_and_the_fit_goes_on(tmp_path: Path) -> None:
    case = Case("Struck", epochs=1)
    assert run_life(case, tmp_path, "one", 1, {0: strike("nan", 8)}) == [0]
    (line,) = findings(tmp_path)
    assert (line["class"], line["step"], line["evidence"]["action"]) == ("F12", 7, "continue")
    assert "loss is nan" in (tmp_path / "output").read_text()


def test_by_policy_the_fit_ends_and_the_next_one_goes_back(references: References, tmp_path: Path) -> None:
    case = Case("Struck", durable={"integrity": STOP})
    assert run_life(case, tmp_path, "one", 1, {0: strike("nan", 24)}) == [1]
    assert "NumericFault" in (tmp_path / "output").read_text()
    state = open_run(tmp_path / "run").state
    assert state.terminal is None and state.head_step == 20
    assert run_life(case, tmp_path, "two", 1, {}) == [0]
    again = open_run(tmp_path / "run").state
    assert again.failures == state.failures
    (expected,) = references.of(Case("Struck"))
    lived = lines(tmp_path, log="two0")
    assert lived == expected[-len(lived) :]
    first = next(line for line in lived if line["what"] == "batch")["step"]
    assert first < 23 and state.checkpoints[4].step == 20


def test_a_gradient_that_flips_on_one_rank_is_found_and_gone_back_from(
    references: References, tmp_path: Path
) -> None:
    settings = Integrity(on_numeric="stop", replicas_every=4)
    case = Case("Struck", samples=96, epochs=2, durable={"integrity": settings})
    assert run_life(case, tmp_path, "one", 2, {1: strike("flip", 14)}) == [1, 1]
    (line,) = findings(tmp_path)
    assert (line["class"], line["signature"], line["step"]) == ("F13", "replica-divergence", 13)
    assert run_life(case, tmp_path, "two", 2, {}) == [0, 0], (tmp_path / "output").read_text()[-3000:]
    for rank, expected in enumerate(references.of(Case("Struck", samples=96, epochs=2), 2)):
        lived = lines(tmp_path, log=f"two{rank}")
        assert lived == expected[-len(lived) :]


def test_a_step_cannot_be_computed_twice_here(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="cannot do it twice"):
        DurableCheckpoint(tmp_path, integrity=Integrity(recompute_every=10))
