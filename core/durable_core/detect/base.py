"""L3. What a detector is, and what it finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

#: The classes of failure that are found in numbers: non-finite or spiking; silent corruption.
Failure = Literal["F12", "F13"]

S_contra = TypeVar("S_contra", contravariant=True)


@dataclass(frozen=True)
class About:
    """``period``: steps from one check to the next. ``window``: a state is vindicated, as far as this
    detector can, when that many steps after it have been judged. ``covers`` and ``misses`` are for people.
    """

    name: str
    version: int
    period: int
    window: int
    covers: str
    misses: str


@dataclass(frozen=True)
class Finding:
    """``step``: at which it was found. ``onset``: the first step whose state is not trusted any more: what is
    restored has to be of an earlier one. ``suspects``: the roles it points to, empty when it cannot be told.
    """

    detector: str
    version: int
    failure: Failure
    signature: str
    step: int
    onset: int
    reason: str
    suspects: tuple[str, ...] = ()
    evidence: Mapping[str, str] = field(default_factory=dict)


class Detector(Protocol[S_contra]):
    """Of trouble that goes on it tells once; ``standing``: it has not ended yet, so that nothing is
    vindicated."""

    @property
    def about(self) -> About: ...

    @property
    def standing(self) -> bool: ...

    def judge(self, sample: S_contra) -> Finding | None: ...


@dataclass(frozen=True)
class Step:
    """The numbers of one step. ``updated``: an optimizer has stepped; a scaler skips it after an overflow."""

    step: int
    loss: float | None = None
    grad_norm: float | None = None
    updated: bool = True


def before(step: int) -> int:
    """The onset of what was seen in the loss of ``step``: that is computed from the state before it.

    The initial state was computed by nobody.
    """
    return max(1, step - 1)


def shown(value: float) -> str:
    """For evidence: JSON has no NaN."""
    return f"{value:.9g}"
