"""What ``durable export`` writes for a Lightning run is what plain Lightning loads and goes on from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from cli_runs import Durable
from safetensors.torch import load_file
from torch.utils.data import DataLoader, TensorDataset

from lightning_durable import DurableCheckpoint

BATCHES = 6
QUIET: dict[str, Any] = {
    "logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu",
    "enable_checkpointing": False,
}  # fmt: skip


class Small(lightning.LightningModule):
    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(4, width)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return self.layer(batch[0]).pow(2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def loader() -> DataLoader[Any]:
    samples = torch.arange(96.0).reshape(24, 4)
    return DataLoader(TensorDataset(samples), batch_size=24 // BATCHES, shuffle=True)


@pytest.fixture(scope="module")
def lightning_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lightning") / "run"
    lightning.seed_everything(0)
    callback = DurableCheckpoint(root, every_n_train_steps=4, backlog="delay")
    lightning.Trainer(max_epochs=2, callbacks=[callback], **QUIET).fit(Small(5), loader())
    return root


@pytest.mark.parametrize("step", [2 * BATCHES, 8])
def test_plain_lightning_goes_on(lightning_root: Path, tmp_path: Path, durable: Durable, step: int) -> None:
    """From the end of an epoch and from the middle of one: not a batch too many, not one too few."""
    rows = durable("ls", lightning_root, "--json").document["checkpoints"]
    c = next(row["c"] for row in rows if row["step"] == step)
    done = durable("export", lightning_root, tmp_path / "out", "-c", c, "--json")
    assert done.code == 0 and done.document["notes"] == []
    path = tmp_path / "out/checkpoint.ckpt"
    assert torch.load(path, weights_only=True)["global_step"] == step

    model = Small.load_from_checkpoint(path)
    plain = load_file(tmp_path / "out/model.safetensors")
    assert model.hparams["width"] == 5 and model.state_dict().keys() == plain.keys()
    assert all(torch.equal(value, plain[name]) for name, value in model.state_dict().items())

    trainer = lightning.Trainer(max_epochs=3, **QUIET)
    trainer.fit(Small(5), loader(), ckpt_path=str(path))
    assert (trainer.global_step, trainer.current_epoch) == (3 * BATCHES, 3)


def test_only_one_format_when_asked(lightning_root: Path, tmp_path: Path, durable: Durable) -> None:
    done = durable("export", lightning_root, tmp_path / "out", "--format", "lightning", "--json")
    assert [Path(file["path"]).name for file in done.document["files"]] == ["checkpoint.ckpt"]
