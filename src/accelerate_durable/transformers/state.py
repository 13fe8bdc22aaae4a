"""What of a Trainer is state beside model, optimizer and scheduler; and how it is put back."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers.trainer_callback import ExportableState

from accelerate_durable.transformers import hooks
from durable_core.clock import Clock

if TYPE_CHECKING:
    from transformers import Trainer

Tree = dict[str, Any]

#: What differs between the replicas and is only reported: the first one's, when their number changes.
FROM_FIRST = ("trainer/*", "callbacks/*")


class Progress:
    """The loop's counts, flags and running sums, and the seconds that training took so far."""

    def __init__(self, trainer: Trainer, clock: Clock) -> None:
        self._trainer: Any = trainer
        self._clock = clock
        self._before, self._since = 0.0, clock.monotonic()

    @property
    def seconds(self) -> float:
        """Of training, in this process and those before it."""
        return self._before + self._clock.monotonic() - self._since

    def state_dict(self) -> Tree:
        trainer = self._trainer
        return {
            "state": {name: getattr(trainer.state, name) for name in hooks.PROGRESS},
            "control": dict(vars(trainer.control)),
            "max_steps": trainer.state.max_steps,
            "sums": {name: getattr(trainer, name, begun) for name, begun in hooks.SUMS},
            "loss": float(getattr(trainer, hooks.LOSS, 0.0)),
            "trl": {name: _plain(getattr(trainer, name)) for name in self._of_trl()},
            "seconds": self.seconds,
        }

    def load_state_dict(self, state: Tree) -> None:
        trainer = self._trainer
        for name, value in state["state"].items():
            setattr(trainer.state, name, value)
        best = trainer.state.best_model_checkpoint
        if best is not None and not Path(best).is_dir():  # as the Trainer does
            warnings.warn(f"durable: {best} held the best model and is gone", stacklevel=2)
            trainer.state.best_model_checkpoint = None
        for name, value in state["control"].items():
            setattr(trainer.control, name, value)
        if trainer.state.global_step == state["max_steps"] < trainer.state.max_steps:
            trainer.control.should_training_stop = False  # it had reached its goal, which is another now
        for name, value in state["sums"].items():
            setattr(trainer, name, value)
        setattr(trainer, hooks.LOSS, torch.tensor(state["loss"], device=trainer.args.device))
        for name in self._of_trl():
            if name in state["trl"]:
                _refill(trainer, name, state["trl"][name])
        self._before, self._since = state["seconds"], self._clock.monotonic()

    def _of_trl(self) -> Iterator[str]:
        return (name for name, _ in hooks.TRL if hasattr(self._trainer, name))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _refill(trainer: Any, name: str, value: Any) -> None:
    """TRL sums up in dicts that make their entries themselves: those stay the same objects."""
    live = getattr(trainer, name)
    if not isinstance(live, dict):
        setattr(trainer, name, value)
        return
    for key, inner in live.items():
        if isinstance(inner, dict):
            inner.clear()
            inner.update(value.get(key, {}))


class Callbacks:
    """The state of every callback that says what it is (``ExportableState``)."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer: Any = trainer

    def _live(self) -> Iterator[tuple[str, Any]]:
        counted: Counter[str] = Counter()
        for callback in self._trainer.callback_handler.callbacks:
            if isinstance(callback, ExportableState):
                name = type(callback).__qualname__
                yield f"{name}.{counted[name]}", callback
                counted[name] += 1

    def state_dict(self) -> Tree:
        return {name: dict(callback.state()) for name, callback in self._live()}

    def load_state_dict(self, state: Tree) -> None:
        live = dict(self._live())
        for name in sorted(live.keys() ^ state.keys()):
            where = "the checkpoint" if name in state else "this script"
            warnings.warn(f"durable: only {where} has the callback {name}: not restored", stacklevel=2)
        for name in live.keys() & state.keys():
            self._restore(name, live[name], state[name])

    @staticmethod
    def _restore(name: str, callback: Any, state: Tree) -> None:
        given = callback.state().get("args", {})
        for argument, value in state.get("args", {}).items():
            if argument in given and given[argument] != value:
                warnings.warn(
                    f"durable: {name}: the run's {argument}={value!r} is used, not {given[argument]!r}",
                    stacklevel=2,
                )
                setattr(callback, argument, value)
        for attribute, value in state.get("attributes", {}).items():
            setattr(callback, attribute, value)
