"""``resume_from_checkpoint``: what it means beside a run that has a history of its own."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

from accelerate_durable.transformers import folders
from durable_core.engine.inspect import open_run
from durable_core.errors import RunNotFoundError, UsageError
from durable_core.session.world import World

if TYPE_CHECKING:
    from transformers import Trainer


def start(trainer: Trainer, asked: str | os.PathLike[str] | bool | None, root: str) -> str | None:
    """The Trainer's own checkpoint to begin with, on every rank the same; ``None``: none.

    A run with a history goes on with it, whatever is asked: a restart gives the arguments of the first start.
    Without one, ``True`` is the newest directory in ``output_dir`` that is complete, if there is any, and one
    that is named has to be complete: ``UsageError`` says what it lacks.
    """
    if not asked:
        return None
    found: str | None = World.torch_distributed().decide(lambda: _start(trainer, asked, root))
    return found


def _start(trainer: Any, asked: Any, root: str) -> str | None:
    if _has_history(root):
        if asked is not True:
            warnings.warn(
                f"durable: the run at {root} goes on with its own newest checkpoint, not with {asked}",
                stacklevel=2,
            )
        return None
    if asked is True:
        found = folders.newest_complete(trainer.args.output_dir, folders.Wanted.of(trainer.args))
        if found is None:
            warnings.warn(
                f"durable: no complete checkpoint in {trainer.args.output_dir}: the run starts anew",
                stacklevel=2,
            )
        return found
    directory = str(os.fspath(asked))
    lacking = folders.lacking(directory, folders.Wanted.of(trainer.args))
    if lacking:
        raise UsageError(
            f"{directory} is no complete checkpoint: {'; '.join(lacking)}",
            hint="last_checkpoint(output_dir) finds the newest complete one",
        )
    return directory


def _has_history(root: str) -> bool:
    try:
        return open_run(root).state.exists
    except RunNotFoundError:
        return False
