"""L4. A checkpoint as plain files that know nothing of this library.

``model.safetensors`` is what ``load_state_dict`` takes; ``checkpoint.ckpt`` is Lightning's own checkpoint
dict, for ``ckpt_path=`` or ``load_from_checkpoint``; ``hugging`` says what ``from_pretrained`` takes. Every
byte is verified before the first one is written, and the directory appears under its name only when whole.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from durable_core.clock import Clock, SystemClock
from durable_core.commit.state import CheckpointInfo
from durable_core.engine.export import hugging
from durable_core.engine.export.files import sync, write_safetensors
from durable_core.engine.inspect import Reader
from durable_core.errors import (
    CorruptError,
    NoUsableCheckpoint,
    ObjectNotFoundError,
    TierDenied,
    TierError,
    TierFull,
    UnknownVersionError,
    UnsupportedError,
    UsageError,
)

if TYPE_CHECKING:
    from torch import Tensor

MODEL, LIGHTNING = "model.safetensors", "checkpoint.ckpt"


@dataclass(frozen=True)
class Damaged:
    """A newer checkpoint that was passed over, and why."""

    c: int
    step: int
    reason: str


@dataclass(frozen=True)
class Exported:
    """``files``: path and bytes of each. ``notes``: what was asked for and is not there, or its limits.
    ``damaged``: newest first."""

    c: int
    step: int
    out: Path
    files: tuple[tuple[Path, int], ...]
    notes: tuple[str, ...]
    damaged: tuple[Damaged, ...] = ()


def export(
    reader: Reader,
    out: str | Path,
    c: int | None = None,
    *,
    formats: Sequence[str] = ("safetensors", "lightning"),
    required: bool = True,
    hf: hugging.Wanted | None = None,
    clock: Clock | None = None,
) -> Exported:
    """Write checkpoint ``c``, or the newest usable one that is whole, into the new directory ``out``.

    ``formats``: ``safetensors``, ``hf`` (see ``hf``) and ``lightning``; the latter only for runs trained with
    Lightning: otherwise ``UnsupportedError``, or a note unless ``required``. Raises ``UsageError`` when
    ``out`` is there already, ``CheckpointNotFoundError``, what reading ``c`` raises when it is damaged, and
    ``NoUsableCheckpoint`` when all are.
    """
    target = Path(out).absolute()
    if target.exists():
        raise UsageError(f"{target} is there already", hint="name a directory that does not exist yet")
    damaged: tuple[Damaged, ...] = ()
    if c is None:
        info, state, damaged = _newest_whole(reader)
    else:
        info = reader.checkpoint(c)
        state = _read(reader, info)
    checkpoint = _lightning_checkpoint(state)
    hf = hf or hugging.Wanted()
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
                write_safetensors(
                    partial / MODEL, model_tensors(state), {"format": "pt", "step": str(info.step)}
                )
            if "lightning" in formats and checkpoint is not None:
                notes += _write_lightning(partial / LIGHTNING, _for_plain_lightning(checkpoint))
            if "hf" in formats:
                stored = state.get("hf") if isinstance(state, Mapping) else None
                found = hugging.configs(stored, hf.config)
                notes += hugging.write(partial, _module_tensors(state, hf.key), found, hf)
            sync(partial)
            partial.rename(target)
            sync(target.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise _tier_error(target, error) from error
    written = sorted(path for path in target.rglob("*") if path.is_file())
    files = tuple((path, path.stat().st_size) for path in written)
    return Exported(info.c, info.step, target, files, tuple(notes), damaged)


# --- reading --------------------------------------------------------------------------------


def _read(reader: Reader, info: CheckpointInfo) -> Any:
    """The state as its first writer had it, verified."""
    from durable_core.engine import restore  # brings torch: only when something is exported

    role = reader.manifest(info).roles[0]
    return restore.read(reader.tier, info.manifest, info.manifest_digest, role).state


def _newest_whole(reader: Reader) -> tuple[CheckpointInfo, Any, tuple[Damaged, ...]]:
    """The first that can be read, its state, and those before it that cannot."""
    damaged: list[Damaged] = []
    newest = reader.newest_usable()
    for info in reader.usable():
        try:
            return info, _read(reader, info), tuple(damaged)
        except UnknownVersionError:
            raise  # whole, and written by a newer version
        except (CorruptError, ObjectNotFoundError) as error:
            damaged.append(Damaged(info.c, info.step, error.message))
    raise NoUsableCheckpoint(
        f"none of {len(damaged)} checkpoints can be read; the newest, c{newest.c}: {damaged[0].reason}",
        hint="durable verify ROOT names what is damaged; durable scrub ROOT --repair mends what it can",
    )


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


def _module_tensors(state: Any, key: str) -> Mapping[str, Any]:
    """What the module's own ``state_dict`` held: of the object ``key``, or of that attribute in Lightning."""
    objects = state if isinstance(state, Mapping) else {}
    found: Any = objects.get(key)
    known = [name for name in objects if not name.startswith("_")]
    checkpoint = _lightning_checkpoint(state)
    if checkpoint is not None:
        held, dot = checkpoint["state_dict"], f"{key}."
        found = {name[len(dot) :]: value for name, value in held.items() if name.startswith(dot)}
        known = list({name.partition(".")[0] for name in held})
    if not isinstance(found, Mapping) or not found:
        hint = f"--key, one of {', '.join(sorted(known))}"
        raise UsageError(f"the checkpoint holds no model {key!r}", hint=hint)
    return found


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


def _tier_error(target: Path, error: OSError) -> TierError:
    if isinstance(error, PermissionError):
        return TierDenied(f"cannot write {target}: {error.strerror}")
    kind = TierFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else TierError
    return kind(f"cannot write {target}: {error.strerror}")
