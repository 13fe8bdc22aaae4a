"""L4. The sources that a run draws from, as its plan describes them, and what was counted of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from durable_core.data.order import Ids
from durable_core.engine.audit.drawn import NONE, Drawn
from durable_core.engine.audit.due import Plan


@dataclass(frozen=True)
class SourceCount:
    """One source. ``draws``: its records, each time they came; pieces of them where documents are packed and
    nobody knows their epochs. ``tokens``: None where the ledger has no amounts. ``epochs``: complete
    ones. ``left_out`` of the draws by declaration (those records did not decode). ``due``: its share of all
    draws, or of all tokens where those are weighed (``due_in``); None if not declared, or if the ledger has
    not what is weighed. ``repeated`` and ``skipped``: more and less often than due."""

    name: str
    dataset_id: str
    size: int
    draws: int
    tokens: int | None
    epochs: int
    repeated: int
    skipped: int
    left_out: int
    due: float | None
    due_in: str = "draws"


@dataclass
class Source:
    """``drawn``: what came of it, by its epochs. ``blind``: what came of which nobody knows the epoch."""

    name: str
    dataset_id: str
    base: int
    size: int
    once: bool
    weight: float | None
    drawn: Drawn = field(init=False)
    blind: Blind = field(init=False)
    tokens: int = 0
    left_out: int = 0
    repeated: int = 0
    skipped: int = 0

    def __post_init__(self) -> None:
        self.drawn, self.blind = Drawn(self.size, once=self.once), Blind(self.size)

    @property
    def draws(self) -> int:
        return self.drawn.draws + self.blind.draws


class Blind:
    """Draws of one epoch after the other: each is over when ``size`` have come."""

    def __init__(self, size: int) -> None:
        self._size, self._open = size, NONE
        self.draws, self.epochs = 0, 0
        self._repeated, self.skipped = 0, 0

    @property
    def repeated(self) -> int:
        return self._repeated + len(self._open) - len(np.unique(self._open))

    def take(self, ids: Ids) -> None:
        drawn = np.concatenate([self._open, ids])
        while len(drawn) >= self._size:
            counts = np.bincount(drawn[: self._size], minlength=self._size)
            self._repeated += int((counts[counts > 1] - 1).sum())
            self.skipped += int((counts == 0).sum())
            self.epochs += 1
            drawn = drawn[self._size :]
        self._open = drawn


def mixture_of(plan: Plan) -> Mapping[str, Any] | None:
    """The description of the mixture inside that of a (packed) sequence; None when there is none."""
    inner: Any = plan
    while isinstance(inner, Mapping):
        if isinstance(inner.get("sources"), Sequence):
            return inner
        inner = inner.get("inner")
    return None


def weighed_in(mixture: Mapping[str, Any]) -> str | None:
    """ "draws" or "tokens", whichever its weights are of; None for what no ledger counts."""
    units = {"sample": "draws", "document": "draws", "token": "tokens"}
    return units.get(mixture.get("unit", "sample"))


def drawn_from(plan: Plan) -> Mapping[str, Any] | None:
    """The mixture, or the one dataset of packs as if it were one; None for an order alone."""
    mixture, inner = mixture_of(plan), plan.get("inner")
    if mixture is not None or not (isinstance(inner, Mapping) and "size" in inner):
        return mixture
    name = str(inner.get("dataset_id", "the dataset"))
    return {"sources": [{"name": name, "dataset_id": name, "size": inner["size"]}]}


def places_of(plan: Plan) -> dict[str, range]:
    """Source -> its ids in the ledger; empty when the plan has no mixture in it."""
    mixture = mixture_of(plan)
    sources = [] if mixture is None else sources_of(mixture)
    return {source.name: range(source.base, source.base + source.size) for source in sources}


def sources_of(mixture: Mapping[str, Any]) -> list[Source]:
    """One after the other in one id space, in the order of the description."""
    weights = mixture.get("weights") or [None] * len(mixture["sources"])
    total = sum(weight or 0 for weight in weights)
    found: list[Source] = []
    base = 0
    for described, weight in zip(mixture["sources"], weights, strict=True):
        found.append(
            Source(
                name=str(described["name"]),
                dataset_id=str(described.get("dataset_id", "unknown")),
                base=base,
                size=int(described["size"]),
                once=not described.get("replacement", False),
                weight=weight / total if weight is not None and total else None,
            )
        )
        base += found[-1].size
    return found
