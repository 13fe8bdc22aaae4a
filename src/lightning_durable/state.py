"""What of a Lightning fit is state, as plain trees; and how it is put back.

Lightning's own checkpoint dict is kept verbatim (callbacks put averaged weights into it and take them out
again, so it is never rebuilt from the module). Beside it goes what Lightning leaves out and a later update
depends on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_warn
from torchmetrics import Metric

from durable_core.errors import CodecError
from durable_core.format import codec
from durable_core.state import rng
from lightning_durable import hooks

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

Tree = dict[str, Any]

OWN_METRICS = "durable/"
#: In checkpoints that others make: where the data stood. In ours the manifest says so.
CURSOR = "durable_cursor"
_HYPER_PARAMETERS = ("hyper_parameters", "datamodule_hyper_parameters")
_HYPER_PARAMETER_TYPES = ("hparams_type", "datamodule_hparams_type")
_OF_MODEL_CHECKPOINT = ("_last_global_step_saved", "_last_checkpoint_saved", "_defer_save_until_validation")


class Capture:
    """Takes the state of one fit. Tensors in the trees are the live ones: stage them before the next step."""

    def __init__(self, trainer: Trainer, module: LightningModule) -> None:
        self._trainer = trainer
        self._module = module
        self._left_out: dict[str, frozenset[str]] = {}

    def state(self) -> Tree:
        """Expected to be equal on every replica. Runs the save hooks of module, callbacks and data module."""
        checkpoint = hooks.dump(self._trainer)
        checkpoint.pop(CURSOR, None)
        self._drop_what_is_no_state(checkpoint)
        tree: Tree = {
            "checkpoint": checkpoint,
            "buffers": dict(_buffers(self._module)),
            "torchmetrics": {name: _metric_state(metric) for name, metric in _torchmetrics(self._module)},
            "metrics": _without_own(hooks.metrics(self._trainer)),
            "results": hooks.results(self._trainer),
            "model_checkpoints": {
                callback.state_key: {name: getattr(callback, name) for name in _OF_MODEL_CHECKPOINT}
                for callback in _model_checkpoints(self._trainer)
            },
            "reloaded_in_epoch": float(self._trainer.fit_loop._last_train_dl_reload_epoch),
        }
        if not self._module.automatic_optimization:
            # Only user code knows when these are used up: two optimizers may step in different rhythms.
            named = self._module.named_parameters()
            tree["gradients"] = {name: p.grad for name, p in named if p.grad is not None}
        return tree

    def role(self) -> Tree:
        """This replica's own: its random streams."""
        return {
            "rng": rng.capture(),
            "generators": {name: rng.Named(g).state_dict() for name, g in _generators(self._module)},
        }

    def _drop_what_is_no_state(self, checkpoint: Tree) -> None:
        """Hyper-parameters name classes and functions freely; they are arguments, not training state."""
        for key in _HYPER_PARAMETER_TYPES:
            checkpoint.pop(key, None)
        for key in _HYPER_PARAMETERS:
            if key not in checkpoint:
                continue
            values = {str(name): value for name, value in dict(checkpoint[key]).items()}
            if key not in self._left_out:
                names = sorted(name for name, value in values.items() if not _storable(value))
                self._left_out[key] = frozenset(names)
                if names:
                    rank_zero_warn(
                        f"DurableCheckpoint leaves {', '.join(names)} of {key} out of its checkpoints: their "
                        "types cannot be stored. They are arguments, not state; a resume does not need them."
                    )
            checkpoint[key] = {n: v for n, v in values.items() if n not in self._left_out[key]}


def restore_rest(trainer: Trainer, module: LightningModule, state: Tree) -> None:
    """Everything beside Lightning's checkpoint dict and the random streams."""
    _fill(dict(_buffers(module)), state["buffers"])
    for name, metric in _torchmetrics(module):
        for field, value in state["torchmetrics"].get(name, {}).items():
            setattr(metric, field, _to(value, metric.device))
    hooks.set_metrics(trainer, state["metrics"])
    hooks.set_results(trainer, state["results"])
    for callback in _model_checkpoints(trainer):
        for field, value in state["model_checkpoints"].get(callback.state_key, {}).items():
            setattr(callback, field, value)
    trainer.fit_loop._last_train_dl_reload_epoch = state["reloaded_in_epoch"]
    for name, parameter in module.named_parameters():
        if name in (gradients := state.get("gradients", {})):
            parameter.grad = gradients[name].to(parameter.device)


def begin_random(module: LightningModule, text: str) -> None:
    """For a replica that the checkpoint does not know: every stream begins from ``text`` and its name."""
    for name, generator in _generators(module):
        rng.begin_named(generator, text, name)
    rng.begin(text)


def restore_random(module: LightningModule, role: Tree, *, strict: bool) -> None:
    """Last of all: whatever ran before may have drawn numbers."""
    stored = role["generators"]
    for name, generator in _generators(module):
        if name in stored:
            rng.Named(generator).load_state_dict(stored[name])
    rng.restore(role["rng"], strict=strict)


# --- pieces --------------------------------------------------------------------------------


def _buffers(module: LightningModule) -> Iterator[tuple[str, torch.Tensor]]:
    """All of them, not only those that ``state_dict`` leaves out: DDP overwrites every replica's buffers
    with the first one's when it wraps the module, which is after Lightning has restored them."""
    for prefix, child in module.named_modules():
        if isinstance(child, Metric):
            continue  # torchmetrics keeps its state outside buffers, see below
        for name, buffer in sorted(child._buffers.items()):
            if buffer is not None:
                yield f"{prefix}.{name}" if prefix else name, buffer


def _fill(live: Mapping[str, torch.Tensor], stored: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, value in stored.items():
            if name in live and live[name].shape == value.shape:
                live[name].copy_(value)


def _torchmetrics(module: LightningModule) -> Iterator[tuple[str, Metric]]:
    for name, child in module.named_modules():
        if isinstance(child, Metric):
            yield name, child


def _metric_state(metric: Metric) -> Tree:
    """Empty for a metric that has seen nothing since its last reset."""
    if not metric.update_count:
        return {}
    return {**metric.metric_state, "_update_count": metric.update_count, "_computed": None}


def _model_checkpoints(trainer: Trainer) -> Iterator[ModelCheckpoint]:
    return (callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint))


def _generators(module: LightningModule) -> Iterator[tuple[str, Any]]:
    """Generators that the module or a submodule holds as attributes."""
    for prefix, child in module.named_modules():
        for name, value in sorted(vars(child).items()):
            if isinstance(value, rng.GENERATORS):
                yield f"{prefix}.{name}" if prefix else name, value


def _without_own(held: Tree) -> Tree:
    def kept(value: Any) -> Any:
        return (
            {k: v for k, v in value.items() if not k.startswith(OWN_METRICS)}
            if isinstance(value, dict)
            else value
        )

    return {name: kept(value) for name, value in held.items()}


def _storable(value: Any) -> bool:
    try:
        codec.encode(value, leaf=lambda item, path: path if isinstance(item, torch.Tensor) else None)
    except CodecError:
        return False
    return True


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return [_to(item, device) for item in value] if isinstance(value, list) else value
