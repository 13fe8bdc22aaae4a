"""A byte-level GPT that learns Python from the standard library's own sources, and survives kill -9.

    python examples/lightning_code_lm.py --root runs/code-lm

Kill it at any instant and run the same line again: it goes on as the same run. The only line that has to
do with that is the callback; the dataset also says which content it holds, so that a changed corpus cannot
pass for the same one. Everything else is what any Lightning script has: dropout, augmentation drawn from all
three random number generators, a warm-up and cosine schedule, validation, averaged weights.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from durable_core.data import DatasetManifest
from lightning_durable import DurableCheckpoint

BYTES = 256
MASK = 0  # no source file holds a zero byte


# --- the corpus ---------------------------------------------------------------------------------------


def corpus(max_bytes: int) -> tuple[bytes, str]:
    """The first standard-library sources that fit into ``max_bytes``, and the identity of their content:
    the digest of a manifest that holds a digest per file, so another Python's sources are another dataset."""
    home = Path(sysconfig.get_path("stdlib"))
    files, total = [], 0
    for path in sorted(home.glob("*.py")) + sorted(home.glob("*/*.py")):
        size = path.stat().st_size
        if path.parent.name in ("test", "site-packages") or not size or total + size > max_bytes:
            continue
        files.append(path)
        total += size
    manifest = DatasetManifest.build(files, home, count=len, properties={"tokens": "bytes"})
    return b"".join((home / item.name).read_bytes() for item in manifest.objects), manifest.dataset_id


class CodeWindows(Dataset[Tensor]):
    """Windows of ``length + 1`` bytes; each is shifted, masked and jittered anew whenever it is read."""

    def __init__(self, data: bytes, dataset_id: str, length: int, *, augment: bool) -> None:
        self.dataset_id = dataset_id
        self.data = np.frombuffer(data, dtype=np.uint8)
        self.length = length
        self.augment = augment

    def __len__(self) -> int:
        return (len(self.data) - 1) // self.length - 1

    def __getitem__(self, index: int) -> Tensor:
        start = index * self.length + (random.randrange(self.length) if self.augment else 0)
        window = self.data[start : start + self.length + 1].astype(np.int64)
        if self.augment:
            window[np.random.random(len(window)) < 0.02] = MASK
        tokens = torch.from_numpy(window)
        if self.augment:
            jitter = torch.randint(-1, 2, tokens.shape) * (torch.rand(tokens.shape) < 0.01)
            tokens = (tokens + jitter).clamp_(0, BYTES - 1)
        return tokens


# --- the model ----------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(width, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """``(batch, length)`` bytes in, ``(batch, length, 256)`` logits of the next byte out."""

    def __init__(self, length: int, width: int, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(BYTES, width), nn.Embedding(length, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, BYTES, bias=False)
        self.head.weight = self.token.weight  # tied: stored once
        nn.init.normal_(self.token.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop(self.token(tokens) + self.position(places))
        return self.head(self.norm(self.blocks(x)))


class CodeLM(L.LightningModule):
    def __init__(self, length: int, width: int, layers: int, total_steps: int) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = GPT(length, width, layers, heads=4, dropout=0.1)
        self.register_buffer("samples_seen", torch.zeros((), dtype=torch.int64))

    def _loss(self, tokens: Tensor) -> Tensor:
        logits = self.model(tokens[:, :-1])
        return F.cross_entropy(logits.reshape(-1, BYTES), tokens[:, 1:].reshape(-1))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        self.samples_seen += len(batch) * self.trainer.world_size
        loss = self._loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("val_loss", self._loss(batch), sync_dist=True)

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3, weight_decay=0.05)
        total, warmup = self.hparams["total_steps"], 10

        def factor(step: int) -> float:
            if step < warmup:
                return (step + 1) / warmup
            return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, total - warmup))))

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


# --- what came out ------------------------------------------------------------------------------------


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, bytes]]:
    """Every leaf of a nested state as (path, bytes), in a fixed order."""
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from leaves(value[key], f"{path}/{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}/{index}")
    elif isinstance(value, Tensor):
        array = value.detach().cpu().contiguous()
        yield f"{path}:{array.dtype}{tuple(array.shape)}", array.numpy().tobytes()
    else:
        yield path, repr(value).encode()


def digest(state: Any) -> str:
    """sha256 over every byte of a nested state."""
    total = hashlib.sha256()
    for path, data in leaves(state):
        total.update(f"{path}={len(data)};".encode() + data)
    return total.hexdigest()


# --- the script ---------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--root", required=True, help="where the run lives: a path")
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps in all")
    parser.add_argument("--every", type=int, help="steps between checkpoints; default: automatic")
    parser.add_argument("--workers", type=int, default=2, help="loader worker processes")
    parser.add_argument("--accumulate", type=int, default=1, help="batches per optimizer step")
    parser.add_argument("--devices", type=int, default=1, help="processes (gloo, CPU)")
    parser.add_argument("--batch", type=int, default=8, help="windows per batch and process")
    parser.add_argument("--length", type=int, default=64, help="bytes per window")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--corpus-bytes", type=int, default=200_000)
    parser.add_argument("--logs", help="directory for metrics.csv, one version per start")
    parser.add_argument("--result", type=Path, help="write digests of the final state here, as JSON")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    L.seed_everything(1234, workers=True, verbose=False)

    data, identity = corpus(args.corpus_bytes)
    held_out = len(data) // 10
    windows = CodeWindows(data[held_out:], identity, args.length, augment=True)
    held_out_windows = CodeWindows(data[:held_out], identity, args.length, augment=False)
    train = DataLoader(
        windows, batch_size=args.batch, shuffle=True, num_workers=args.workers, drop_last=True
    )
    val = DataLoader(held_out_windows, batch_size=args.batch)

    trainer = L.Trainer(
        accelerator="cpu", devices=args.devices, strategy="ddp" if args.devices > 1 else "auto",
        max_steps=args.steps, accumulate_grad_batches=args.accumulate,
        val_check_interval=40, check_val_every_n_epoch=None, limit_val_batches=4,
        callbacks=[
            DurableCheckpoint(args.root, every_n_train_steps=args.every or "auto"),
            EMAWeightAveraging(decay=0.95, use_buffers=False),
        ],
        logger=CSVLogger(args.logs, flush_logs_every_n_steps=1) if args.logs else False, log_every_n_steps=1,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    model = CodeLM(args.length, args.width, args.layers, args.steps)
    trainer.fit(model, train, val)

    if args.result and trainer.is_global_zero:
        outcome = {
            "weights": digest(model.state_dict()),
            "optimizer": digest([optimizer.state_dict() for optimizer in trainer.optimizers]),
            "step": trainer.global_step,
            "samples": int(model.samples_seen),
            "loss": float(trainer.callback_metrics["train_loss"]),
        }
        args.result.write_text(json.dumps(outcome, indent=2) + "\n")


if __name__ == "__main__":
    main()
