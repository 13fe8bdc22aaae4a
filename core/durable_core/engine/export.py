"""L4. A checkpoint as plain files that know nothing of this library.

``model.safetensors`` is what ``load_state_dict`` and ``from_pretrained`` take; ``checkpoint.ckpt`` is
Lightning's own checkpoint dict, for ``ckpt_path=`` or ``load_from_checkpoint``. Every byte is verified
before the first one is written, and the directory appears under its name only when it is whole.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from durable_core.clock import Clock, SystemClock
from durable_core.engine.inspect import Reader
from durable_core.errors import TierDenied, TierError, TierFull, UnsupportedError, UsageError
from durable_core.format import shard

if TYPE_CHECKING:
    from torch import Tensor

MODEL, LIGHTNING = "model.safetensors", "checkpoint.ckpt"


@dataclass(frozen=True)
class Exported:
    """``files``: path and bytes of each. ``notes``: what was asked for and is not there, or its limits."""

    c: int
    step: int
    out: Path
    files: tuple[tuple[Path, int], ...]
    notes: tuple[str, ...]


def export(
    reader: Reader,
    out: str | Path,
    c: int | None = None,
    *,
    formats: Sequence[str] = ("safetensors", "lightning"),
    required: bool = True,
    clock: Clock | None = None,
) -> Exported:
    """Write checkpoint ``c`` (by default the newest usable) into the new directory ``out``.

    ``formats``: ``safetensors`` and ``lightning``; the latter only for runs trained with Lightning:
    otherwise ``UnsupportedError``, or a note unless ``required``. Raises ``UsageError`` when ``out`` is
    there already, ``CheckpointNotFoundError``, and what reading a damaged checkpoint raises.
    """
    from durable_core.engine import restore  # brings torch: only when something is exported

    target = Path(out).absolute()
    if target.exists():
        raise UsageError(f"{target} is there already", hint="name a directory that does not exist yet")
    info = reader.checkpoint(c)
    role = reader.manifest(info).roles[0]
    state = restore.read(reader.tier, info.manifest, info.manifest_digest, role).state
    checkpoint = _lightning_checkpoint(state)
    notes: list[str] = []
    if "lightning" in formats and checkpoint is None:
        if required:
            raise UnsupportedError(
                f"c{info.c} holds no Lightning checkpoint", hint="this run was not trained with Lightning"
            )
        notes.append("no .ckpt: this run was not trained with Lightning")
    partial = target.with_name(f".{target.name}.{(clock or SystemClock()).new_id()[:8]}.partial")
    try:
        partial.mkdir(parents=True)
        try:
            if "safetensors" in formats:
                _write_safetensors(
                    partial / MODEL, model_tensors(state), {"format": "pt", "step": str(info.step)}
                )
            if "lightning" in formats and checkpoint is not None:
                notes += _write_lightning(partial / LIGHTNING, _for_plain_lightning(checkpoint))
            _sync(partial)
            partial.rename(target)
            _sync(target.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise _tier_error(target, error) from error
    files = tuple((path, path.stat().st_size) for path in sorted(target.iterdir()))
    return Exported(info.c, info.step, target, files, tuple(notes))


# --- what of the state ----------------------------------------------------------------------


def _lightning_checkpoint(state: Any) -> dict[str, Any] | None:
    """The dict that Lightning itself made, kept verbatim by the adapter under ``checkpoint``."""
    found = state.get("checkpoint") if isinstance(state, Mapping) else None
    is_lightning = isinstance(found, Mapping) and "pytorch-lightning_version" in found
    return dict(found) if is_lightning and found is not None else None


def _for_plain_lightning(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """The dict, except that an epoch whose batches are all done counts as processed.

    That is what Lightning writes in its own end-of-epoch checkpoints. Ours are staged one line earlier,
    before the epoch's end hooks; plain Lightning would train one batch too many after such a restart.
    """
    progress = checkpoint.get("loops", {}).get("fit_loop", {})
    batches, epochs = progress.get("epoch_loop.batch_progress"), progress.get("epoch_progress")
    if not batches or not epochs or not batches["is_last_batch"]:
        return checkpoint
    done, current = batches["current"], epochs["current"]
    if done["completed"] != done["ready"] or current["processed"] != current["started"] - 1:
        return checkpoint
    over = {scope: {**counts, "processed": counts["processed"] + 1} for scope, counts in epochs.items()}
    fit_loop = {**progress, "epoch_progress": over}
    return {**checkpoint, "loops": {**checkpoint["loops"], "fit_loop": fit_loop}}


def model_tensors(state: Any) -> dict[str, Tensor]:
    """The parameters and buffers by the names that ``load_state_dict`` knows.

    Lightning's ``state_dict``; otherwise the entry ``model``; otherwise everything that is a tensor,
    by its path.
    """
    checkpoint = _lightning_checkpoint(state)
    if checkpoint is not None:
        return _tensors(checkpoint["state_dict"])
    if isinstance(state, Mapping) and (found := _tensors(state.get("model"))):
        return found
    return _tensors(state)


def _tensors(tree: Any, prefix: str = "") -> dict[str, Tensor]:
    import torch

    if isinstance(tree, torch.Tensor):
        return {prefix: tree}
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(tree, Mapping):
        items = tree.items()
    elif isinstance(tree, (list, tuple)):
        items = enumerate(tree)
    found: dict[str, Tensor] = {}
    for name, value in items:
        found.update(_tensors(value, f"{prefix}.{name}" if prefix else str(name)))
    return found


# --- writing ----------------------------------------------------------------------------------


def _write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Streams the tensors' own memory: no second copy. Tied tensors are written under each name."""
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


def _write_lightning(path: Path, checkpoint: dict[str, Any]) -> list[str]:
    """``torch.save`` of the dict; a note when only a full unpickler reads it."""
    import torch

    with path.open("xb") as file:
        torch.save(checkpoint, file)
        file.flush()
        os.fsync(file.fileno())
    unsafe = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    if not unsafe:
        return []
    return [f"{path.name} holds {', '.join(sorted(unsafe))}: load it with weights_only=False"]


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _tier_error(target: Path, error: OSError) -> TierError:
    if isinstance(error, PermissionError):
        return TierDenied(f"cannot write {target}: {error.strerror}")
    kind = TierFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else TierError
    return kind(f"cannot write {target}: {error.strerror}")
