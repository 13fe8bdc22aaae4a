"""L5. Who is slower than the others? By each rank's own times: in a synchronous group all steps take
equally long, and the mean hides the one that the others wait for (DETECT-09). Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from durable_core.engine.beats import Beat
from durable_core.errors import UsageError

#: 1.4826 x the median absolute deviation estimates the standard deviation of normal noise.
_MAD = 1.4826


@dataclass(frozen=True)
class Rule:
    """A rank is slow when the median of its own times is ``slower`` x the others' median or more, and that
    is over ``sigmas`` standard errors of what its times scatter. It is named after ``windows`` looks with
    new times in a row, and no more named after as many below ``recovered`` x. ``least``: own times that a
    look needs."""

    slower: float = 1.2
    recovered: float = 1.1
    sigmas: float = 4.0
    windows: int = 3
    least: int = 8

    def __post_init__(self) -> None:
        if not 1.0 < self.recovered <= self.slower:
            ratios = f"stragglers: slower={self.slower}, recovered={self.recovered}"
            raise UsageError(ratios, hint="1 < recovered <= slower")
        if self.windows < 1 or self.least < 2:
            counts = f"stragglers: windows={self.windows}, least={self.least}"
            raise UsageError(counts, hint="1 or more, and 2 or more")


@dataclass(frozen=True)
class Straggler:
    """``own_s``: the median of its own times; ``others_s``: of the other ranks' medians."""

    rank: int
    own_s: float
    others_s: float
    reason: str

    @property
    def ratio(self) -> float:
        return self.own_s / self.others_s


def find(beats: Mapping[int, Beat | None], rule: Rule | None = None) -> tuple[Straggler, ...]:
    """Who is slow by this look alone, slowest first. ``Watch`` says who is so persistently."""
    rule = rule or Rule()
    rows = [row for row in compare(beats, rule) if row.ratio >= rule.slower and _clear(row, beats, rule)]
    return tuple(sorted(rows, key=lambda row: (-row.ratio, row.rank)))


def compare(beats: Mapping[int, Beat | None], rule: Rule | None = None) -> tuple[Straggler, ...]:
    """Every rank with enough own times beside the others."""
    rule = rule or Rule()
    known = {rank: beat.own for rank, beat in beats.items() if beat is not None}
    own = {rank: median(times) for rank, times in known.items() if len(times) >= rule.least}
    rows = []
    for rank in sorted(own):
        others = [seconds for other, seconds in own.items() if other != rank]
        if not others or not median(others) > 0:
            continue
        base = median(others)
        reason = (
            f"rank {rank} takes {own[rank]:.3g} s of its own for a step, the others {base:.3g} s (medians)"
        )
        rows.append(Straggler(rank, own[rank], base, reason))
    return tuple(rows)


def _clear(row: Straggler, beats: Mapping[int, Beat | None], rule: Rule) -> bool:
    """Whether the difference is over what the median of so few times may be off by chance.

    The standard error of a median of n normal values is 1.2533 s / sqrt(n). The scatter of a few times is
    itself a matter of chance, so it is taken for no smaller than that of the ranks in the middle.
    """
    spreads = {rank: _spread(beat.own) for rank, beat in beats.items() if beat is not None and beat.own}
    beat = beats[row.rank]
    count = 1 if beat is None else len(beat.own)
    spread = max(spreads[row.rank], median(spreads.values()))
    return row.own_s - row.others_s >= rule.sigmas * 1.2533 * spread / math.sqrt(count)


def _spread(times: Sequence[float]) -> float:
    middle = median(times)
    return _MAD * median(abs(seconds - middle) for seconds in times)


@dataclass(frozen=True)
class Watch:
    """Looks over time, with hysteresis. Immutable: ``seen`` returns the next one. ``named``: who is slow
    now, by rank."""

    rule: Rule = field(default_factory=Rule)
    named: Mapping[int, Straggler] = field(default_factory=dict)
    _against: Mapping[int, int] = field(default_factory=dict)  # looks in a row against what is said
    _counts: Mapping[int, int] = field(default_factory=dict)  # the newest beat that was looked at

    def seen(self, beats: Mapping[int, Beat | None]) -> Watch:
        """With one look more. A rank without a beat since the last look is left as it was."""
        now = {row.rank: row for row in compare(beats, self.rule)}
        slow = {row.rank for row in find(beats, self.rule)}
        named, against, counts = dict(self.named), dict(self._against), dict(self._counts)
        for rank in [rank for rank in named if rank not in beats]:
            del named[rank]  # that rank is another worker's now, or nobody's
        for rank, row in now.items():
            beat = beats[rank]
            if beat is None or counts.get(rank) == beat.count:
                continue
            counts[rank] = beat.count
            speaks = row.ratio < self.rule.recovered if rank in named else rank in slow
            against[rank] = against.get(rank, 0) + 1 if speaks else 0
            if against[rank] >= self.rule.windows:
                against[rank] = 0
                if named.pop(rank, None) is None:
                    named[rank] = row
            elif rank in named:
                named[rank] = row
        return Watch(self.rule, named, against, counts)
