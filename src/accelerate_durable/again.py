"""Trainings of one process, by where their runs live: a second one at a root is the same run, and goes on
with what the first has trained. Where it is meant to be another one, that would be said by nobody."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from accelerate_durable import leaving
from durable_core.errors import UsageError
from durable_core.session import notices

if TYPE_CHECKING:
    from accelerate_durable.opened import Opened

#: Root -> whose session was opened there last.
_open: weakref.WeakValueDictionary[str, Opened] = weakref.WeakValueDictionary()
#: Root -> the step up to which a training of this process has come there, and whether within a pass.
_left: dict[str, tuple[int, bool]] = {}


def take(root: str, *, asked: bool, tells: bool) -> None:
    """A training is about to open ``root``: whoever has it is closed.

    ``asked``: by ``load_state`` the script says that it goes on there. Else ``UsageError`` when this process
    has trained there before; but one that was cut short in a pass is told (``tells``: here) and goes on, for
    that is what a cell of a notebook does when it is run again.
    """
    other = _open.get(root)
    if other is not None:
        other.close(leaving.How.TAKEN)
    step, within = _left.get(root, (0, True))
    if step and not asked:
        told = f"this process has trained the run at {root} up to step {step} before"
        if not within:
            raise UsageError(
                f"{told}: what is to be trained now would go on with that",
                hint="a root of its own for each training (Accelerator(durable=...)); to go on with that "
                "run, load_state() before the first batch, or a process of its own",
            )
        if tells:
            notices.say(f"{told}, and goes on with it. Another training needs a root of its own")
    _left.pop(root, None)


def has(root: str, durable: Opened) -> None:
    """The session at ``root`` is that of ``durable``."""
    _open[root] = durable


def left(root: str, step: int, *, within: bool) -> None:
    """A training has come to ``step``, and was ended; ``within``: a pass."""
    _left[root] = step, within


def another_trains(durable: Opened) -> bool:
    """Whether a session that is not that of ``durable`` is open in this process."""
    return any(other is not durable and other.is_open for other in _open.values())
