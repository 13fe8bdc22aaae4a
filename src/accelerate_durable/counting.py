"""Scripts that count batches or steps themselves: after a restart they begin at 0 once more.

Nothing outside such a script can put its count in place, so what shows is told: once, with the way out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from durable_core.session import notices

if TYPE_CHECKING:
    from accelerate_durable.passes import Loop

_IF = "if the script counts the batches of an epoch to know"
_THEN = "its count has begun anew in the middle of one, and this is no longer the same run"
_REGISTER = "register the count (register_for_checkpointing)"
NOT_TO_ITS_END = (
    "an epoch that was resumed in its middle was left before its end, or within a step: "
    f"{_IF} when to leave or to step, {_THEN}. Please {_REGISTER}"
)


def other_window(before: int, taken: int) -> str:
    """What is told when the first step of a process, in the middle of an epoch, has ``taken`` batches and the
    step before it, in the life before, had ``before`` (0: not known). Empty: nothing."""
    if before in (0, taken):
        return ""
    return (
        f"the first step after the restart has {taken} batches, and the one before it had {before}: "
        f"{_IF} when to step, {_THEN}. Use accelerator.accumulate(model), or {_REGISTER}"
    )


def begins_anew(step: int, *, registered: bool, over: bool) -> str:
    """What is told of a restart after ``step`` of a script that knows nothing of it. ``registered``: it has
    objects of its own in the run; ``over``: it comes by epochs that are. Empty: nothing."""
    told = [f"the run goes on after step {step}"]
    if not registered:
        told.append(
            "the script's own variables begin anew: a best metric, or a count of steps that says when to "
            f"end, which trains too many. {_SAY}"
        )
    if over:
        told.append(
            "bodies of epochs that are over run once more, about the restored model: a file that is written "
            "there because it is better than the best one takes its place"
        )
    return "; ".join(told) if step and told[1:] else ""


def left_within(step: int, restored: int) -> str:
    """What is told of a training that ends at ``step``, in the middle of an epoch, in a process that began
    after ``restored``. Empty: nothing."""
    if not 0 < restored < step:
        return ""
    return (
        f"the training was left in the middle of an epoch, after {step - restored} steps of this process and "
        f"{step} of the run: if the script counts its steps to know when to end, and its count began anew "
        f"with the restart, up to {restored} of them are too many. {_SAY}"
    )


_SAY = f"Say max_steps=N (ACCELERATE_DURABLE_MAX_STEPS), or {_REGISTER}; a `while` loop needs the latter"


def behind(directory: str, named: int, restored: int) -> str:
    """What is told where ``load_state`` at the start gives a directory of step ``named`` and the run goes on
    after step ``restored``. Empty: nothing."""
    if named >= restored:
        return ""
    return (
        f"{directory} is of step {named}, and the run goes on after step {restored}, its newest: a count of "
        f"steps that the script takes from the directory is {restored - named} short. {_SAY}"
    )


class Counting:
    """What a process sees of its first pass and its first step."""

    def __init__(self, loop: Loop, *, tells: bool) -> None:
        self._loop, self._tells = loop, tells
        self._pass = self._step = False

    def begun(self, step: int, *, registered: bool, over: bool) -> None:
        """The process goes on after ``step``, with a script that knows nothing of it."""
        self._tell(begins_anew(step, registered=registered, over=over))

    def resumed(self, batch: int) -> None:
        """Training goes on before ``batch`` of an epoch."""
        self._pass = self._step = batch > 0

    def stepped(self, taken: int) -> None:
        """A step of ``taken`` batches is done; 0: an epoch ended with it, which may make it a short one."""
        if self._step and taken:
            self._tell(other_window(self._loop.window, taken))
        self._step = False
        self._loop.window = taken

    def next_pass(self, *, whole: bool) -> None:
        """The pass before this one is over; ``whole``: up to its end, and all of it was trained on."""
        if self._pass and not whole:
            self._tell(NOT_TO_ITS_END)
        self._pass = False

    def left(self, step: int, restored: int) -> None:
        """The training ends within a pass."""
        self._tell(left_within(step, restored))

    def _tell(self, sentence: str) -> None:
        if sentence and self._tells:
            notices.say(sentence)
