"""Every private or half-private part of Accelerate that this adapter leans on, and nothing else does.

Tested on Accelerate 1.15.0. ``USED`` lists each one with its purpose; ``check`` refuses, by name, an
Accelerate that lacks one; ``tests/accelerate/test_adapter_hooks.py`` says what an upgrade broke.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import accelerate
from accelerate.data_loader import (
    BatchSamplerShard,
    DataLoaderAdapter,
    DataLoaderDispatcher,
    DataLoaderShard,
    DataLoaderStateMixin,
    IterableDatasetShard,
    SeedableRandomSampler,
)
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from durable_core.errors import UnsupportedError

TESTED_ON = "1.15.0"

#: (attribute, what for), of an accelerator.
USED: tuple[tuple[str, str], ...] = (
    ("_models", "the modules that were prepared, in order"),
    ("_optimizers", "same, of optimizers"),
    ("_schedulers", "same, of schedulers"),
    ("_dataloaders", "same, of loaders"),
    ("_custom_objects", "what register_for_checkpointing was given"),
    ("scaler", "the gradient scaler"),
    ("step", "batches since the last update, as accumulate() counts them"),
    ("_save_model_state_pre_hook", "what register_save_state_pre_hook was given"),
    ("_load_model_state_pre_hook", "what register_load_state_pre_hook was given"),
)

#: The same of classes.
USED_OF_CLASSES: tuple[tuple[type, str, str], ...] = (
    (DataLoaderAdapter, "__getattr__", "what a prepared loader does not answer, torch's own answers"),
    (DataLoaderStateMixin, "begin", "tell gradient_state which loader is iterated"),
    (DataLoaderStateMixin, "end", "same, that it no longer is"),
    (DataLoaderShard, "total_batch_size", "what gather_for_metrics cuts off at the end"),
    (DataLoaderDispatcher, "total_batch_size", "same"),
    (AcceleratedOptimizer, "step_was_skipped", "an update that a scaler left out"),
)


def check(accelerator: accelerate.Accelerator) -> None:
    """``UnsupportedError`` naming everything that this Accelerate lacks."""
    lacking = [f"Accelerator.{name} ({why})" for name, why in USED if not hasattr(accelerator, name)]
    lacking += [
        f"{kind.__name__}.{name} ({why})" for kind, name, why in USED_OF_CLASSES if not hasattr(kind, name)
    ]
    if lacking:
        raise UnsupportedError(
            f"Accelerate {accelerate.__version__} lacks {'; '.join(lacking)}",
            hint=f"this adapter was tested on Accelerate {TESTED_ON}",
        )


# --- what was prepared --------------------------------------------------------------------------


def models(accelerator: Any) -> list[nn.Module]:
    return list(accelerator._models)


def optimizers(accelerator: Any) -> list[Optimizer]:
    """Torch's own: Accelerate's around them has no hooks."""
    return [getattr(item, "optimizer", item) for item in accelerator._optimizers]


def schedulers(accelerator: Any) -> list[Any]:
    return [
        item.scheduler if isinstance(item, AcceleratedScheduler) else item for item in accelerator._schedulers
    ]


def registered(accelerator: Any) -> list[Any]:
    return list(accelerator._custom_objects)


def loaders(accelerator: Any) -> list[Any]:
    return list(accelerator._dataloaders)


def add_loader(accelerator: Any, loader: object) -> None:
    accelerator._dataloaders.append(loader)


def watch_skipped(accelerator: Any, skipped: Callable[[], None]) -> None:
    """``skipped`` is called when a scaler has met an overflow, so that an update was due and left out."""
    for optimizer in accelerator._optimizers:
        if getattr(optimizer, "scaler", None) is not None:
            _after_step(optimizer, skipped)


def _after_step(optimizer: Any, skipped: Callable[[], None]) -> None:
    step = optimizer.step

    def stepped(closure: Any = None) -> None:
        step(closure)
        if optimizer.gradient_state.sync_gradients and optimizer.step_was_skipped:
            skipped()

    optimizer.step = stepped


# --- loaders ------------------------------------------------------------------------------------


def become(loader: Any, kind: type) -> None:
    """Make ``loader`` an instance of ``kind``, in place: the script holds it already."""
    object.__dict__["__class__"].__set__(
        loader, kind
    )  # a DataLoaderAdapter says that it is torch's DataLoader


def asked(loader: Any) -> DataLoader[Any]:
    """The plain torch ``DataLoader`` that a prepared one was made of, without what Accelerate put into it."""
    base: Any = loader.base_dataloader
    arguments = {name: getattr(base, name) for name in _KEPT if hasattr(base, name)}
    dataset = base.dataset
    if isinstance(dataset, IterableDatasetShard):  # of a size that is the script's, if base has another
        base = dataset
        dataset = dataset.dataset
    if isinstance(dataset, IterableDataset):
        return DataLoader(dataset, batch_size=base.batch_size, drop_last=base.drop_last, **arguments)
    if base.batch_sampler is None:
        return DataLoader(dataset, batch_size=None, sampler=_plain(base.sampler), **arguments)
    return DataLoader(dataset, batch_sampler=_plain(base.batch_sampler), **arguments)


_KEPT = (
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context",
    "prefetch_factor", "persistent_workers", "in_order",
)  # fmt: skip


def _plain(sampler: Any) -> Any:
    """The user's own sampler, or batch sampler, below what Accelerate wraps or replaces it by."""
    if isinstance(sampler, BatchSamplerShard):
        return _plain(sampler.batch_sampler)
    if type(sampler) is BatchSampler:
        return BatchSampler(_plain(sampler.sampler), sampler.batch_size, sampler.drop_last)
    if type(sampler) is SeedableRandomSampler:
        samples = sampler._num_samples
        return RandomSampler(sampler.data_source, replacement=sampler.replacement, num_samples=samples)
    return sampler


def even_batches(loader: Any, default: bool) -> bool:
    """Whether the processes are to have as many batches each; ``join_uneven_inputs`` may change it."""
    return bool(getattr(getattr(loader, "batch_sampler", None), "even_batches", default))


# --- save_state and load_state --------------------------------------------------------------------


def save_hooks(accelerator: Any) -> list[Any]:
    """What ``register_save_state_pre_hook`` was given, in order."""
    return list(accelerator._save_model_state_pre_hook.values())


def load_hooks(accelerator: Any) -> list[Any]:
    """Same, of ``register_load_state_pre_hook``."""
    return list(accelerator._load_model_state_pre_hook.values())
