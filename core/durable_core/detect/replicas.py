"""L3. Do the data-parallel replicas still hold the same parameters?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from durable_core.detect.base import About, Finding


@dataclass(frozen=True)
class Digests:
    """Of the parameters of every role, after ``step``. ``names``: of tensors that differ, as far as known."""

    step: int
    digests: Mapping[str, str]
    names: tuple[str, ...] = ()


class Replicas:
    """``restored``: the step that this process began with. That its replicas agree is not known before the
    first check: what differed when it was saved differs when it is restored."""

    def __init__(self, every: int, restored: int) -> None:
        #: the newest step after which all agreed; ``None``: not since the start
        self.agreed: int | None = None
        self._restored = restored
        self._told = False
        self.about = About(
            name="replicas", version=1, period=every, window=every,
            covers=f"parameters that differ between data-parallel replicas, every {every} steps; of three or "
            "more the odd one out is named",
            misses="what goes wrong before gradients are averaged, for all replicas get it; optimizer state "
            "until it acts on parameters; buffers; changes that cancel in a tensor's sum of bits; a run of "
            "one replica",
        )  # fmt: skip

    @property
    def standing(self) -> bool:
        return self._told

    def judge(self, sample: Digests) -> Finding | None:
        groups = Counter(sample.digests.values())
        if len(groups) == 1:
            self.agreed, self._told = sample.step, False
            return None
        if self._told:
            return None
        self._told = True
        onset = self._restored if self.agreed is None else self.agreed + 1
        suspects, who = odd_ones_out(sample.digests)
        where = f", in {', '.join(sample.names)}" if sample.names else ""
        since = "no step since the start" if self.agreed is None else f"step {self.agreed}"
        return Finding(
            self.about.name, self.about.version, "F13", "replica-divergence", sample.step, max(1, onset),
            f"after step {sample.step} the replicas hold different parameters{where}: {who} (all agreed at "
            f"{since})",
            suspects, dict(sample.digests),
        )  # fmt: skip


def odd_ones_out(digests: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    """The roles outside the majority, and that in words; nobody when there is no majority."""
    (common, count), *_ = Counter(digests.values()).most_common(1)
    if 2 * count <= len(digests):
        return (), f"which of {', '.join(digests)} is wrong cannot be told, for no majority agrees"
    odd = tuple(role for role, digest in digests.items() if digest != common)
    return odd, f"{', '.join(odd)} against {count} that agree"
