"""L3. One step's gradients computed twice (opt-in)."""

from __future__ import annotations

from dataclasses import dataclass

from durable_core.detect.base import About, Finding


@dataclass(frozen=True)
class Twice:
    """Digests of the gradients of ``step``, from the same batch, weights and random streams."""

    step: int
    first: str
    second: str


class Recompute:
    """``restored``: the step that this process began with. A fault that lasts may have begun right after the
    last check that passed."""

    def __init__(self, every: int, restored: int) -> None:
        self._restored = restored
        #: the newest step that gave the same twice; ``None``: none since the start
        self.agreed: int | None = None
        self.about = About(
            name="recompute", version=1, period=every, window=every,
            covers=f"the gradients of one step in {every}, computed twice from the same start",
            misses="faults in the steps between, unless they last; errors that repeat bit for bit; what the "
            "optimizer computes; kernels that are not deterministic look like a fault",
        )  # fmt: skip
        self._told = False

    @property
    def standing(self) -> bool:
        return self._told

    def judge(self, sample: Twice) -> Finding | None:
        if sample.first == sample.second:
            self.agreed, self._told = sample.step, False
            return None
        if self._told:
            return None
        self._told = True
        since = self._restored if self.agreed is None else self.agreed
        reason = (
            f"step {sample.step}: its gradients were computed twice, and differ ({sample.first} and "
            f"{sample.second}); which is right cannot be told"
        )
        return Finding(
            self.about.name, self.about.version, "F13", "recompute-mismatch", sample.step, since + 1,
            reason, evidence={"first": sample.first, "second": sample.second},
        )  # fmt: skip
