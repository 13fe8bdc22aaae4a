"""Every way in which plain Lightning loses a run after SIGKILL: with the callback it is the same run.

Sample ids, augmented input, activations behind dropout, learning rates, hook order and final weights of
every life equal those of the uninterrupted run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lightning_check import Kill, References, survives
from lightning_subject import Case

VAL5 = {"val_check_interval": 5}

CASES: dict[str, tuple[Case, list[Kill]]] = {
    "workers0-accumulate1": (Case(), [("batch", 28)]),
    "workers0-accumulate2": (Case(accumulate=2), [("batch", 28)]),
    "workers2-accumulate1": (Case(workers=2), [("batch", 28)]),
    "workers2-accumulate2": (Case(workers=2, accumulate=2), [("batch", 29)]),
    "stream-workers0": (Case(stream=True), [("batch", 28), ("batch", 9)]),
    "stream-workers2": (Case(stream=True, workers=2), [("batch", 28)]),
    "last-batch-of-epoch": (Case(every=16), [("batch", 20)]),
    "last-batch-of-epoch-workers2-val": (Case(every=16, workers=2, val=True), [("batch", 20)]),
    "validation-at-the-save": (Case(val=True, trainer=VAL5), [("batch", 28)]),
    "validation-beside-the-save": (Case(every=7, val=True, trainer=VAL5), [("batch", 27)]),
    "plateau-per-epoch": (Case("PlateauEpoch", epochs=4), [("batch", 28), ("batch", 10)]),
    "plateau-per-epoch-last-batch": (Case("PlateauEpoch", every=16, epochs=4), [("batch", 20)]),
    "plateau-per-step": (Case("PlateauStep", val=True, trainer=VAL5), [("batch", 28), ("batch", 10)]),
    "estimated-stepping-batches": (Case("Estimated"), [("batch", 28)]),
    "manual-two-optimizers": (Case("Manual"), [("batch", 28), ("batch", 3)]),
    "manual-past-lightning": (Case("ManualRaw"), [("batch", 28), ("batch", 3)]),
    "metrics-and-generators-of-the-module": (Case("Metered"), [("batch", 28), ("batch", 3)]),
    "cadence-measured": (Case(every="auto"), [("batch", 28), ("batch", 9)]),
    "cadence-by-time": (Case(every="auto", durable={"train_time_interval": 0.02}), [("batch", 28)]),
    "moving-average": (Case(extra=("ema",), val=True, trainer=VAL5), [("batch", 28)]),
    "early-stopping": (Case(extra=("early_stopping",), epochs=6), [("batch", 20)]),
    "limited-batches": (Case(trainer={"limit_train_batches": 7}), [("batch", 12)]),
    "loader-of-module": (Case(loader_from="module", val=True), [("batch", 28)]),
    "loader-of-datamodule": (Case(loader_from="datamodule", val=True), [("batch", 28)]),
    "reloaded-each-epoch": (
        Case(loader_from="module", trainer={"reload_dataloaders_every_n_epochs": 1}),
        [("batch", 28)],
    ),
    "in-the-module-hook": (Case(), [("batch_end", 28)]),
    "in-the-epoch-end-hook": (Case(every=4, samples=32), [("epoch_end", 1), ("epoch_end", 1)]),
    "in-the-last-epoch-end-hook": (Case(every=4, samples=32), [("epoch_end", 3)]),
}


@pytest.mark.parametrize("name", CASES)
def test_killed_and_run_again_is_the_same_run(name: str, references: References, tmp_path: Path) -> None:
    case, kills = CASES[name]
    codes = survives(references, tmp_path, case, kills)
    assert [code for (code,) in codes[:-1]] == [-9] * len(kills)


def test_plateau_cases_do_change_the_rate(references: References) -> None:
    """Or the plateau cases above would prove nothing."""
    for name in ("plateau-per-epoch", "plateau-per-step"):
        rates = {tuple(line["lr"]) for line in references.of(CASES[name][0])[0] if line["what"] == "batch"}
        assert len(rates) >= 3, name


def test_another_seed_changes_nothing(references: References, tmp_path: Path) -> None:
    """The seed in the journal wins; the script's is a warning."""
    from lightning_subject import at_line, fit, lines

    from tests.lives import check_stretches, life

    assert life(tmp_path, lambda: fit(Case(seed=3), tmp_path, at_line("batch", 28), "one")) == -9
    assert life(tmp_path, lambda: fit(Case(seed=99), tmp_path, log="two")) == 0
    check_stretches(references.of(Case())[0], [lines(tmp_path, log="one"), lines(tmp_path, log="two")])
    assert "seed" in (tmp_path / "output").read_text()


def test_every_batch_of_two_epochs_can_be_the_last(references: References, tmp_path: Path) -> None:
    """SHAPE-09: a chain of lives, each killed in the batch after the one that it resumed at."""
    case = Case("PlateauEpoch", every=1, epochs=2, samples=32, val=True, trainer={"val_check_interval": 4})
    survives(references, tmp_path, case, [("batch", 2)] * 15)


def test_a_loader_that_is_durable_already(references: References, tmp_path: Path) -> None:
    from lightning_subject import Samples, at_line, fit, lines

    from durable_core.data import DurableLoader
    from tests.lives import check_stretches, life

    def lived(log: str, **told: Any) -> int:
        loader = DurableLoader(Samples(), 4, shuffle=True, seed=3)
        return life(tmp_path, lambda: fit(Case(), tmp_path, log=log, loader=loader, **told))

    assert lived("one", strike=at_line("batch", 28)) == -9
    assert lived("two") == 0, (tmp_path / "output").read_text()[-3000:]
    check_stretches(references.of(Case())[0], [lines(tmp_path, log="one"), lines(tmp_path, log="two")])


def test_kills_while_saving_with_one_checkpoint_kept(references: References, tmp_path: Path) -> None:
    """E3: nowhere is there an instant without a whole checkpoint."""
    from durable_core.commit.retention import Retention

    case = Case(every=1, epochs=2, durable={"retention": Retention(keep_last=1)})
    kills = [("batch", n) for n in (5, 3, 6)]
    survives(references, tmp_path, case, kills, settled=False)
