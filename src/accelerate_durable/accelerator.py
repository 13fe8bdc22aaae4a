"""``Accelerator``: Accelerate's, whose training survives ``kill -9`` at any instant as the same run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import accelerate
import torch

from accelerate_durable import hooks
from accelerate_durable.durable import Durable
from accelerate_durable.loader import PreparedDurable, prepared
from accelerate_durable.options import DurableOptions
from durable_core.data import DurableLoader
from durable_core.errors import UnsupportedError, UsageError


class DurableMixin:
    """What a durable accelerator does otherwise than ``accelerate.Accelerator``, the next class in line."""

    durable: Durable

    # --- what is prepared ---------------------------------------------------------------------

    def prepare(self, *args: Any, device_placement: list[bool] | None = None) -> Any:
        places: list[Any] = device_placement or [None for _ in args]
        ready = (
            self.prepare_data_loader(item, device_placement=place)
            if isinstance(item, DurableLoader)
            else item
            for item, place in zip(args, places, strict=False)
        )
        return super().prepare(*ready, device_placement=device_placement)  # type: ignore[misc]

    def prepare_data_loader(
        self, data_loader: Any, device_placement: bool | None = None, slice_fn_for_dispatch: Any = None
    ) -> Any:
        known = getattr(data_loader, "_is_accelerate_prepared", False)
        if isinstance(data_loader, DurableLoader):
            loader = self._prepared_durable(data_loader)
        else:
            loader = super().prepare_data_loader(data_loader, device_placement, slice_fn_for_dispatch)  # type: ignore[misc]
        if known:
            return loader
        place = self.device_placement if device_placement is None else device_placement  # type: ignore[attr-defined]
        return self._adopted(loader, place)

    def _prepared_durable(self, loader: DurableLoader) -> PreparedDurable:
        ours = PreparedDurable(loader, drop_last=loader.drop_last, non_blocking=self.non_blocking)  # type: ignore[attr-defined]
        hooks.add_loader(self, ours)
        return ours

    def _adopted(self, loader: Any, placed: bool) -> Any:
        device: torch.device | None = self.device if placed else None  # type: ignore[attr-defined]
        if isinstance(loader, PreparedDurable):
            loader.bind(self.durable, device)
        else:
            loader = prepared(loader, self.durable, device)
        self.durable.add_loader(loader)
        loader._is_accelerate_prepared = True
        return loader

    def prepare_model(
        self, model: torch.nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> Any:
        if not evaluation_mode:
            self.durable.check_unopened("a model was prepared")
        called = super().prepare_model(model, device_placement, evaluation_mode)  # type: ignore[misc]
        self.durable.add_model(called)
        return called

    def prepare_optimizer(self, optimizer: Any, device_placement: bool | None = None) -> Any:
        self.durable.check_unopened("an optimizer was prepared")
        ready = super().prepare_optimizer(optimizer, device_placement)  # type: ignore[misc]
        self.durable.add_optimizer(optimizer)
        return ready

    def prepare_scheduler(self, scheduler: Any) -> Any:
        self.durable.check_unopened("a scheduler was prepared")
        return super().prepare_scheduler(scheduler)  # type: ignore[misc]

    def register_for_checkpointing(self, *objects: Any) -> None:
        self.durable.check_unopened("an object was registered")
        super().register_for_checkpointing(*objects)  # type: ignore[misc]

    # --- training -----------------------------------------------------------------------------

    def backward(self, loss: Any, **kwargs: Any) -> None:
        self.durable.computing(loss)
        super().backward(loss, **kwargs)  # type: ignore[misc]

    def commit(self, wait: bool = False) -> bool:
        """An optimizer step and all that belongs to it is done: make it durable, if the cadence says so.

        Not needed: it is found before each batch. From the first call on it counts alone, for steps that have
        several batches or none; call it once before the loop, so that no other boundary comes before it.
        ``wait``: save in any case, and until that is durable. ``True`` when it was saved. Raises as
        ``DurableSession.step``; ``Drained`` (a ``SystemExit`` of 75) after SIGTERM.
        """
        return self.durable.commit(wait)

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        if not self.durable.trains(dataloader):
            return super().skip_first_batches(dataloader, num_batches)  # type: ignore[misc]
        self.durable.skip(num_batches)
        return dataloader

    # --- checkpoints --------------------------------------------------------------------------

    def save_state(self, output_dir: Any = None, safe_serialization: bool = True, **kwargs: Any) -> Path:
        return self.durable.states.save(output_dir, safe_serialization=safe_serialization, **kwargs)

    def load_state(self, input_dir: Any = None, load_kwargs: Any = None, **kwargs: Any) -> None:
        self.durable.asked = True
        self.durable.states.load(input_dir, load_kwargs=load_kwargs, **kwargs)

    # --- ending -------------------------------------------------------------------------------

    def free_memory(self, *objects: Any) -> Any:
        self.durable.reset()
        return super().free_memory(*objects)  # type: ignore[misc]

    def end_training(self) -> None:
        self.durable.finish()
        super().end_training()  # type: ignore[misc]


class Accelerator(DurableMixin, accelerate.Accelerator):  # type: ignore[misc]  # it has no types
    """``accelerate.Accelerator``, with the same arguments and one more.

    ``durable``: where the run lives, or all its ``DurableOptions``. Without it they come from the environment
    and ``durable.yaml`` (see ``DurableOptions.gather``), and the run lives below ``project_dir``.

    Raises ``UnsupportedError`` for FSDP, DeepSpeed and other ways that spread a model over processes.
    """

    def __init__(
        self, *args: Any, durable: DurableOptions | str | os.PathLike[str] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.durable = Durable(self, _options(durable))


def attach(
    accelerator: accelerate.Accelerator, root: str | os.PathLike[str] | None = None, **options: Any
) -> accelerate.Accelerator:
    """Make an accelerator that exists durable, in place, and return it.

    ``root`` and ``options``: those of ``DurableOptions``. What it has prepared already is taken over: the
    script may go on with the objects it has. Raises as ``Accelerator``, and ``UsageError`` for one that is
    durable already.
    """
    if isinstance(accelerator, DurableMixin):
        raise UsageError(
            "this accelerator is durable already", hint="attach() once, or use Accelerator(durable=...)"
        )
    given = options if root is None else {"root": root, **options}
    durable = Durable(accelerator, DurableOptions.gather(**given))
    if hooks.models(accelerator) and accelerator.num_processes > 2:
        raise UnsupportedError(
            "attach() after prepare(): DDP's gradient buckets can no longer be laid out alike in every life",
            hint="attach(accelerator, ...) before accelerator.prepare(...)",
        )
    kind = type(accelerator)
    ours = Accelerator if kind is accelerate.Accelerator else type(kind.__name__, (DurableMixin, kind), {})
    accelerator.__class__ = ours
    accelerator.durable = durable
    for loader in hooks.loaders(accelerator):
        accelerator._adopted(loader, accelerator.device_placement)
    return accelerator


def _options(given: DurableOptions | str | os.PathLike[str] | None) -> DurableOptions:
    if isinstance(given, DurableOptions):
        return given
    return DurableOptions.gather() if given is None else DurableOptions.gather(root=given)
