"""L3. ``quota_v1``: exact quotas by earliest deadline, in integers.

Let w_i = a_i / A be the weights of m sources, d_i = (target - actual) the debt of each. A source has a
deadline, the moment at which its debt would grow beyond the bound if it were not drawn, and is
eligible once a draw would not take its debt below minus the bound. Drawn is the eligible source whose
deadline comes first, ties by index. Only the two thresholds differ between the units:

* draws. c = 2m - 2. Eligible when w_i t - N_i >= 1/c at draw t, deadline at 1 - 1/c. Then
  |d_i| <= 1 - 1/c for ever (R. Tijdeman, "The chairman assignment problem", Discrete Mathematics 32,
  1980), and no better bound holds for every choice of weights. For m = 1 the debt is 0.
* tokens (or any unit of which one draw takes several). Eligible when d_i >= 0, deadline at L, the
  longest draw. Then |d_i| <= L. Below: a source drawn at d_i >= 0 ends at d_i - (1 - w_i) l >= -L. Above:
  let d_j > L at time T, and s be the last draw before T whose deadline was after T. From the end of s to T
  only sources with a deadline up to T are drawn; call them and j the set I. None of I was eligible at
  s, else it had been drawn there, so their debts summed to less than 0, and to at most w(I) L at the end
  of s. From there the debts of I together only fall, and each is at least 0 at T (it was drawn when due
  before T, at most L early), so d_j <= w(I) L <= L: a contradiction. Without such an s they began at 0.

Debts carried over from other weights are worked off by the same rule; ``limit`` says what they may reach.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from durable_core.data.mixture.policy import Weights


class Rule(NamedTuple):
    """Eligible at ``early / scale``, deadline at ``late / scale`` units of debt; ``ahead``: the units of
    the draw being made that its target already counts."""

    scale: int
    early: int
    late: int
    ahead: int


def draw_rule(weights: Weights) -> Rule:
    """For draws that weigh one each."""
    scale = max(2 * _active(weights) - 2, 1)
    return Rule(scale, 1, scale - 1, 1)


def unit_rule(longest: int) -> Rule:
    """For draws that weigh up to ``longest``."""
    return Rule(1, 0, longest, 0)


def debt_bound(sources: int) -> Fraction:
    """The bound on |debt| in draws of ``sources`` sources, of debts that began at 0."""
    return Fraction(0) if sources == 1 else 1 - Fraction(1, 2 * sources - 2)


def limit(debts: Sequence[int], weights: Weights, longest: int | None = None) -> int:
    """What |debt| * A never exceeds when it begins at ``debts``; ``longest`` for units, None for draws.

    Draws: at most X draws of the sources in I can be due by draw t beyond t itself, X < 1/2 + (sum of the
    negative debts of the others), since those due number less than sum over I of (d_i + w_i t + 1/c), and
    debts sum to zero. So no draw is later than floor(1/2 + that sum), and a debt passes the bound by at
    most its weight times so many. Units: as in the proof above, with what the debts of I began at.
    """
    total = sum(weights)
    owed = sum(debt for debt in debts if debt > 0)  # = minus the sum of the negative ones
    if longest is not None:
        return max(longest * total, owed)
    late = (2 * owed + total) // (2 * total)
    bound = math.ceil(debt_bound(_active(weights)) * total)
    return max(bound + late * max(weights), *map(abs, debts))


def choose(
    weights: Weights,
    debts: Sequence[int],
    rule: Rule,
    count: int,
    size_of: Callable[[int], int | None] | None = None,
) -> list[int]:
    """The sources of the next ``count`` draws, from the debts before them (over ``sum(weights)``).

    ``size_of(i)``: the units that the next draw from i takes; each call goes on to the draw after. None:
    it has no more; the list then ends with i. Without it every draw takes one.
    """
    total = sum(weights)
    active = [i for i, weight in enumerate(weights) if weight]
    common = math.lcm(*(weights[i] for i in active))
    pace = rule.scale * total
    deadlines, steps, releases, widths = ([0] * len(weights) for _ in range(4))
    for i in active:  # moments as numerators: deadlines over scale * common, releases over scale * a_i
        factor = common // weights[i]
        deadlines[i] = (rule.late * total - rule.scale * debts[i]) * factor
        steps[i] = pace * factor
        releases[i] = rule.early * total - rule.scale * debts[i]
        widths[i] = rule.scale * weights[i]
    waiting = [(-(-releases[i] // widths[i]), i) for i in active]
    heapify(waiting)
    ready: list[tuple[int, int]] = []
    picks: list[int] = []
    clock, size = rule.ahead, 1
    for _ in range(count):
        while waiting and waiting[0][0] <= clock:
            i = heappop(waiting)[1]
            heappush(ready, (deadlines[i], i))
        i = ready[0][1]
        picks.append(i)
        if size_of is not None:
            drawn = size_of(i)
            if drawn is None:
                break
            size = drawn
        clock += size
        deadlines[i] += steps[i] * size
        releases[i] += pace * size
        if releases[i] <= clock * widths[i]:
            heapreplace(ready, (deadlines[i], i))
        else:
            heappop(ready)
            heappush(waiting, (-(-releases[i] // widths[i]), i))
    return picks


def _active(weights: Weights) -> int:
    return sum(1 for weight in weights if weight)
