"""L3. Steps done again after a restore, against their first execution (VERIF-01)."""

from __future__ import annotations

from dataclasses import dataclass

from durable_core.detect.base import About, Finding, before

#: Steps after a restore within which what was wrong in the checkpoint itself shows: moments act on the
#: weights in the first, and the loss of the second is of those weights.
SHOWS_WITHIN = 2


@dataclass(frozen=True)
class Replayed:
    """``difference``: how ``step`` differs from its first execution, ``""`` when it does not. ``restored``:
    the step of the restore point."""

    step: int
    restored: int
    difference: str = ""


class Replay:
    about = About(
        name="replay", version=1, period=1, window=0,
        covers="steps done again after a restart: loss, learning rate and gradient norm compared with the "
        "numbers from before (bits under the bitwise promise, tolerances below it)",
        misses="what never restarts; steps whose first numbers were lost; what goes wrong both times alike",
    )  # fmt: skip

    def __init__(self) -> None:
        self._told = False

    @property
    def standing(self) -> bool:
        return self._told

    def judge(self, sample: Replayed) -> Finding | None:
        if not sample.difference or self._told:
            return None
        self._told = True  # every later step follows from this one
        # Right at the beginning it may be the checkpoint that is wrong; later ones, the restored state has
        # spoken for itself, and one of the two executions went wrong on the way.
        early = sample.step - sample.restored <= SHOWS_WITHIN
        onset = sample.restored if early else before(sample.step)
        return Finding(
            self.about.name, self.about.version, "F13", "replay-mismatch", sample.step, max(1, onset),
            f"the replay differs from what was trained before the failure: {sample.difference}",
        )  # fmt: skip
