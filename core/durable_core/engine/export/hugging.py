"""L4. What ``from_pretrained`` takes, of transformers and of PEFT: which files, and which tensors in each.

A model's tensors keep the names they have in its ``state_dict``. A model with adapters gives the adapters
alone, under the names that PEFT's own ``save_pretrained`` writes: the base model is where it came from.

==========================================  ================================================================
in the checkpoint                           in ``adapter_model.safetensors`` (adapter ``default``)
==========================================  ================================================================
``….lora_A.default.weight``                 ``….lora_A.weight``
``….lora_embedding_A.default``              ``….lora_embedding_A``
``….lora_magnitude_vector.default.weight``  ``….lora_magnitude_vector``
``….modules_to_save.default.weight``        ``….weight``
==========================================  ================================================================

The adapter ``default`` lies in the directory itself, any other in one of its name. Configurations come from
the document ``hf`` that an adapter of ours puts into the state, or from the caller. Pure, but for ``write``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from durable_core.engine.export.files import sync, write_json, write_safetensors
from durable_core.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

Json = dict[str, Any]

DEFAULT = "default"
CONFIG, GENERATION, ADAPTER = "config.json", "generation_config.json", "adapter_config.json"
_PREFIXES = {"LORA": "lora_", "LOHA": "hada_", "LOKR": "lokr_", "IA3": "ia3_"}
_MAGNITUDE = "lora_magnitude_vector"


@dataclass(frozen=True)
class Wanted:
    """``key``: which object of the state is the model; in a Lightning checkpoint, which attribute.
    ``config``: a directory or file whose configuration is used instead of the stored one.
    ``max_shard_bytes``: of one file; a tensor that is larger has a file of its own."""

    key: str = "model"
    config: Path | None = None
    max_shard_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.max_shard_bytes is not None and self.max_shard_bytes < 1:
            raise UsageError(f"max_shard_bytes={self.max_shard_bytes}", hint="at least one byte, or None")


@dataclass(frozen=True)
class Configs:
    """``peft``: by name of the adapter."""

    config: Json | None = None
    generation: Json | None = None
    peft: Mapping[str, Json] = field(default_factory=dict)


def write(directory: Path, tensors: Mapping[str, Any], configs: Configs, wanted: Wanted) -> list[str]:
    """Everything into ``directory``, which is there and empty; what a person should know of it.

    Raises ``UnsupportedError`` for a kind of adapter whose names are not known here, ``UsageError`` for
    adapters without a configuration.
    """
    notes = [f"{name} is no tensor, and left out" for name in tensors if not _is_tensor(tensors[name])]
    plain = {name: value for name, value in tensors.items() if _is_tensor(value)}
    if configs.peft:
        for name, config in configs.peft.items():
            place = directory if name == DEFAULT else directory / _folder(name)
            place.mkdir(exist_ok=True)
            write_safetensors(
                place / "adapter_model.safetensors", adapter(plain, name, config), {"format": "pt"}
            )
            write_json(place / ADAPTER, {**config, "inference_mode": True})
            sync(place)
        return [*notes, "the adapters alone: the weights of the base model are not written"]
    if any(".lora_A." in name for name in plain):
        raise UsageError(
            "the model has adapters, and no configuration of them is stored",
            hint=f"--config with the {ADAPTER} that PEFT wrote, or the run's own peft_config",
        )
    _write_model(directory, plain, wanted.max_shard_bytes)
    if configs.config is None:
        notes.append(f"no {CONFIG}: none is stored with the checkpoint; name one with --config")
    else:
        write_json(directory / CONFIG, configs.config)
    if configs.generation is not None:
        write_json(directory / GENERATION, configs.generation)
    return notes


def _folder(name: str) -> str:
    """It comes from a document, and must not lead out of the directory."""
    if Path(name).name != name:
        raise UnsupportedError(f"adapter {name!r} has a name that no directory can have")
    return name


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


# --- a model --------------------------------------------------------------------------------


def _write_model(directory: Path, tensors: Mapping[str, Tensor], most: int | None) -> None:
    """Tied tensors are written under each name: which of them a model reads is known to its code alone."""
    metadata = {"format": "pt"}
    files = shards({name: tensor.nbytes for name, tensor in tensors.items()}, most)
    if len(files) == 1:
        write_safetensors(directory / "model.safetensors", tensors, metadata)
        return
    where: dict[str, str] = {}
    for number, names in enumerate(files, 1):
        file = f"model-{number:05}-of-{len(files):05}.safetensors"
        write_safetensors(directory / file, {name: tensors[name] for name in names}, metadata)
        where.update(dict.fromkeys(names, file))
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": where}
    write_json(directory / "model.safetensors.index.json", index)


def shards(sizes: Mapping[str, int], most: int | None) -> list[list[str]]:
    """Names in their order, as many to a file as ``most`` bytes hold."""
    files: list[list[str]] = [[]]
    held = 0
    for name, size in sizes.items():
        if files[-1] and most is not None and held + size > most:
            files.append([])
            held = 0
        files[-1].append(name)
        held += size
    return files


# --- an adapter -----------------------------------------------------------------------------


def adapter(tensors: Mapping[str, Tensor], name: str, config: Json) -> dict[str, Tensor]:
    """The tensors of adapter ``name`` as PEFT names them in a file."""
    kind = str(config.get("peft_type", ""))
    prefix = _PREFIXES.get(kind)
    beside = next(filter(None, _beside(config)), None)
    if prefix is None or beside is not None or any("trainable_tokens" in each for each in tensors):
        what = beside or (f"peft_type {kind}" if prefix is None else "trainable tokens")
        raise UnsupportedError(
            f"adapter {name!r} has {what}, whose names in a file are PEFT's own affair",
            hint="restore the run in its script and call model.save_pretrained(DIR) there",
        )
    named = ((adapter_key(key, name, prefix), tensor) for key, tensor in tensors.items())
    found = {key: tensor for key, tensor in named if key is not None}
    if not found:
        raise UsageError(f"the checkpoint holds no tensor of adapter {name!r}", hint="--key names the model")
    return found


def _beside(config: Json) -> Iterator[str]:
    """What an adapter may train beside its own tensors, in words."""
    if config.get("bias", "none") != "none":
        yield f"bias={config['bias']!r}"
    if config.get("trainable_token_indices") is not None:
        yield "trainable_token_indices"


def adapter_key(key: str, name: str, prefix: str) -> str | None:
    """What ``key`` of a ``state_dict`` is called in the file of adapter ``name``; ``None``: it has no place
    there."""
    parts = key.split(".")
    for at in range(1, len(parts)):
        before, rest = parts[at - 1], parts[at + 1 :]
        if parts[at] != name:
            continue
        if before == "modules_to_save":
            return ".".join([*parts[: at - 1], *rest])
        if before.startswith(prefix):
            rest = [] if before == _MAGNITUDE else rest
            return ".".join([*parts[:at], *rest])
    return None


# --- configurations -------------------------------------------------------------------------


def configs(stored: Any, given: Path | None) -> Configs:
    """Those in the document ``stored``, but for what lies in ``given``: a directory, or a file of one.

    Raises ``UsageError`` for a file that is no configuration.
    """
    document = stored if isinstance(stored, Mapping) else {}
    found = Configs(
        document.get("config"), document.get("generation_config"), dict(document.get("peft") or {})
    )
    if given is None:
        return found
    if not given.is_dir():
        return _merged(found, _read(given))
    files = [given / name for name in (CONFIG, GENERATION, ADAPTER) if (given / name).is_file()]
    if not files:
        raise UsageError(f"{given} holds neither {CONFIG} nor {ADAPTER}")
    for file in files:
        found = _merged(found, _read(file), generation=file.name == GENERATION)
    return found


def _merged(found: Configs, config: Json, *, generation: bool = False) -> Configs:
    if "peft_type" in config:
        return Configs(found.config, found.generation, dict.fromkeys(found.peft or (DEFAULT,), config))
    if generation:
        return Configs(found.config, config, found.peft)
    return Configs(config, found.generation, found.peft)


def _read(path: Path) -> Json:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is no configuration: {error}", hint=f"a {CONFIG} or {ADAPTER}") from error
    if not isinstance(document, dict):
        raise UsageError(f"{path} is no configuration", hint=f"a {CONFIG} or {ADAPTER}")
    return document
