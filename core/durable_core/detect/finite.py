"""L3. Losses and gradient norms that are no numbers."""

from __future__ import annotations

import math

from durable_core.detect.base import About, Finding, Step, before, shown

#: Updates that a scaler skips in a row before it is no search for a scale any more: it halves at each, and
#: 2**-32 of where it began is below any gradient.
SKIPPED_IN_A_ROW = 32


class NonFinite:
    """NaN or infinity in what a step reports.

    A step whose update was skipped is not judged, for that is how a gradient scaler works; it is when
    ``SKIPPED_IN_A_ROW`` were, as after NaN in the weights.
    """

    about = About(
        name="non-finite", version=1, period=1, window=1,
        covers="NaN or infinity in the loss or the gradient norm that each step reports",
        misses="wrong values that are finite; weights that no reported loss depends on; fewer than "
        f"{SKIPPED_IN_A_ROW} steps in a row that a gradient scaler skipped",
    )  # fmt: skip

    def __init__(self) -> None:
        self._told = False
        self._skipped = 0

    @property
    def standing(self) -> bool:
        return self._told

    def judge(self, sample: Step) -> Finding | None:
        values = {"loss": sample.loss, "grad_norm": sample.grad_norm}
        bad = {name: x for name, x in values.items() if x is not None and not math.isfinite(x)}
        if all(x is None for x in values.values()):
            return None
        self._skipped = 0 if sample.updated else self._skipped + 1
        if not sample.updated and (not bad or self._skipped < SKIPPED_IN_A_ROW):
            return None
        if not bad:
            self._told = False
        if not bad or self._told:
            return None
        self._told = True
        first = sample.step - max(0, self._skipped - 1)
        # A finite loss speaks for the state that it was computed from.
        onset = first if "loss" not in bad and sample.updated else before(first)
        what = " and ".join(f"{name} is {shown(x)}" for name, x in bad.items())
        streak = f" ({self._skipped} updates in a row were skipped)" if self._skipped else ""
        signature, evidence = f"non-finite:{'+'.join(bad)}", {name: shown(x) for name, x in bad.items()}
        return Finding(
            self.about.name, self.about.version, "F12", signature, sample.step, max(1, onset),
            f"step {sample.step}: {what}{streak}", evidence=evidence,
        )  # fmt: skip
