"""Every private or half-private part of Lightning that this adapter leans on, and nothing else does.

Tested on Lightning 2.6.6. ``USED`` lists each one with its purpose; ``check`` refuses, by name, a Lightning
that lacks one; ``tests/lightning/test_lightning_hooks.py`` says what an upgrade broke. Wrappers are set on
*instances* (this trainer's loops and connectors) and taken off again; no class of Lightning is touched.
"""

from __future__ import annotations

import builtins
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, GradientAccumulationScheduler, Timer
from lightning.pytorch.trainer.connectors.logger_connector.result import _Metadata, _ResultMetric, _Sync
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils._pytree import tree_map_only

from durable_core.data.loader import DurableLoader
from durable_core.errors import UnsupportedError
from durable_core.session.wrappers import Wrappers

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

TESTED_ON = "2.6.6"

#: (path from the trainer, attribute, what for)
USED: tuple[tuple[str, str, str], ...] = (
    ("fit_loop", "run", "let a finished run pass through its last hooks again"),
    ("fit_loop", "on_run_start", "restore a run that ended between two epochs, after every on_train_start"),
    ("fit_loop", "on_advance_end", "the boundary after the last batch, before the epoch's end hooks"),
    ("fit_loop", "on_run_end", "the boundary before on_train_end"),
    ("fit_loop", "_can_stop_early", "will should_stop be obeyed"),
    ("fit_loop", "_combined_loader", "the training loaders"),
    ("fit_loop", "_last_train_dl_reload_epoch", "reload_dataloaders_every_n_epochs after a resume"),
    ("fit_loop", "_restarting", "Lightning's restart mode, ended where the run continues"),
    ("fit_loop", "_loaded_from_state_dict", "same"),
    ("fit_loop", "_resuming_from_checkpoint", "same"),
    ("fit_loop", "reset_restart_stage", "same"),
    ("fit_loop.epoch_loop", "advance", "the boundary: everything done, the next batch not taken"),
    ("fit_loop.epoch_loop", "on_run_start", "restore mid-epoch, after the loop has set itself up"),
    ("fit_loop.epoch_loop", "_num_ready_batches_reached", "was the epoch's last batch taken"),
    ("fit_loop.epoch_loop", "batch_progress", "batches taken, counted in another size after a restart"),
    ("fit_loop.epoch_loop", "_results", "what self.log has accumulated in this epoch"),
    ("fit_loop.epoch_loop", "_batches_that_stepped", "the step that loggers see"),
    ("fit_loop", "_data_source", "the user's loader before Lightning tries to iterate it"),
    ("fit_loop.epoch_loop.val_loop", "_data_source", "same, of what is validated with"),
    ("_data_connector", "_prepare_dataloader", "the user's loader before a DistributedSampler is put in"),
    ("_checkpoint_connector", "resume_start", "give Lightning our state in place of a file"),
    ("_checkpoint_connector", "_loaded_checkpoint", "same"),
    ("_checkpoint_connector", "dump_checkpoint", "Lightning's own checkpoint dict, on every rank"),
    ("_logger_connector", "_callback_metrics", "metrics that schedulers and stoppers read"),
    ("_logger_connector", "_logged_metrics", "same"),
    ("_logger_connector", "_progress_bar_metrics", "same"),
    ("_logger_connector", "_first_loop_iter", "when self.log resets what it accumulates"),
    ("_logger_connector", "_current_fx", "same"),
    ("_signal_connector", "_original_handlers", "SIGTERM stays ignored once the run has drained"),
)

_RESULT_STATE = ("value", "cumulated_batch_size", "_forward_cache", "_computed", "_update_count")
_RESULT_META = (
    "fx", "name", "prog_bar", "logger", "on_step", "on_epoch",
    "enable_graph", "add_dataloader_idx", "dataloader_idx", "metric_attribute",
)  # fmt: skip
_METRICS = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")


def check(trainer: Trainer) -> None:
    """``UnsupportedError`` naming every hook that this Lightning lacks."""
    lacking = [f"{path}.{name} ({why})" for path, name, why in USED if not hasattr(_at(trainer, path), name)]
    if lacking:
        raise UnsupportedError(
            f"Lightning {lightning.__version__} lacks {'; '.join(lacking)}",
            hint=f"this adapter was tested on Lightning {TESTED_ON}",
        )


def _at(trainer: Trainer, path: str) -> Any:
    found: Any = trainer
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


@dataclass(frozen=True)
class Moments:
    """What the adapter does when. ``resume(path)``: the checkpoint dict to load in its place, or None."""

    resume: Callable[[Any], dict[str, Any] | None]
    prepare_loader: Callable[[object], object]
    prepare_evaluation: Callable[[DurableLoader], object]
    before_run: Callable[[], None]
    run_started: Callable[[], None]
    epoch_entered: Callable[[], None]
    boundary: Callable[[], None]
    epoch_batches_done: Callable[[], None]
    before_run_end: Callable[[], None]


@dataclass(frozen=True)
class _Unopened:
    """Lightning begins to iterate what is no ``DataLoader``; a position must be restored before that."""

    loader: DurableLoader

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class Patches(Wrappers):
    """The wrappers on one trainer."""

    def __init__(self, trainer: Trainer, moments: Moments) -> None:
        super().__init__()
        fit_loop: Any = trainer.fit_loop
        epoch_loop: Any = fit_loop.epoch_loop
        self._before(fit_loop, "run", moments.before_run)
        self._after(fit_loop, "on_run_start", moments.run_started)
        self._after(epoch_loop, "on_run_start", moments.epoch_entered)
        self._before(epoch_loop, "advance", moments.boundary)
        self._before(fit_loop, "on_advance_end", moments.epoch_batches_done)
        self._before(fit_loop, "on_run_end", moments.before_run_end)
        self._loaders(trainer, moments.prepare_loader)
        self._sourced(epoch_loop.val_loop._data_source, moments.prepare_evaluation)
        self._resume(trainer, moments.resume)

    def _before(self, owner: Any, name: str, moment: Callable[[], None]) -> None:
        original = getattr(owner, name)

        def wrapper(*args: Any) -> Any:
            moment()
            return original(*args)

        self.set(owner, name, wrapper)

    def _after(self, owner: Any, name: str, moment: Callable[[], None]) -> None:
        original = getattr(owner, name)

        def wrapper(*args: Any) -> None:
            original(*args)
            moment()

        self.set(owner, name, wrapper)

    def _loaders(self, trainer: Trainer, prepare: Callable[[object], object]) -> None:
        connector: Any = trainer._data_connector
        original = connector._prepare_dataloader

        def prepared(dataloader: object, shuffle: bool, mode: RunningStage) -> object:
            if mode == RunningStage.TRAINING:
                return prepare(dataloader.loader if isinstance(dataloader, _Unopened) else dataloader)
            return original(dataloader, shuffle=shuffle, mode=mode)

        self._sourced(trainer.fit_loop._data_source, _Unopened)
        self.set(connector, "_prepare_dataloader", prepared)

    def _sourced(self, source: Any, wrapped: Callable[[DurableLoader], object]) -> None:
        """The user's loaders, alone or in a collection, with every ``DurableLoader`` wrapped."""
        request = source.dataloader

        def requested() -> object:
            found = request()
            if isinstance(found, CombinedLoader):
                found.flattened = [wrap(each) for each in found.flattened]
                return found
            return tree_map_only(DurableLoader, wrapped, found)

        def wrap(each: object) -> object:
            return wrapped(each) if isinstance(each, DurableLoader) else each

        self.set(source, "dataloader", requested)

    def _resume(self, trainer: Trainer, resume: Callable[[Any], dict[str, Any] | None]) -> None:
        connector: Any = trainer._checkpoint_connector
        original = connector.resume_start
        asked = False

        def wrapper(checkpoint_path: Any = None, weights_only: bool | None = None) -> None:
            nonlocal asked
            ours = None if asked else resume(checkpoint_path)  # only the start of the fit is ours
            asked = True
            if ours is None:
                original(checkpoint_path, weights_only=weights_only)
            else:
                connector._loaded_checkpoint = ours

        self.set(connector, "resume_start", wrapper)


def leave_ignored(trainer: Trainer, number: signal.Signals) -> None:
    """Lightning's teardown puts back the handlers that it found: this one is to be ignored from then on."""
    trainer._signal_connector._original_handlers[number] = signal.SIG_IGN


def callbacks(trainer: Trainer) -> list[Callback]:
    found: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # set by Lightning's connector
    return found


def set_callbacks(trainer: Trainer, wanted: list[Callback]) -> None:
    """In a list of their own: Lightning may be going through the one before."""
    trainer.callbacks = wanted  # type: ignore[attr-defined]


# --- reading and setting -------------------------------------------------------------------


def dump(trainer: Trainer) -> dict[str, Any]:
    """Lightning's checkpoint dict; its tensors are the live ones. Runs the save hooks, so on every rank."""
    checkpoint: dict[str, Any] = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
    return checkpoint


def drop_loader_state(checkpoint: dict[str, Any]) -> None:
    """Lightning loads it only into as many stateful loaders, which a script without us does not have."""
    checkpoint["loops"]["fit_loop"]["state_dict"].pop("combined_loader", None)


def fit_is_over(trainer: Trainer) -> bool:
    """Between an epoch's last batch and its end hooks: will ``fit`` end after them, as far as one knows?"""
    loop: Any = trainer.fit_loop
    if 0 <= loop.epoch_loop.max_steps <= trainer.global_step:
        return True
    done = loop.epoch_progress.current.processed + 1  # on_advance_end is about to count this epoch
    if loop.max_epochs is not None and 0 <= loop.max_epochs <= done:
        return True
    enough_epochs = done >= loop.min_epochs if loop.min_epochs else True
    enough_steps = trainer.global_step >= loop.min_steps if loop.min_steps else True
    return trainer.should_stop and enough_epochs and enough_steps


def epoch_is_complete(trainer: Trainer) -> bool:
    """Every batch of the epoch was taken, rather than the epoch cut short by ``max_steps`` or a stop."""
    return trainer.fit_loop.epoch_loop._num_ready_batches_reached()


def logged(trainer: Trainer, names: tuple[str, ...]) -> torch.Tensor | None:
    """The first of ``names`` that the script logs, as of its last step."""
    held = trainer._logger_connector._callback_metrics
    return next((held[name] for name in names if name in held), None)


def logger_step(trainer: Trainer) -> int:
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def limits(trainer: Trainer) -> dict[str, int | None]:
    """``max_steps`` and ``max_epochs``; None is no limit."""
    steps, epochs = trainer.fit_loop.epoch_loop.max_steps, trainer.fit_loop.max_epochs
    return {
        "max_steps": None if steps == -1 else steps,
        "max_epochs": None if epochs in (-1, None) else epochs,
    }


def ends_by_epochs_alone(trainer: Trainer) -> bool:
    """Nothing but the number of epochs was given to end the fit by, and an epoch is all of the data."""
    given = limits(trainer)
    by_time = any(isinstance(item, Timer) for item in callbacks(trainer))
    if by_time or isinstance(trainer.limit_train_batches, int):
        return False
    return given["max_steps"] is None and given["max_epochs"] is not None


def end_restart(trainer: Trainer) -> None:
    """Leave Lightning's restart mode, loops and stages, so that from here on nothing is skipped or repeated.

    Lightning keeps ``restarting`` up for the rest of the iteration, and by it drops the epoch's plateau
    update and runs a step's plateau update twice when validation was due at the restored batch.
    """
    fit_loop = trainer.fit_loop
    epoch_loop = fit_loop.epoch_loop
    for loop in (
        fit_loop,
        epoch_loop,
        epoch_loop.val_loop,
        epoch_loop.automatic_optimization,
        epoch_loop.manual_optimization,
    ):
        loop._restarting = False
        loop._loaded_from_state_dict = False
        loop._resuming_from_checkpoint = False
        loop.reset_restart_stage()


def accumulation(trainer: Trainer) -> int | None:
    """Batches of an optimizer step; None where they change by epoch."""
    by_epoch = any(isinstance(item, GradientAccumulationScheduler) for item in callbacks(trainer))
    return None if by_epoch else trainer.accumulate_grad_batches


def recount_batches(trainer: Trainer, was: int, now: int) -> None:
    """Batches had ``was`` samples and have ``now``: Lightning's counts of those taken, in the new size.

    After an epoch's last batch it is all of its batches, whatever is left over in the last one.
    """
    progress: Any = trainer.fit_loop.epoch_loop.batch_progress
    total, current = progress.total.ready, progress.current.ready
    here = int(min(-(-current * was // now), trainer.num_training_batches))
    before = -(-(total - current) * was // now)
    for counts, value in ((progress.total, before + here), (progress.current, here)):
        counts.ready = counts.started = counts.processed = counts.completed = value


def metrics(trainer: Trainer) -> dict[str, Any]:
    """What the logger connector holds between two batches."""
    connector = trainer._logger_connector
    held: dict[str, Any] = {name: dict(getattr(connector, name)) for name in _METRICS}
    return held | {"_first_loop_iter": connector._first_loop_iter, "_current_fx": connector._current_fx}


def set_metrics(trainer: Trainer, held: dict[str, Any]) -> None:
    for name, value in held.items():
        setattr(trainer._logger_connector, name, dict(value) if name in _METRICS else value)


def results(trainer: Trainer) -> dict[str, dict[str, Any]]:
    """What ``self.log`` has accumulated in the running epoch, by its key."""
    held = trainer.fit_loop.epoch_loop._results.items()
    return {
        key: _described(metric)
        for key, metric in held
        if not metric.has_reset and metric.meta.sync.group is None
    }


def _described(metric: Any) -> dict[str, Any]:
    meta, reduce = metric.meta, metric.meta.reduce_fx
    names = (
        _RESULT_STATE if metric.is_tensor else _RESULT_STATE[1:]
    )  # a torchmetric is captured where it lives
    return {
        "meta": {name: getattr(meta, name) for name in _RESULT_META},
        "reduce": (reduce.__module__ == builtins.__name__, reduce.__name__),
        "sync": (meta.sync.should, meta.sync.rank_zero_only),
        "tensor": metric.is_tensor,
        "state": {name: getattr(metric, name) for name in names if hasattr(metric, name)},
    }


def set_results(trainer: Trainer, held: dict[str, dict[str, Any]]) -> None:
    for key, described in held.items():
        builtin, name = described["reduce"]
        meta = _Metadata(**described["meta"], reduce_fx=getattr(builtins if builtin else torch, name))
        should, rank_zero_only = described["sync"]
        meta.sync = _Sync(fn=trainer.strategy.reduce, _should=should, rank_zero_only=rank_zero_only)
        metric = _ResultMetric(meta, described["tensor"])
        for field, value in described["state"].items():
            setattr(metric, field, value)
        if not described["tensor"]:
            if meta.metric_attribute is None:
                continue
            metric.value = trainer.lightning_module.get_submodule(meta.metric_attribute)
        trainer.fit_loop.epoch_loop._results[key] = metric.to(trainer.strategy.root_device)


def publish(trainer: Trainer, values: dict[str, torch.Tensor]) -> None:
    """Show ``values`` in ``trainer.callback_metrics`` without the recomputation that reading it starts."""
    trainer._logger_connector._callback_metrics.update(values)
