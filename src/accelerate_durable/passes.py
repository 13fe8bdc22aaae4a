"""Which epoch a pass over the training loader is, and what becomes of it: decisions, and what they stand on.

A script's loop begins again at its first epoch when it is restarted. So pass *i* of a process is epoch
``first + i``; passes of epochs that are over yield nothing, and the pass of the one under way goes on.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from durable_core.errors import UsageError

if TYPE_CHECKING:
    import accelerate

#: Empty passes, beyond those that a restart accounts for, after which a script is told, and is stopped.
TOLD, BEYOND = 10, 1_000
#: What is told of a pass that was read to its end, with gradients on, and in which no optimizer stepped.
READ_ONLY = (
    "a pass over the loader that trains was read to its end, and no optimizer has stepped in it: it counts "
    "as an epoch, and a restart does not read it again. Read what is not trained on under torch.no_grad()"
)


class EpochIsOver(UsageError, StopIteration):
    """What ``next()`` meets where a pass is empty: the end of an iterator, which says why."""


class Pass(enum.Enum):
    """What a pass does, and why."""

    TRAINS = "its epoch is the one under way"
    OVER = "its epoch was trained before this process began"
    ENDED = "the run has ended"


def decide(*, epoch: int, under_way: int, training: bool, ended: bool, look: bool = False) -> Pass:
    """``epoch``: of the pass; ``under_way``: that of the data position. ``training``: a pass of this process
    has trained, and from then on the data counts the epochs itself. ``look``: in a life before, this one was
    left before any step, and is no epoch."""
    if ended:
        return Pass.ENDED
    return Pass.OVER if epoch < under_way and not (training or look) else Pass.TRAINS


def no_batch(verdict: Pass) -> EpochIsOver:
    """The end of a pass of that verdict."""
    if verdict is Pass.ENDED:
        return EpochIsOver(
            f"next() has met the end of a pass that is empty: {verdict.value}",
            hint="take batches in a `for` loop, which passes over it; if max_steps ended the run, a larger "
            "one goes on with it",
        )
    return EpochIsOver(
        "next() has met the end of a pass that is empty: its epoch was trained before this restart",
        hint="take batches from a generator with `while True: yield from loader`, which passes over such "
        "epochs, and end it by max_steps; or say loader.set_epoch(epoch) before iter(loader)",
    )


def over(steps: int, root: str) -> str:
    """What is told where the first pass of a run is asked for that has succeeded in an earlier life."""
    return (
        f"the run at {root} has ended at step {steps}, and nothing is trained any more. If max_steps ended "
        "it, a larger max_steps goes on; other epochs are another run, with a root of its own, which can "
        "begin by load_state(DIR) with what this one has saved"
    )


def check_not_beyond(empty: int, where: str) -> str:
    """What is told to a script that has asked for ``empty`` passes which bring it no further; mostly nothing.
    ``where``: why they are empty. ``UsageError`` to one that does not stop."""
    if empty > BEYOND:
        raise UsageError(f"{where}, and {BEYOND} passes asked for since were empty", hint=_COUNT)
    if empty != TOLD:
        return ""
    return (
        f"{where}, and {TOLD} passes asked for since were empty: a loop that waits for a number of steps "
        f"does not end so (after {BEYOND} this is an error). {_COUNT[0].upper()}{_COUNT[1:]}"
    )


_COUNT = (
    "register what the script counts (register_for_checkpointing), so that a restart has it back; or let it "
    "count passes (for epoch in range(n)), and max_steps end the run"
)


class Loop:
    """Where the script's loop stands: a state object of the run.

    ``first``: the epoch of this process's first pass; ``begun``: passes of this process so far;
    ``training``: one of them has trained. ``last``: the epoch of the last one; ``epoch``: of the last one
    that trained. ``offset``: what the script calls an epoch, by ``set_epoch``, less what the data calls it;
    ``None`` where it has not said anything. ``origin``: the directory that ``load_state`` began the run
    with; empty: none. ``by_hand``: the script says where its boundaries are, and so it is in every later
    process from its first step on. ``window``: batches of the last step. ``at_batch``: the boundary is one
    before a batch, where modules train or not as they do there; elsewhere the script has its say in between.
    ``set_late``: the script has set an optimizer after a ``save_state`` at the end of an epoch.
    ``looks``: which passes of a process, counted from 0, were left before any optimizer step: they are no
    epochs.
    """

    def __init__(self, accelerator: accelerate.Accelerator) -> None:
        self._accelerator = accelerator
        self.first = 0
        self.begun = 0
        self.training = False
        self.last: int | None = None
        self.epoch = 0
        self.offset: int | None = None
        self.origin = ""
        self.by_hand = False
        self.window = 0
        self.at_batch = False
        self.set_late = False
        self.looks: list[int] = []
        self._looks = 0  # of this process
        self._told: int | None = None
        self._told_last: int | None = None

    def tell(self, epoch: int) -> None:
        """The script's own number of the pass to come, and so of every one after it."""
        self._told = epoch

    def next_epoch(self) -> int:
        """The epoch that the pass to come is, as far as this process can know."""
        if self._told is not None:
            return self._told - (self.offset or 0)
        return self.first + self.begun - self._looks

    @property
    def look(self) -> bool:
        """Whether the pass to come is one that was no epoch in a life before."""
        return self.begun in self.looks

    def looked(self, *, stepped: bool) -> None:
        """The last pass was left before any step. ``stepped``: but one of this process has trained.

        If what was restored knows of it, training has not come to its place yet. Else the place is behind it.
        """
        self._looks += 1
        self.training = stepped or self.begun - 1 not in self.looks
        self.looks = sorted({*self.looks, self.begun - 1})
        if self._told is None:
            self._told = self._told_last

    def begin(self, verdict: Pass, epoch: int) -> None:
        """A pass has begun, and it is of ``epoch``."""
        self.begun, self.last = self.begun + 1, epoch
        if verdict is Pass.TRAINS:
            self.training, self.epoch = True, epoch
            if self._told is not None:
                self.offset = self._told - epoch
        self._told, self._told_last = None, self._told

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "offset": self.offset,
            "origin": self.origin,
            "by_hand": self.by_hand,
            "window": self.window,
            "at_batch": self.at_batch,
            "set_late": self.set_late,
            "looks": self.looks,
            "step": self._accelerator.step,
            "iteration": self._accelerator.project_configuration.iteration,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epoch, self.offset, self.origin = state["epoch"], state["offset"], state["origin"]
        self.by_hand, self.window = self.by_hand or state["by_hand"], state["window"]
        self.at_batch = state["at_batch"]
        self.set_late = self.set_late or state.get("set_late", False)
        self.looks = sorted({*self.looks, *state.get("looks", ())})
        self._accelerator.step = state["step"]
        self._accelerator.project_configuration.iteration = state["iteration"]
