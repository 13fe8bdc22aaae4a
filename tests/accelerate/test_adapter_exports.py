"""A run of Accelerate's with a model of transformers can be exported: what its configuration is, it knows."""

from __future__ import annotations

from pathlib import Path

import torch
from adapter_parts import forget_accelerate
from peft import LoraConfig, PeftModel, get_peft_model
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

from accelerate_durable import Accelerator
from durable_core.engine.export import export
from durable_core.engine.inspect import open_run

CONFIG = BertConfig(
    vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
    max_position_embeddings=8,
)  # fmt: skip


def test_adapters_are_exported_as_peft_expects_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    base = BertForSequenceClassification(CONFIG)
    base.save_pretrained(tmp_path / "base")
    accelerator = Accelerator(cpu=True, durable=tmp_path / "run")
    model = get_peft_model(base, LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"]))
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    rows = [{"input_ids": torch.arange(k, k + 4), "labels": k % 2} for k in range(8)]
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(rows, 4, shuffle=True))
    for batch in loader:
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.end_training()
    forget_accelerate()

    reader, out = open_run(tmp_path / "run"), tmp_path / "adapter"
    assert reader.state.head is not None
    export(reader, out, reader.state.head, formats=("hf",))
    again = PeftModel.from_pretrained(BertForSequenceClassification.from_pretrained(tmp_path / "base"), out)
    trained = dict(model.named_parameters())
    assert all(torch.equal(value, trained[name]) for name, value in again.named_parameters())
