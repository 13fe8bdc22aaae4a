"""Traps measured in Lightning 2.6.6, each avoided with the callback. E2, E3, … name the measurements."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning_check import References, survives
from lightning_subject import Case, Notes, Plain, Samples, Stream, at_line, fit, lines, train_loader
from torch.utils.data import DataLoader

from durable_core.engine.inspect import open_run
from tests.lives import check_stretches, life


def committed_steps(root: Path) -> list[int]:
    infos = open_run(root).state.checkpoints.values()
    return sorted(info.step for info in infos if info.usable)


def output(home: Path) -> str:
    return (home / "output").read_text()


def test_e2_model_checkpoint_does_not_save_again_within_an_accumulation_window(
    references: References, tmp_path: Path
) -> None:
    case = Case(every=1, epochs=2, accumulate=4, extra=("model_checkpoint",))
    survives(references, tmp_path, case, [("batch", 12), ("batch", 2)])
    whole = next(references._home.glob("*/own/step=8.ckpt")).parent
    for step in range(1, 9):
        mine, theirs = (
            torch.load(home / f"step={step}.ckpt", weights_only=False)["state_dict"]
            for home in (tmp_path / "own", whole)
        )
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs), f"step {step}"


def test_a_model_checkpoint_made_beside_it_is_an_ordinary_one(references: References, tmp_path: Path) -> None:
    """Plain Lightning resumes from it; a new durable run begins with it at its place in the data."""
    case = Case(every=1000, extra=("model_checkpoint",))
    (tmp_path / "first").mkdir()
    assert life(tmp_path, lambda: fit(case, tmp_path / "first", at_line("batch", 21))) == -9
    file = tmp_path / "first" / "own" / "step=20.ckpt"

    def plain() -> None:
        notes = Notes(tmp_path / "plain", lambda notes, what: None)
        quiet = {"logger": False, "enable_progress_bar": False, "default_root_dir": tmp_path / "plain-home"}
        trainer = L.Trainer(max_epochs=3, accelerator="cpu", **quiet)
        trainer.fit(Plain(case, notes), train_loader(case), ckpt_path=file, weights_only=False)
        assert trainer.global_step == 48

    assert life(tmp_path, plain) == 0, output(tmp_path)
    assert life(tmp_path, lambda: fit(case, tmp_path, log="durable", ckpt_path=file)) == 0, output(tmp_path)
    expected = [line["ids"] for line in references.of(case)[0] if line["what"] == "batch"]
    assert [line["ids"] for line in lines(tmp_path, "batch", log="durable")] == expected[20:]


def test_e4_a_passing_storage_failure_is_told_at_once_and_does_not_stop_training(
    references: References, tmp_path: Path
) -> None:
    case = Case(every=5)

    def trouble() -> None:
        from durable_core.errors import TierFull
        from durable_core.tier.posix import PosixTier

        real, left = PosixTier.write_object, [1]

        def full_once(self: PosixTier, key: str, parts: Any) -> int:
            if "g000001-c00000002" in key and left[0]:
                left[0] -= 1
                raise TierFull("no space left on device")
            return real(self, key, parts)

        PosixTier.write_object = full_once  # type: ignore[method-assign]
        seen = []

        def watch(notes: Notes, what: str) -> None:
            if what == "batch":
                seen.append(notes.durable.status)

        trainer, _ = fit(case, tmp_path, watch, "log0")
        failed = [status.failed for status in seen if status is not None]
        assert failed[0] == 0 and failed[-1] == 1, failed
        assert trainer.callback_metrics["durable/failed"] == 1.0

    assert life(tmp_path, trouble) == 0, output(tmp_path)
    assert lines(tmp_path, log="log0") == references.of(case)[0]
    assert "no space left on device" in output(tmp_path)
    assert committed_steps(tmp_path / "run")[-1] == 48


def test_e10_state_changed_in_the_modules_own_hook_is_in_the_snapshot(
    references: References, tmp_path: Path
) -> None:
    """Even in a buffer that is not persistent; every ``batch`` line holds the buffer's value."""
    case = Case(every=1, epochs=1)
    survives(references, tmp_path, case, [("batch", 4)])
    assert [line["seen"] for line in lines(tmp_path, "batch", log="life1-0")][:2] == [3.0, 4.0]


@pytest.mark.parametrize("damage", ["truncated", "bit-flip", "missing"])
def test_e11_a_damaged_newest_checkpoint_is_stepped_over(
    damage: str, references: References, tmp_path: Path
) -> None:
    case = Case(every=5)
    assert life(tmp_path, lambda: fit(case, tmp_path, at_line("batch", 28), "one")) == -9
    newest = max((tmp_path / "run" / "checkpoints").glob("*/shard-*.safetensors"))
    content = newest.read_bytes()
    newest.chmod(0o600)
    if damage == "missing":
        newest.unlink()
    elif damage == "truncated":
        newest.write_bytes(content[: len(content) // 2])
    else:
        newest.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    assert life(tmp_path, lambda: fit(case, tmp_path, log="two")) == 0, output(tmp_path)
    lives = [lines(tmp_path, log="one"), lines(tmp_path, log="two")]
    check_stretches(references.of(case)[0], lives)
    assert lives[1][0]["step"] == 20
    assert "is damaged" in output(tmp_path)


class Crash(RuntimeError):
    pass


def crash() -> None:
    raise Crash


def test_e13_an_exception_within_an_accumulation_window_saves_nothing_and_loses_nothing(
    references: References, tmp_path: Path
) -> None:
    case = Case(accumulate=4, every=3)
    survives(references, tmp_path, case, [("batch", 27), ("batch", 6)], act=crash, settled=False)
    assert [step for step in committed_steps(tmp_path / "run") if step % 3] == []


def test_e13_beside_lightnings_own_on_exception_checkpoint(references: References, tmp_path: Path) -> None:
    case = Case(accumulate=4, every=3, extra=("on_exception",))
    survives(references, tmp_path, case, [("batch", 27)], act=crash)


def test_e14_sigterm_saves_the_last_step_and_exits_with_75(references: References, tmp_path: Path) -> None:
    case = Case(every=1000)
    codes = survives(
        references, tmp_path, case, [("batch", 20)], act=lambda: os.kill(os.getpid(), signal.SIGTERM)
    )
    assert codes == [[75], [0]]
    assert len(lines(tmp_path, "batch", log="life0-0")) == 20
    assert len(lines(tmp_path, "batch", log="life1-0")) == 28


def test_e16_a_stream_with_persistent_workers_yields_in_every_epoch(tmp_path: Path) -> None:
    class Endless(Stream):
        """Its iterator does not reset itself."""

        def __iter__(self) -> Any:
            while self.position < len(self.source):
                self.position += 1
                yield self.source[self.position - 1]

    def action() -> None:
        case = Case(workers=1, every=7)
        loader = DataLoader(Endless(), batch_size=4, num_workers=1, persistent_workers=True)
        fit(case, tmp_path, log="log0", loader=loader)

    assert life(tmp_path, action) == 0, output(tmp_path)
    assert len(lines(tmp_path, "batch", log="log0")) == 48


def test_default_checkpointing_and_testing_are_as_without_the_callback(tmp_path: Path) -> None:
    """E20: as a plain callback it takes nothing of Lightning's own checkpointing away."""

    def action() -> None:
        case = Case(epochs=1, val=True)
        trainer, module = fit(case, tmp_path, log="log0", enable_checkpointing=True)
        best = trainer.checkpoint_callback.best_model_path
        assert Path(best).exists()
        module.test_step = lambda batch, batch_idx: None
        trainer.test(module, DataLoader(Samples(4)), ckpt_path="best", verbose=False, weights_only=False)
        trainer.validate(module, DataLoader(Samples(4)), verbose=False)

    assert life(tmp_path, action) == 0, output(tmp_path)


def test_hyper_parameters_that_cannot_be_stored_are_left_out_with_one_warning(
    references: References, tmp_path: Path
) -> None:
    case = Case("Parametrised", every=5)
    survives(references, tmp_path, case, [("batch", 28)])
    assert output(tmp_path).count("leaves act of hyper_parameters out") == 2  # one for each life


def test_loggers_beside_it(references: References, tmp_path: Path) -> None:
    from lightning.pytorch.loggers import CSVLogger

    case = Case(every=5, extra=("lr_monitor",))

    def action(strike: Any, log: str) -> None:
        fit(case, tmp_path, strike, log, logger=CSVLogger(tmp_path / f"csv-{log}"), log_every_n_steps=4)

    assert life(tmp_path, lambda: action(at_line("batch", 28), "one")) == -9
    assert life(tmp_path, lambda: action(None, "two")) == 0, output(tmp_path)
    lives = [lines(tmp_path, log="one"), lines(tmp_path, log="two")]
    check_stretches(references.of(Case(every=5))[0], lives)
