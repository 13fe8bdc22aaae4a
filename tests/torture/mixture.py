"""``python -m tests.torture.mixture``: exact quotas over random configurations, by the code that ships.

A configuration: 1 to 12 sources, their weights (a few of them far apart), a window, and the number of
windows. Every configuration is drawn by ``quota.choose``, in two parts with only the debts in between, as a
resume would; |debt| may never exceed 1 - 1/(2m - 2) after any draw, the quotas of each window must be
from 0 and add up, and the debts carried must be those counted. One in ``--oracle-every`` is drawn again by
the rule as it is stated, in fractions. One in ``--changes-every`` changes its weights on the way, to zero
for some, and must keep to the limit that it declares then. Prints one JSON report; exits 1 at any fault.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from durable_core.data.mixture import quota
from durable_core.data.mixture.policy import Weights, carry, normalised, settle

MAX_SOURCES = 12
Chooser = Callable[[Weights, list[int], int], list[int]]
"""(weights, debts, count) -> the source of each draw."""


@dataclass(frozen=True)
class Configuration:
    """``windows`` windows of ``window`` draws each, resumed after ``cut`` draws."""

    weights: Weights
    window: int
    windows: int
    cut: int


@dataclass
class Tally:
    """``closest``: the greatest |debt| seen as a share of its bound. ``faults``: what must never be there."""

    configurations: int = 0
    draws: int = 0
    windows: int = 0
    oracle: int = 0
    changes: int = 0
    closest: float = 0.0
    at_bound: int = 0
    faults: list[str] = field(default_factory=list)


def configurations(seed: int, count: int) -> Iterator[Configuration]:
    stream = random.Random(seed)
    for _ in range(count):
        weights = random_weights(stream, stream.randint(1, MAX_SOURCES))
        window, windows = stream.randint(1, 9), stream.randint(2, 40)
        yield Configuration(weights, window, windows, stream.randint(0, window * windows))


def random_weights(stream: random.Random, sources: int) -> Weights:
    """Of three kinds: small integers (ties, short periods), decimals, and a few that dwarf the others."""
    kind = stream.randrange(3)
    if kind == 0:
        return normalised([stream.randint(1, 9) for _ in range(sources)])
    if kind == 1:
        return normalised([Fraction(stream.randint(1, 9999), 10_000) for _ in range(sources)])
    return normalised([10 ** stream.randint(0, 6) for _ in range(sources)])


def by_shipped(weights: Weights, debts: list[int], count: int) -> list[int]:
    return quota.choose(weights, debts, quota.draw_rule(weights), count)


def by_statement(weights: Weights, debts: list[int], count: int) -> list[int]:
    """The rule in the words of the specification, one draw at a time, in fractions."""
    total, m = sum(weights), sum(1 for w in weights if w)
    share = [Fraction(weight, total) for weight in weights]
    owed = [Fraction(debt, total) for debt in debts]
    least = Fraction(1, 2 * m - 2) if m > 1 else Fraction(0)
    picks = []
    for _ in range(count):
        owed = [debt + weight for debt, weight in zip(owed, share, strict=True)]
        eligible = [i for i, weight in enumerate(share) if weight and owed[i] >= least]
        pick = min(eligible, key=lambda i: ((1 - least - owed[i]) / share[i], i))
        owed[pick] -= 1
        picks.append(pick)
    return picks


def by_largest_remainder(window: int) -> Chooser:
    """A planted fault: each window's quotas are the floors of what is due, debt included, and the largest
    remainders get what is missing. A source that is far enough ahead gets a negative quota."""

    def choose(weights: Weights, debts: list[int], count: int) -> list[int]:
        total, picks = sum(weights), []
        for begin in range(0, count, window):
            draws = min(window, count - begin)
            due = [debt + weight * draws for debt, weight in zip(debts, weights, strict=True)]
            quotas = [value // total for value in due]
            by_remainder = sorted(range(len(due)), key=lambda i: (-(due[i] % total), i))
            for i in by_remainder[: draws - sum(quotas)]:
                quotas[i] += 1
            if min(quotas) < 0:
                raise NegativeQuota(quotas)
            part = [i for i, quota_ in enumerate(quotas) for _ in range(quota_)]
            debts = settle(debts, weights, quotas)
            picks += part
        return picks

    return choose


class NegativeQuota(Exception):
    pass


def by_greatest_debt(weights: Weights, debts: list[int], count: int) -> list[int]:
    """A planted fault: always the source that is owed most."""
    total, picks = sum(weights), []
    owed = list(debts)
    for _ in range(count):
        owed = [debt + weight for debt, weight in zip(owed, weights, strict=True)]
        pick = max(range(len(owed)), key=lambda i: (owed[i], -i))
        owed[pick] -= total
        picks.append(pick)
    return picks


def debts_along(weights: Weights, debts: list[int], picks: list[int]) -> Any:
    """Debts after each draw over ``sum(weights)``, int64 [draws, sources], counted afresh from the draws."""
    counts = np.zeros((len(picks), len(weights)), dtype=np.int64)
    counts[np.arange(len(picks)), picks] = 1
    np.cumsum(counts, axis=0, out=counts)
    targets = np.arange(1, len(picks) + 1)[:, None] * np.array(weights)
    return targets - counts * sum(weights) + np.array(debts)


def check(configuration: Configuration, choose: Chooser, tally: Tally) -> list[int]:
    """Draw it in two parts and look at every draw. Returns the draws."""
    weights, length = configuration.weights, configuration.window * configuration.windows
    total, m = sum(weights), len(weights)
    zeros = [0] * m
    first = choose(weights, zeros, configuration.cut)
    between = settle(zeros, weights, np.bincount(first, minlength=m).tolist())
    picks = first + choose(weights, between, length - configuration.cut)
    debts = debts_along(weights, zeros, picks)
    worst = int(np.abs(debts).max())
    bound = quota.debt_bound(m)
    if worst * bound.denominator > bound.numerator * total:
        tally.faults.append(f"{configuration}: |debt| reached {worst / total:.4f}, bound {float(bound):.4f}")
    ends = debts[configuration.window - 1 :: configuration.window]
    carried = np.vstack([np.zeros((1, m), dtype=np.int64), ends])
    exact = configuration.window * np.array(weights) + carried[:-1] - carried[1:]
    quotas = exact // total
    if (exact % total).any() or (quotas < 0).any() or (quotas.sum(axis=1) != configuration.window).any():
        tally.faults.append(f"{configuration}: a window's quotas are {quotas.tolist()}")
    tally.configurations += 1
    tally.draws += length
    tally.windows += configuration.windows
    if m > 1:
        tally.closest = max(tally.closest, worst / (float(bound) * total))
        tally.at_bound += worst * bound.denominator == bound.numerator * total
    return picks


def check_changes(stream: random.Random, choose: Chooser, tally: Tally) -> None:
    """Weights that change five times, to zero for some, with debts carried over."""
    m = stream.randint(2, MAX_SOURCES)
    weights, debts = random_weights(stream, m), [0] * m
    for _ in range(5):
        limit = quota.limit(debts, weights)
        picks = choose(weights, debts, stream.randint(1, 60))
        along = debts_along(weights, debts, picks)
        worst = int(np.abs(along).max())
        if worst > limit or along.sum(axis=1).any():
            tally.faults.append(f"{weights}: from debts {debts}, |debt| reached {worst}, limit {limit}")
        debts, before = along[-1].tolist(), weights
        given = [0 if stream.random() < 0.2 else stream.randint(1, 99) for _ in range(m)]
        weights = normalised(given if any(given) else [1] * m)
        debts = carry(debts, before, weights)
        if sum(debts) or any(debt and not weight for debt, weight in zip(debts, weights, strict=True)):
            tally.faults.append(f"{before} -> {weights}: debts became {debts}")
    tally.changes += 1


def campaign(count: int, *, seed: int = 0, oracle_every: int = 200, changes_every: int = 10) -> Tally:
    tally, stream = Tally(), random.Random(seed + 1)
    for index, configuration in enumerate(configurations(seed, count)):
        picks = check(configuration, by_shipped, tally)
        if index % oracle_every == 0:
            tally.oracle += 1
            if picks != by_statement(configuration.weights, [0] * len(configuration.weights), len(picks)):
                tally.faults.append(f"{configuration}: not the draws that the rule states")
        if index % changes_every == 0:
            check_changes(stream, by_shipped, tally)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--configs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--oracle-every", type=int, default=200)
    parser.add_argument("--changes-every", type=int, default=10)
    args = parser.parse_args()
    started = time.process_time()
    tally = campaign(
        args.configs, seed=args.seed, oracle_every=args.oracle_every, changes_every=args.changes_every
    )
    report = {**vars(tally), "faults": tally.faults[:20], "cpu_seconds": round(time.process_time() - started)}
    print(json.dumps(report, indent=2))
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
