"""A callback that was not attached: what it sees of a Trainer, it keeps; the loop stays the Trainer's own.

The order of data is the Trainer's, a function of its seed and the epoch. What was drawn for augmentation or
dropout in the steps before a restart is not drawn again alike, and sums behind the logs begin anew: a run
like this promises ``exact-order`` and no more. What it could not keep at all is refused.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from transformers.trainer_callback import TrainerControl

from accelerate_durable.description import Description
from accelerate_durable.options import DurableOptions
from accelerate_durable.transformers import ending, guard, hooks, spec
from accelerate_durable.transformers.state import FROM_FIRST
from durable_core.errors import PromiseError, UnsupportedError, UsageError
from durable_core.session.plain import DurableSession
from durable_core.session.world import World
from durable_core.types import Promise

_ATTACH = "DurableTrainerCallback(root).attach(trainer) keeps it"

#: (does it apply, what it is, the way out), of training arguments
OF_ARGUMENTS: guard.Rows = (
    *guard.OF_ARGUMENTS,
    (
        lambda args: args.load_best_model_at_end,
        "load_best_model_at_end has put the best model in place when a callback hears of the end",
        _ATTACH,
    ),
    (lambda args: args.fp16, "the gradient scaler is out of a callback's reach", _ATTACH),
)


class Loop:
    """The Trainer's own record of where it is; it reads it itself, from a directory made for it."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        told = {field.name: getattr(self._state, field.name) for field in dataclasses.fields(self._state)}
        return {"state": {name: value for name, value in told.items() if name != "stateful_callbacks"}}

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Before anything is touched."""
        was, now = state["state"]["global_step"], self._state.global_step
        if was != now:
            raise UsageError(
                f"the run is at step {was}, and the Trainer begins at step {now}: give train() "
                "resume_from_checkpoint=last_checkpoint(root), or attach the callback"
            )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in hooks.PROGRESS:
            setattr(self._state, name, state["state"][name])


class Alone:
    """One ``train`` with such a callback. ``objects``: what the Trainer tells its callbacks of.

    Raises as ``DurableSession.open``, ``UnsupportedError`` for what cannot be kept, ``PromiseError`` for a
    promise that cannot.
    """

    def __init__(self, options: DurableOptions, args: Any, state: Any, objects: dict[str, Any]) -> None:
        options = checked(options, args, state)
        world, seed, model = World.torch_distributed(), spec.seed_of(args), objects["model"]
        derived = spec.derive(model, args, options, world, seed=seed, max_steps=state.max_steps)
        self._state = state
        self._asked = False
        self.session = DurableSession.open(
            options.home(),
            state={
                "model": model,
                "optimizer": objects["optimizer"],
                "scheduler": objects["lr_scheduler"],
                "trainer": Loop(state),
                "hf": Description(model),
            },
            from_first=FROM_FIRST,
            world=world,
            **{**options.session(), "spec": options.spec or derived},
        )
        self._seen = state.global_step
        if self.session.run.seed != seed:
            self.session.close()
            raise UsageError(
                f"the run's order of data comes from seed {self.session.run.seed}, the Trainer's from {seed}",
                hint=f"seed={self.session.run.seed}; an attached callback sees to it",
            )

    def note_saved(self) -> None:
        self._asked = True

    def boundary(self) -> None:
        """At the start of a step, when what the last one was the occasion of is done."""
        if self._state.global_step == self._seen:
            return
        self._seen = self._state.global_step
        staged = self.session.step()
        if self._asked:
            self._asked = False
            ending.durable(self.session, staged=staged)

    def end(self) -> None:
        self.boundary()
        ending.finished(self.session)
        self.session.close()


def checked(options: DurableOptions, args: Any, state: Any) -> DurableOptions:
    """The options with the promise that is kept. Raises as ``Alone``."""
    guard.refuse(OF_ARGUMENTS, args)
    others = sorted(set(state.stateful_callbacks) - {TrainerControl.__name__})
    if others:
        raise UnsupportedError(
            f"the state of other callbacks ({', '.join(others)}) is out of a callback's reach", hint=_ATTACH
        )
    asked = options.settings().promise if options.promise is not None else Promise.EXACT_ORDER
    if not Promise.EXACT_ORDER.implies(asked):
        raise PromiseError(
            f"a callback that is not attached keeps {Promise.EXACT_ORDER.value!r} at most, and "
            f"{asked.value!r} is asked for",
            hint=_ATTACH,
        )
    return dataclasses.replace(options, promise=asked)
