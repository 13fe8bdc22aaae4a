"""Fine-tuning as people do it, small: a LoRA adapter on a BERT, and TRL's ``SFTTrainer`` on a Llama."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from trainer_subject import Notes, digest
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)
from trl import SFTConfig, SFTTrainer

from accelerate_durable.transformers import DurableTrainerCallback
from durable_core.commit.retention import Retention

WORDS = [f"w{k}" for k in range(40)]


def _common(home: Path) -> dict[str, Any]:
    return {
        "output_dir": str(home / "out"), "seed": 5, "use_cpu": True, "report_to": [], "disable_tqdm": True,
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 9,
        "save_strategy": "no", "logging_steps": 2, "learning_rate": 0.01, "dataloader_pin_memory": False,
    }  # fmt: skip


def _texts(count: int) -> list[str]:
    chosen = torch.Generator().manual_seed(2)
    return [" ".join(WORDS[int(k)] for k in torch.randint(40, (12,), generator=chosen)) for _ in range(count)]


def lora(home: Path, notes: Notes) -> Trainer:
    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=2000, hidden_size=128, num_hidden_layers=3, num_attention_heads=4, intermediate_size=512
    )
    adapter = LoraConfig(r=1, target_modules=["query"], lora_dropout=0.1, task_type="SEQ_CLS")
    ids = torch.randint(2000, (24, 8), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": int(row.sum()) % 2} for row in ids]
    return Trainer(
        model=get_peft_model(BertForSequenceClassification(config), adapter),
        args=TrainingArguments(**_common(home)),
        train_dataset=data,
        callbacks=[notes],
    )


def sft(home: Path, notes: Notes) -> Trainer:
    torch.manual_seed(5)
    vocabulary = {word: k for k, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    words = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, attention_dropout=0.1, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return SFTTrainer(
        model=LlamaForCausalLM(config),
        args=SFTConfig(**_common(home), max_length=16, bf16=False),
        train_dataset=Dataset.from_dict({"text": _texts(24)}),
        processing_class=tokenizer,
        callbacks=[notes],
    )


KINDS = {"lora": lora, "sft": sft}


def run(kind: str, home: Path, kill: tuple[str, int] | None = None) -> None:
    notes = Notes(home / "notes", kill)
    trainer = KINDS[kind](home, notes)
    notes.durable = DurableTrainerCallback(home / "run", every_n_steps=2, retention=Retention(keep_last=100))
    notes.durable.attach(trainer)
    trainer.train()
    history = [
        {k: v for k, v in row.items() if not k.endswith(("_runtime", "_per_second"))}
        for row in trainer.state.log_history
    ]
    end = {"weights": digest(*trainer.model.parameters()), "history": history}
    (home / "end").write_text(json.dumps(end))
