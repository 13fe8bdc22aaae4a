"""Ours in place of ``accelerate.Accelerator``, for a script that knows nothing of it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import accelerate

from accelerate_durable.accelerator import Accelerator as Durable
from accelerate_durable.loader import PreparedLoader
from durable_core.errors import UnsupportedError
from durable_core.session import notices

#: Those that a script under zero code has made, in order.
made: list[Durable] = []


class Accelerator(Durable):
    """``accelerate.Accelerator`` as a script under zero code finds it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse_trainer(sys._getframe(1).f_globals.get("__name__", ""))
        super().__init__(*args, **kwargs)
        self.durable.unaware = True
        made.append(self)


def _refuse_trainer(maker: str) -> None:
    """A ``transformers.Trainer`` makes its accelerator itself, saves by itself, and keeps in its own loop
    what only it can restore."""
    if maker.partition(".")[0] == "transformers":
        raise UnsupportedError(
            f"{maker} keeps its own loop, which nothing outside it can restore",
            hint="start the script without -m accelerate_durable, and give the Trainer "
            "accelerate_durable.transformers.DurableTrainerCallback(root)",
        )


def install() -> None:
    """From now on the name means ours, in every module that has it already and in whatever imports it."""
    own = __name__.partition(".")[0]
    others = [module for name, module in sys.modules.items() if name.partition(".")[0] != own]
    replace(accelerate.Accelerator, Accelerator, others)
    replace(accelerate.skip_first_batches, skip_first_batches, others)


#: Accelerate's, for loaders that are not ours.
_skip = accelerate.skip_first_batches


def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
    """The function means what the method does: a loader that trains begins where the run stands."""
    if isinstance(dataloader, PreparedLoader):
        return dataloader.accelerator.skip_first_batches(dataloader, num_batches)
    return _skip(dataloader, num_batches)


def replace(theirs: object, ours: object, modules: Iterable[Any]) -> None:
    """Every attribute of ``modules`` that is ``theirs`` becomes ``ours``."""
    for module in modules:
        if not isinstance(module, ModuleType):  # anything can stand in sys.modules
            continue
        for name, value in list(vars(module).items()):
            if value is theirs:
                setattr(module, name, ours)


def finish() -> None:
    """The script has come to its end: so have its runs."""
    for accelerator in made:
        accelerator.durable.finish()
    if not any(accelerator.durable.session for accelerator in made):
        notices.say("nothing was made durable: no accelerate.Accelerator of this process trained anything")
