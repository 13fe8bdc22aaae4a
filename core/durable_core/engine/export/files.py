"""L4. Files that know nothing of this library, written so that they are durable when they are there."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from durable_core.errors import UnsupportedError
from durable_core.format import shard

if TYPE_CHECKING:
    from torch import Tensor


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Streams the tensors' own memory: no second copy. Tied tensors are written under each name.

    ``UnsupportedError`` for what safetensors cannot hold.
    """
    from durable_core.state import memory
    from durable_core.state.dtypes import TO_NAME

    plain = {name: _storable(name, tensor) for name, tensor in tensors.items()}
    entries = [
        (name, TO_NAME[t.dtype], tuple(t.shape), t.numel() * t.element_size()) for name, t in plain.items()
    ]
    header, begins = shard.layout(entries)
    described = {"__metadata__": dict(metadata), **json.loads(header[shard.PREFIX :])}
    text = json.dumps(described, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    views = [memory.writable(tensor) for tensor in plain.values()]
    with path.open("xb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for index in shard.write_order(begins, [view.nbytes for view in views]):
            file.write(views[index])
        file.flush()
        os.fsync(file.fileno())


def _storable(name: str, tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        raise UnsupportedError(
            f"{name}: safetensors has no {tensor.dtype}", hint="export the Lightning .ckpt"
        )
    return tensor.detach().contiguous()


def write_json(path: Path, document: Any) -> None:
    """As Hugging Face writes its configurations: indented, in the order of the keys."""
    with path.open("x", encoding="utf-8") as file:
        file.write(json.dumps(document, indent=2, sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())


def sync(directory: Path) -> None:
    """The names in it are durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
