"""Starting, finishing, extending, refusing: what a person meets when running scripts again and again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
from lightning.pytorch.tuner import Tuner
from lightning_check import References
from lightning_subject import Case, Notes, Plain, Samples, at_line, fit, lines, train_loader
from torch.utils.data import DataLoader

from durable_core.errors import UnsupportedError, UsageError
from lightning_durable import DurableCheckpoint
from tests.lives import Line, life

SHORT = Case(epochs=2, samples=32)


def ok(home: Path, action: Callable[[], Any]) -> None:
    assert life(home, action) == 0, (home / "output").read_text()[-4000:]


def refused(home: Path, action: Callable[[], Any], kind: type[Exception], *words: str) -> None:
    def check() -> None:
        with pytest.raises(kind) as caught:
            action()
        message = str(caught.value)
        assert all(word in message for word in words), message

    ok(home, check)


def batches(found: list[Line]) -> list[Line]:
    return [line for line in found if line["what"] == "batch"]


# --- the end of a run ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "longer"),
    [
        (SHORT, {"max_epochs": 3}),
        (Case(epochs=-1, samples=32, trainer={"max_steps": 13}), {"max_steps": 20}),
        (Case(epochs=2, samples=32, extra=("ema",)), {"max_epochs": 3}),
        (Case(epochs=-1, samples=32, extra=("ema",), trainer={"max_steps": 13}), {"max_steps": 20}),
        (Case(epochs=5, samples=32, extra=("early_stopping",)), {"max_epochs": 6}),
        (Case(epochs=2, samples=32, trainer={"limit_train_batches": 5}), {"max_epochs": 3}),
    ],
    ids=["epochs", "steps", "averaged-epochs", "averaged-steps", "stopped-early", "limited-batches"],
)
def test_a_finished_run_returns_at_once_and_can_be_extended(
    case: Case, longer: dict[str, int], tmp_path: Path
) -> None:
    whole, home = tmp_path / "whole", tmp_path / "home"
    whole.mkdir()
    home.mkdir()
    ok(whole, lambda: fit(case, whole, **longer))
    ok(home, lambda: fit(case, home, log="first"))
    ok(home, lambda: fit(case, home, log="again"))
    ok(home, lambda: fit(case, home, log="longer", **longer))
    first, again, extended = (lines(home, log=log) for log in ("first", "again", "longer"))
    assert batches(again) == []
    assert again[-1] == first[-1], "the final weights are there as after training"
    assert batches(first) + batches(extended) == batches(lines(whole))
    assert extended[-1] == lines(whole)[-1]


def test_must_never_and_auto(tmp_path: Path) -> None:
    def asking(resume: str) -> Case:
        return Case(epochs=1, samples=16, durable={"resume": resume})

    from durable_core.errors import RunNotFoundError

    refused(tmp_path, lambda: fit(asking("must"), tmp_path), RunNotFoundError, "must")
    ok(tmp_path, lambda: fit(asking("never"), tmp_path))
    refused(tmp_path, lambda: fit(asking("never"), tmp_path), UsageError, "never")
    ok(tmp_path, lambda: fit(asking("must"), tmp_path))
    ok(tmp_path, lambda: fit(asking("auto"), tmp_path))


def test_a_fork_goes_on_under_a_changed_script(tmp_path: Path) -> None:
    from durable_core.errors import SpecMismatchError

    assert life(tmp_path, lambda: fit(SHORT, tmp_path, at_line("batch", 8), "one")) == -9
    changed = Case(epochs=2, samples=32, accumulate=2)
    refused(tmp_path, lambda: fit(changed, tmp_path), SpecMismatchError, "accumulation", "fork")
    forked = Case(epochs=2, samples=32, accumulate=2, durable={"resume": "fork"})
    ok(tmp_path, lambda: fit(forked, tmp_path, log="fork"))
    assert batches(lines(tmp_path, log="fork"))[0] == batches(lines(tmp_path, log="one"))[5]


def test_gradient_clipping_is_part_of_the_run(tmp_path: Path) -> None:
    from durable_core.errors import SpecMismatchError

    def clipped(at: float, algorithm: str | None = None) -> Case:
        return Case(
            epochs=1, samples=16, trainer={"gradient_clip_val": at, "gradient_clip_algorithm": algorithm}
        )

    ok(tmp_path, lambda: fit(clipped(0.5), tmp_path))
    refused(tmp_path, lambda: fit(clipped(0.1), tmp_path), SpecMismatchError, "gradient_clip_val: 0.5 -> 0.1")
    refused(tmp_path, lambda: fit(clipped(0.5, "value"), tmp_path), SpecMismatchError, "-> 'value'")
    ok(tmp_path, lambda: fit(clipped(0.5), tmp_path))


# --- other sources of state ----------------------------------------------------------------


def test_a_foreign_checkpoint_may_begin_a_history_but_never_enters_one(tmp_path: Path) -> None:
    def fit_from(root: str, ckpt_path: Any, resume: str = "auto") -> None:
        notes = Notes(tmp_path / "log", lambda notes, what: None)
        L.seed_everything(1, verbose=False)
        trainer = L.Trainer(
            max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False,
            default_root_dir=tmp_path,
            callbacks=[DurableCheckpoint(tmp_path / root, resume=resume)], enable_checkpointing=False,
        )  # fmt: skip
        trainer.fit(Plain(SHORT, notes), train_loader(SHORT), ckpt_path=ckpt_path, weights_only=False)

    def foreign() -> None:
        trainer, _ = fit(Case(epochs=1, samples=32), tmp_path, log="foreign")
        trainer.save_checkpoint(tmp_path / "foreign.ckpt")

    ok(tmp_path, foreign)
    ok(tmp_path, lambda: fit_from("new", tmp_path / "foreign.ckpt"))
    assert len(lines(tmp_path, "batch")) == 8, "it went on in the second epoch"
    refused(
        tmp_path, lambda: fit_from("new", tmp_path / "foreign.ckpt"), UsageError, "foreign.ckpt", "history"
    )
    ok(tmp_path, lambda: fit_from("new", tmp_path / "foreign.ckpt", resume="fork"))


def test_slurms_own_checkpoint_is_not_spliced_in(tmp_path: Path) -> None:
    assert life(tmp_path, lambda: fit(SHORT, tmp_path, at_line("batch", 8), "one")) == -9

    def on_slurm() -> None:
        (tmp_path / "hpc_ckpt_1.ckpt").write_bytes(b"")
        os.environ.update(SLURM_NTASKS="1", SLURM_JOB_NAME="train", SLURM_JOB_ID="7", SLURM_LOCALID="0")
        os.environ.update(SLURM_PROCID="0", SLURM_NODEID="0", SLURM_NTASKS_PER_NODE="1")
        fit(SHORT, tmp_path, log="two")

    refused(tmp_path, on_slurm, UsageError, "hpc_ckpt_1.ckpt", "auto_requeue")


# --- where it keeps still ------------------------------------------------------------------


def test_inert_outside_training(tmp_path: Path) -> None:
    def action() -> None:
        notes = Notes(tmp_path / "log", lambda notes, what: None)
        module = Plain(SHORT, notes)
        module.learning_rate = 0.1
        module.test_step = module.predict_step = lambda batch, batch_idx: batch[1].sum()
        settings: dict[str, Any] = {
            "accelerator": "cpu", "logger": False, "enable_progress_bar": False, "default_root_dir": tmp_path,
            "enable_checkpointing": False, "callbacks": [DurableCheckpoint(tmp_path / "run")],
        }  # fmt: skip
        data = DataLoader(Samples(8), batch_size=4)
        L.Trainer(**settings, fast_dev_run=True).fit(module, train_loader(SHORT))
        trainer = L.Trainer(**settings, max_epochs=1)
        trainer.validate(module, data)
        trainer.test(module, data)
        trainer.predict(module, data)
        Tuner(trainer).lr_find(module, train_loader(SHORT), num_training=5)
        Tuner(trainer).scale_batch_size(Batched(SHORT, notes), max_trials=1, steps_per_trial=1)
        assert not (tmp_path / "run").exists()
        trainer = L.Trainer(**settings, max_epochs=1)
        trainer.fit(module, train_loader(SHORT))
        assert (tmp_path / "run" / "journal").exists()

    ok(tmp_path, action)


class Batched(Plain):
    batch_size = 2

    def train_dataloader(self) -> Any:
        return DataLoader(Samples(8), batch_size=self.batch_size)


def test_it_leaves_nothing_behind_on_the_trainer(tmp_path: Path) -> None:
    def action() -> None:
        trainer, _ = fit(SHORT, tmp_path)
        for owner in (trainer.fit_loop, trainer.fit_loop.epoch_loop, trainer._data_connector):
            patched = [n for n, v in vars(owner).items() if callable(v) and hasattr(type(owner), n)]
            assert patched == []
        assert "resume_start" not in vars(trainer._checkpoint_connector)

    ok(tmp_path, action)


# --- what is refused -----------------------------------------------------------------------


def test_two_fits_under_one_root(tmp_path: Path) -> None:
    def keyed(key: str | None) -> Case:
        return Case(epochs=1, samples=16, durable={"run_key": key})

    def unkeyed() -> None:
        fit(keyed(None), tmp_path)
        fit(keyed(None), tmp_path)

    refused(tmp_path, unkeyed, UsageError, "run_key")

    def with_keys() -> None:
        fit(keyed("fold-1"), tmp_path, log="one")
        fit(keyed("fold-2"), tmp_path, log="two")

    ok(tmp_path, with_keys)
    assert len(lines(tmp_path, "batch", log="two")) == 4


def refusals() -> dict[str, tuple[Callable[[Path], Any], type[Exception], tuple[str, ...]]]:
    from lightning.pytorch.callbacks import LearningRateFinder
    from lightning.pytorch.strategies import FSDPStrategy

    def two_callbacks(home: Path) -> None:
        trainer = L.Trainer(
            callbacks=[DurableCheckpoint(home / "a"), DurableCheckpoint(home / "b")], **quiet(home)
        )
        trainer.fit(Plain(SHORT, Notes(home / "log", lambda *_: None)), train_loader(SHORT))

    def finder(home: Path) -> None:
        callbacks = [DurableCheckpoint(home / "run"), LearningRateFinder()]
        module = Plain(SHORT, Notes(home / "log", lambda *_: None))
        L.Trainer(callbacks=callbacks, **quiet(home)).fit(module, train_loader(SHORT))

    def several(home: Path) -> None:
        fit(SHORT, home, loader={"a": train_loader(SHORT), "b": train_loader(SHORT)})

    def unsized(home: Path) -> None:
        class Bare(Samples):
            __len__ = None

        from torch.utils.data import IterableDataset

        class Rows(IterableDataset):
            def __iter__(self) -> Any:
                return iter(range(8))

        fit(SHORT, home, loader=DataLoader(Rows(), batch_size=2))

    def not_a_loader(home: Path) -> None:
        fit(SHORT, home, loader=[1, 2, 3])

    def sharded(home: Path) -> None:
        from lightning_durable import guard

        trainer = L.Trainer(**quiet(home))
        trainer._accelerator_connector.strategy = FSDPStrategy()
        guard._check_strategy(trainer)

    def spawned(home: Path) -> None:
        from lightning_durable import guard

        guard._check_strategy(L.Trainer(**{**quiet(home), "strategy": "ddp_spawn", "devices": 2}))

    return {
        "two callbacks": (two_callbacks, UsageError, ("one history",)),
        "a finder": (finder, UnsupportedError, ("LearningRateFinder", "Tuner")),
        "several loaders": (several, UnsupportedError, ("ConcatDataset",)),
        "an iterable without state": (unsized, UnsupportedError, ("state_dict", "Rows")),
        "a list of batches": (not_a_loader, UnsupportedError, ("list", "DataLoader")),
        "sharded strategies": (sharded, UnsupportedError, ("FSDPStrategy", "ddp")),
        "spawning strategies": (spawned, UnsupportedError, ("exit code", "ddp")),
    }


def quiet(home: Path) -> dict[str, Any]:
    return {
        "max_epochs": 1, "accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False,
        "enable_model_summary": False, "enable_checkpointing": False, "default_root_dir": home,
    }  # fmt: skip


@pytest.mark.parametrize("what", refusals())
def test_refused_with_the_way_out(what: str, tmp_path: Path) -> None:
    action, kind, words = refusals()[what]
    refused(tmp_path, lambda: action(tmp_path), kind, *words)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"resume": "maybe"}, "resume"),
        ({"every_n_train_steps": 0}, "every_n_train_steps"),
        ({"every_n_train_steps": "often"}, "every_n_train_steps"),
        ({"train_time_interval": -1}, "train_time_interval"),
        ({"promise": "perfect"}, "promise"),
        ({"backlog": "drop"}, "backlog"),
        ({"on_rpo_breach": "panic"}, "on_rpo_breach"),
        ({"run_key": "Fold 1"}, "run_key"),
        ({"tiers": ["memory"]}, "tiers"),
    ],
)
def test_arguments_are_checked_at_once(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        DurableCheckpoint("runs/x", **arguments)


def test_the_status_is_there_to_see(tmp_path: Path, references: References) -> None:
    def action() -> None:
        callback = DurableCheckpoint(tmp_path / "run", every_n_train_steps=5)
        assert callback.status is None and callback.restored_from is None
        module = Plain(SHORT, Notes(tmp_path / "log", lambda *_: None))
        trainer = L.Trainer(callbacks=[callback], **quiet(tmp_path))
        trainer.fit(module, train_loader(SHORT))
        assert callback.status is not None and callback.status.newest_step == 8
        assert trainer.callback_metrics["durable/newest_step"] >= 0

    ok(tmp_path, action)
