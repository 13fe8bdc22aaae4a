"""Pretrain a byte-level GPT on a mixture of three real sources, packed, and survive kill -9.

    python examples/pretrain_mixture.py --root runs/mixture            # kill it, run the same line: same run
    python examples/pretrain_mixture.py --root runs/proof --prove      # does that five times and compares

The sources are what every machine with Python has: the standard library's sources, their docstrings, and the
metadata and licence texts of the installed packages. Half of all *tokens* come from code, the rest from the
other two, exactly (no source is ever off by more than its longest document); documents are packed into rows
by best fit; two worker processes read. A restart continues with the same next batch, bit for bit, and may use
another number of workers. ``durable audit ROOT`` says what every step consumed, by source.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from durable_core.data import DurableLoader, Mixture, Packing, RecordDataset
from durable_core.data.manifest import build, load, load_lengths, save
from lightning_durable import DurableCheckpoint

WEIGHTS = {"code": "0.5", "docstrings": "0.3", "packages": "0.2"}
VOCABULARY = 257  # bytes, and the end of a document
END = 256
MAX_DOCUMENT = 4000  # characters


# --- the corpus: three JSON-lines files, each with a manifest that says what is in it ----------------


def python_files() -> list[Path]:
    home = Path(sysconfig.get_path("stdlib"))
    return [path for path in sorted(home.glob("*.py")) if path.stat().st_size]


def code() -> Iterator[str]:
    for path in python_files():
        yield path.read_text(encoding="utf-8", errors="replace")


def docstrings() -> Iterator[str]:
    for text in code():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (
                said := ast.get_docstring(node)
            ):
                yield said


def packages() -> Iterator[str]:
    for found in sorted(metadata.distributions(), key=lambda each: each.name or ""):
        yield found.read_text("METADATA") or ""
        for file in found.files or ():
            if "LICENSE" in file.name.upper() and (path := Path(str(file.locate()))).is_file():
                yield path.read_text(encoding="utf-8", errors="replace")


def prepare(home: Path, limit: int) -> None:
    """Write what is not there yet: at most ``limit`` documents of each source. Whole files or none."""
    home.mkdir(parents=True, exist_ok=True)
    for name, texts in {"code": code, "docstrings": docstrings, "packages": packages}.items():
        if (home / f"{name}.json").exists():
            continue
        lines = []
        for text in texts():
            if text.strip() and len(lines) < limit:
                lines.append(json.dumps({"text": text[:MAX_DOCUMENT]}))
        scratch = home / f"{name}.jsonl.part"
        scratch.write_text("\n".join(lines) + "\n")
        scratch.replace(home / f"{name}.jsonl")
        built = build(
            [home / f"{name}.jsonl"], root=home, measure=lambda record: len(encode(record)["input_ids"])
        )
        save(built, home / f"{name}.json")


def encode(record: Any) -> dict[str, Any]:
    """The tokens of a record: the bytes of its text."""
    return {"input_ids": np.frombuffer(record["text"].encode(), dtype=np.uint8)}


def mixture(home: Path) -> Mixture:
    """Tokens in the ratio of ``WEIGHTS``; a source that ends begins again, in another order."""
    sources = {}
    for name in WEIGHTS:
        manifest = load(home / f"{name}.json")
        lengths = load_lengths(home / f"{name}.json", manifest)
        sources[name] = RecordDataset(manifest, home, transform=encode, lengths=lengths)
    return Mixture(sources, WEIGHTS, unit="token")


# --- the model: attends within documents only ---------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(width, dim=2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class MixtureLM(L.LightningModule):
    def __init__(self, length: int, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads=4) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.token.weight, std=0.02)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        documents = batch["document_ids"]
        same = documents[:, :, None] == documents[:, None, :]
        mask = same.tril()[:, None]  # causal, within a document
        x = self.token(batch["input_ids"]) + self.position(batch["position_ids"])
        for block in self.blocks:
            x = block(x, mask)
        logits = F.linear(self.norm(x), self.token.weight)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


class Report(L.Callback):
    """One line a step, for whoever watches."""

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        print(f"step {trainer.global_step}", flush=True)


def digest(trainer: L.Trainer) -> str:
    """sha256 over every weight and every moment of the optimizer."""
    total = hashlib.sha256()
    tensors = [*trainer.lightning_module.state_dict().values()]
    for state in trainer.optimizers[0].state_dict()["state"].values():
        tensors += [state[name] for name in sorted(state)]
    for tensor in tensors:
        total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()


def train(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    L.seed_everything(7, verbose=False)
    prepare(args.data, args.documents)
    packing = Packing(args.length, policy="best_fit", window=16, eos_id=END)
    loader = DurableLoader(mixture(args.data), args.batch, packing=packing, num_workers=args.workers, seed=7)
    trainer = L.Trainer(
        accelerator="cpu", devices=1, max_steps=args.steps,
        callbacks=[DurableCheckpoint(args.root, every_n_train_steps=args.every), Report()],
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(MixtureLM(args.length), loader)
    loss = float(trainer.callback_metrics["train_loss"])
    print(f"weights {digest(trainer)}\nloss {loss:.4f}", flush=True)


# --- the proof ------------------------------------------------------------------------------------------


def start(args: argparse.Namespace, root: Path, workers: int) -> subprocess.Popen[str]:
    options = {"root": root, "data": args.data, "workers": workers}
    same = ("steps", "every", "batch", "length", "documents")
    options |= {name: getattr(args, name) for name in same}
    line = [
        sys.executable,
        __file__,
        *(part for name, value in options.items() for part in (f"--{name}", str(value))),
    ]
    return subprocess.Popen(line, stdout=subprocess.PIPE, text=True, start_new_session=True)


def outcome(process: subprocess.Popen[str], kill_after: int | None = None) -> str:
    """The weights it ended with; or "" once it was killed at the line of step ``kill_after``."""
    assert process.stdout is not None
    ended = ""
    for line in process.stdout:
        word, _, value = line.strip().partition(" ")
        if word == "step" and kill_after is not None and int(value) >= kill_after:
            os.killpg(process.pid, signal.SIGKILL)  # the loader's workers with it
            break
        ended = value if word == "weights" else ended
    process.wait()
    process.stdout.close()
    return ended


def prove(args: argparse.Namespace) -> int:
    prepare(args.data, args.documents)
    reference = outcome(start(args, args.root / "uninterrupted", args.workers))
    if not reference:
        print("the uninterrupted run did not get to its end: see above")
        return 1
    print(f"uninterrupted      weights {reference[:16]}…")
    killed = args.root / "killed"
    for number in range(1, 6):
        step = args.steps * number // 6 + number % 3
        outcome(start(args, killed, args.workers), kill_after=step)
        print(f"SIGKILL {number} at step {step}")
    final = outcome(start(args, killed, args.workers))
    print(f"killed five times  weights {final[:16]}…  {'identical' if final == reference else 'DIFFERENT'}\n")
    audit = subprocess.run([sys.executable, "-m", "durable_core.cli", "audit", str(killed)], check=False)
    return 0 if final == reference and audit.returncode == 0 else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="where the run lives")
    parser.add_argument("--data", type=Path, help="where the corpus lies; default: beside the root")
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps in all")
    parser.add_argument("--every", type=int, default=5, help="steps between checkpoints")
    parser.add_argument("--workers", type=int, default=2, help="loader worker processes")
    parser.add_argument("--batch", type=int, default=4, help="rows per batch")
    parser.add_argument("--length", type=int, default=256, help="tokens per row")
    parser.add_argument("--documents", type=int, default=150, help="documents per source, at most")
    parser.add_argument("--prove", action="store_true", help="uninterrupted, then killed five times: compare")
    args = parser.parse_args()
    args.data = args.data or args.root.parent / "mixture-data"
    if args.prove:
        return prove(args)
    train(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
