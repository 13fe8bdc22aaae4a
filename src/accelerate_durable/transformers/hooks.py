"""Every private or half-private part of transformers that this adapter leans on, and nothing else does.

Tested on transformers 5.24. ``USED`` lists each one with its purpose; ``check`` refuses, by name, a Trainer
that lacks one; ``tests/transformers/test_trainer_hooks.py`` says what an upgrade broke. Wrappers are set on
*instances* (this trainer and its accelerator) and taken off again when ``train`` is left. One name is
exchanged in the module of the Trainer, for as long: ``skip_first_batches``, which has no other seam.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import transformers
import transformers.trainer
from torch.utils.data import DataLoader

from durable_core.data import DurableLoader
from durable_core.errors import UnsupportedError
from durable_core.session.wrappers import Wrappers

if TYPE_CHECKING:
    from transformers import Trainer

TESTED_ON = "5.24"

#: (attribute of a Trainer, what for)
USED: tuple[tuple[str, str], ...] = (
    ("train", "the run begins and ends with it"),
    ("get_train_dataloader", "the training loader"),
    ("_init_training_state", "where the loop begins"),
    ("_prepare_for_training", "model, optimizer and scheduler, made before the loop's beginning is settled"),
    ("_run_epoch", "the boundary between two passes; the first pass of a restored run begins in its middle"),
    ("_load_rng_state", "random streams of a foreign checkpoint are loaded before the run's first state"),
    ("_finalize_training", "the boundary after the last pass, before the best model is loaded"),
    ("callback_handler", "callbacks with a state of their own"),
    ("current_flos", "operations counted and not yet reported"),
)
#: (function of a Trainer, an argument that is read or set, what for)
ARGUMENTS: tuple[tuple[str, str, str], ...] = (
    ("_init_training_state", "max_steps", "the goal of the run"),
    ("_init_training_state", "resume_from_checkpoint", "a foreign checkpoint to start from"),
    ("train", "resume_from_checkpoint", "a foreign checkpoint to start from"),
    ("train", "trial", "a search for hyperparameters is refused"),
    ("_run_epoch", "resume_from_checkpoint", "makes the pass begin in its middle"),
    ("_run_epoch", "start_time", "speeds are those of the run"),
    ("_finalize_training", "start_time", "same"),
)
#: (attribute that ``train`` sets, what a run that has not begun has) - the Trainer's running sums
SUMS: tuple[tuple[str, Any], ...] = (
    ("_total_loss_scalar", 0.0),
    ("_globalstep_last_logged", 0),
    ("_initial_global_step", 0),
    ("_initial_num_input_tokens_seen", 0),
    ("current_flos", 0),
)
#: The loss summed up since the last log: a tensor on the device of training.
LOSS = "_tr_loss"
#: (attribute, what for) of TRL's trainers, where they have it: what they sum up between two logs.
TRL: tuple[tuple[str, str], ...] = (
    ("_metrics", "means of metrics since the last log"),
    ("_total_train_tokens", "tokens seen"),
)
#: Fields of ``TrainerState`` that training changes; the others are this process's own arguments.
PROGRESS = (
    "epoch", "global_step", "num_input_tokens_seen", "total_flos", "log_history", "best_metric",
    "best_global_step", "best_model_checkpoint",
)  # fmt: skip
#: Where the Trainer looks the name up.
MODULE, SKIP = transformers.trainer, "skip_first_batches"
#: Given for the directory of a checkpoint, where the Trainer asks only whether it has one.
RESTORED = ""


def check(trainer: Trainer) -> None:
    """``UnsupportedError`` naming every part that this Trainer lacks."""
    lacking = [f"{name} ({why})" for name, why in USED if not hasattr(trainer, name)]
    for function, argument, why in ARGUMENTS:
        found = getattr(trainer, function, None)
        if found is not None and argument not in inspect.signature(found).parameters:
            lacking.append(f"{function}({argument}) ({why})")
    lacking += [f"TrainerState.{name}" for name in PROGRESS if not hasattr(trainer.state, name)]
    lacking += [] if hasattr(MODULE, SKIP) else [f"trainer.{SKIP}"]
    if lacking:
        raise UnsupportedError(
            f"the Trainer of transformers {transformers.__version__} lacks {'; '.join(lacking)}",
            hint=f"this adapter was tested on transformers {TESTED_ON}",
        )


def wrap_train(trainer: Trainer, around: Callable[..., Any]) -> None:
    """For good: ``around(original, resume_from_checkpoint, trial, the other arguments by name)``."""
    original = trainer.train
    signature = inspect.signature(original)

    def train(*args: Any, **named: Any) -> Any:
        given = signature.bind(*args, **named)
        given.apply_defaults()
        more = dict(given.arguments)
        return around(original, more.pop("resume_from_checkpoint"), more.pop("trial"), more)

    trainer.__dict__["train"] = train


@dataclass(frozen=True)
class Moments:
    """What the adapter does when, during one ``train``.

    ``loader(made)``: what the Trainer iterates in place of the loader that it made. ``begin(max_steps, at)``:
    all objects exist, and the Trainer would begin at batch ``at[1]`` of epoch ``at[0]``; returns where it
    does. ``is_restored``: it begins in the middle of a run of ours. ``before_pass``: False passes over it.
    ``began(start_time)``: seconds since the epoch, that time or the one that the run would have begun at.
    """

    loader: Callable[[Any], Any]
    begin: Callable[[int, tuple[int, int]], tuple[int, int]]
    is_restored: Callable[[], bool]
    before_pass: Callable[[], bool]
    before_end: Callable[[], None]
    began: Callable[[float], float]


class Patches(Wrappers):
    """The wrappers of one ``train``."""

    def __init__(self, trainer: Trainer, moments: Moments) -> None:
        super().__init__()
        self._trainer: Any = trainer
        self._moments = moments
        self._loader: Any = None
        self._prepared: Any = None
        self._get_loader()
        self._skip()
        self._begin()
        self._passes()

    def _get_loader(self) -> None:
        """As the Trainer (or a subclass) makes it, short of what accelerate would make of it."""
        trainer, original = self._trainer, self._trainer.get_train_dataloader

        def get_train_dataloader() -> Any:
            with _unprepared(trainer.accelerator):
                made = original()
            self._loader = self._moments.loader(made)
            return self._loader

        self.set(trainer, "get_train_dataloader", get_train_dataloader)

    def _skip(self) -> None:
        """Our loader stands where the loop begins; no batch of it is to be fetched and thrown away."""
        original = getattr(MODULE, SKIP)

        def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
            return dataloader if dataloader is self._loader else original(dataloader, num_batches)

        self.set(MODULE, SKIP, skip_first_batches)

    def _begin(self) -> None:
        """The Trainer settles where its loop begins before it makes the objects whose state says so: they are
        made first here, and handed out when their time comes."""
        trainer = self._trainer
        settle, prepare, streams = (
            trainer._init_training_state, trainer._prepare_for_training, trainer._load_rng_state,
        )  # fmt: skip
        signature = inspect.signature(settle)

        def init_training_state(*args: Any, **named: Any) -> Any:
            given = signature.bind(*args, **named).arguments
            foreign = given["resume_from_checkpoint"]
            at = settle(*args, **named)
            self._prepared = prepare(given["max_steps"], self._loader, foreign)
            streams(foreign)
            return self._moments.begin(given["max_steps"], at)

        def prepare_for_training(*args: Any, **named: Any) -> Any:
            prepared, self._prepared = self._prepared, None
            return prepared

        self.set(trainer, "_init_training_state", init_training_state)
        self.set(trainer, "_prepare_for_training", prepare_for_training)
        self.set(trainer, "_load_rng_state", lambda checkpoint: None)

    def _passes(self) -> None:
        trainer, moments = self._trainer, self._moments
        run, finalize = trainer._run_epoch, trainer._finalize_training
        of_run, of_end = inspect.signature(run), inspect.signature(finalize)

        def run_epoch(*args: Any, **named: Any) -> None:
            if not moments.before_pass():
                return
            given = of_run.bind(*args, **named)
            if moments.is_restored():
                given.arguments["resume_from_checkpoint"] = RESTORED
            given.arguments["start_time"] = moments.began(given.arguments["start_time"])
            run(*given.args, **given.kwargs)

        def finalize_training(*args: Any, **named: Any) -> Any:
            moments.before_end()
            given = of_end.bind(*args, **named)
            given.arguments["start_time"] = moments.began(given.arguments["start_time"])
            return finalize(*given.args, **given.kwargs)

        self.set(trainer, "_run_epoch", run_epoch)
        self.set(trainer, "_finalize_training", finalize_training)


@contextlib.contextmanager
def _unprepared(accelerator: Any) -> Iterator[None]:
    """Loaders given to ``prepare`` come back as they are."""
    prepare, before = accelerator.prepare, accelerator.__dict__.get("prepare")

    def left_alone(*objects: Any, **named: Any) -> Any:
        alone = len(objects) == 1 and isinstance(objects[0], (DataLoader, DurableLoader))
        return objects[0] if alone else prepare(*objects, **named)

    accelerator.prepare = left_alone
    try:
        yield
    finally:
        del accelerator.prepare
        if before is not None:
            accelerator.prepare = before
