"""What ``durable export --format hf`` writes is what ``from_pretrained`` of transformers and PEFT loads."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_runs import Durable
from safetensors.torch import load_file

from durable_core import DurableSession
from durable_core.engine.export.hugging import adapter_key, shards

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

TINY: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 16, "max_position_embeddings": 16,
}  # fmt: skip


class Described:
    """The document that an adapter of ours puts into the state."""

    def __init__(self, **document: Any) -> None:
        self._document = json.loads(json.dumps(document, default=list))

    def state_dict(self) -> Any:
        return self._document

    def load_state_dict(self, state: Any) -> None:
        pass


def config() -> Any:
    return transformers.BertConfig(**TINY)


def trained(root: Path, model: torch.nn.Module, **document: Any) -> None:
    """A run of no step whose weights are none that a constructor makes."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    state = {"model": model, **({"hf": Described(**document)} if document else {})}
    with DurableSession.open(root, state=state):
        pass


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def described_by(adapter: Any) -> dict[str, Any]:
    return {name: each.to_dict() for name, each in adapter.peft_config.items()}


def test_a_model_with_tied_weights_is_loaded_bit_for_bit(tmp_path: Path, durable: Durable) -> None:
    model = transformers.BertForMaskedLM(config())
    trained(tmp_path / "run", model, config=model.config.to_dict())
    done = durable("export", tmp_path / "run", tmp_path / "out", "--format", "hf", "--json")
    assert (done.code, done.document["notes"]) == (0, [])
    loaded, about = transformers.BertForMaskedLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert same(model, loaded) and not any(about[name] for name in ("missing_keys", "unexpected_keys"))
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight


def test_shards_have_an_index_that_loads(tmp_path: Path, durable: Durable) -> None:
    model = transformers.BertModel(config())
    trained(tmp_path / "run", model, config=model.config.to_dict())
    done = durable(
        "export", tmp_path / "run", tmp_path / "out", "--format", "hf", "--max-shard-bytes", "2KiB"
    )
    assert done.code == 0
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 2 and files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert same(model, transformers.BertModel.from_pretrained(tmp_path / "out"))


def test_a_configuration_may_be_given(tmp_path: Path, durable: Durable) -> None:
    model = transformers.BertModel(config())
    trained(tmp_path / "run", model)
    export = ("export", tmp_path / "run", tmp_path / "out", "--format", "hf", "--json")
    bare = durable(*export)
    assert any("no config.json" in note for note in bare.document["notes"])
    again = durable(*export)
    assert again.code != 0 and "is there already" in again.out
    model.config.save_pretrained(tmp_path / "given")
    for number, given in enumerate(("given", "given/config.json")):
        out = tmp_path / f"with{number}"
        done = durable("export", tmp_path / "run", out, "--format", "hf", "--config", tmp_path / given)
        assert done.code == 0
        assert same(model, transformers.BertModel.from_pretrained(out))


ADAPTERS: dict[str, Callable[[], Any]] = {
    "lora": lambda: peft.LoraConfig(r=2, target_modules=["query", "value"]),
    "lora of embeddings": lambda: peft.LoraConfig(r=2, target_modules=["query", "word_embeddings"]),
    "dora and a head": lambda: peft.LoraConfig(
        r=2, target_modules=["query"], modules_to_save=["classifier"], use_dora=True, task_type="SEQ_CLS"
    ),
    "ia3": lambda: peft.IA3Config(target_modules=["query", "dense"], feedforward_modules=["dense"]),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ADAPTERS)
def test_an_adapter_is_what_peft_itself_would_have_written(
    kind: str, tmp_path: Path, durable: Durable
) -> None:
    torch.manual_seed(0)
    base = transformers.BertForSequenceClassification(config())
    weights = {name: value.clone() for name, value in base.state_dict().items()}
    model = peft.get_peft_model(base, ADAPTERS[kind]())
    trained(tmp_path / "run", model, peft=described_by(model))
    done = durable("export", tmp_path / "run", tmp_path / "out", "--format", "hf", "--json")
    assert done.code == 0 and "the adapters alone" in done.document["notes"][0]
    model.save_pretrained(tmp_path / "theirs", save_embedding_layers=False)
    ours, theirs = (load_file(tmp_path / each / "adapter_model.safetensors") for each in ("out", "theirs"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    fresh = transformers.BertForSequenceClassification(config())
    fresh.load_state_dict(weights)
    loaded = peft.PeftModel.from_pretrained(fresh, tmp_path / "out")
    trainable = peft.get_peft_model_state_dict(loaded, save_embedding_layers=False)
    assert all(torch.equal(trainable[name], theirs[name]) for name in theirs)


def test_a_second_adapter_lies_in_a_directory_of_its_name(tmp_path: Path, durable: Durable) -> None:
    model = peft.get_peft_model(transformers.BertModel(config()), ADAPTERS["lora"]())
    model.add_adapter("other", peft.LoraConfig(r=3, target_modules=["key"]))
    trained(tmp_path / "run", model, peft=described_by(model))
    assert durable("export", tmp_path / "run", tmp_path / "out", "--format", "hf").code == 0
    model.save_pretrained(tmp_path / "theirs")
    for place in (".", "other"):
        ours, theirs = (
            load_file(tmp_path / each / place / "adapter_model.safetensors") for each in ("out", "theirs")
        )
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


def test_what_cannot_be_named_is_refused_and_nothing_is_written(tmp_path: Path, durable: Durable) -> None:
    model = peft.get_peft_model(
        transformers.BertModel(config()), peft.LoraConfig(r=2, target_modules=["query"], bias="all")
    )
    trained(tmp_path / "biased", model, peft=described_by(model))
    trained(tmp_path / "untold", model)
    for run, said in (("biased", "bias='all'"), ("untold", "no configuration of them")):
        done = durable("export", tmp_path / run, tmp_path / "out", "--format", "hf")
        assert done.code != 0 and said in done.err
        other = durable("export", tmp_path / run, tmp_path / "out", "--format", "hf", "--key", "teacher")
        assert other.code != 0 and "no model 'teacher'" in other.err
    assert {path.name for path in tmp_path.iterdir()} == {"biased", "untold"}


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("a.lora_A.default.weight", "a.lora_A.weight"),
        ("a.lora_embedding_A.default", "a.lora_embedding_A"),
        ("a.lora_magnitude_vector.default.weight", "a.lora_magnitude_vector"),
        ("a.modules_to_save.default.weight", "a.weight"),
        ("a.original_module.weight", None),
        ("a.default.weight", None),
        ("a.lora_A.other.weight", None),
    ],
)
def test_names_in_the_file_of_an_adapter(key: str, found: str | None) -> None:
    assert adapter_key(key, "default", "lora_") == found


def test_a_tensor_that_is_too_large_has_a_file_of_its_own() -> None:
    assert shards({"a": 3, "b": 9, "c": 2, "d": 2}, 4) == [["a"], ["b"], ["c", "d"]]
    assert shards({"a": 3, "b": 9}, None) == [["a", "b"]]
