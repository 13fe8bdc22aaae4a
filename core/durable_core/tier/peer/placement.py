"""L3. Who keeps whose copies: pure functions of the hosts and their failure domains.

Hosts are put in groups of ``m`` whose members keep one another's objects, as in GEMINI (Wang et al.,
SOSP 2023, section 4): of all ways to place m copies this has the fewest sets of m hosts whose loss
loses an object. A copy in its source's own failure domain (rack, power feed, VM host) does not count:
what takes the source takes the copy.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from durable_core.errors import UsageError

#: Hosts that keep one another's copies, directly or by way of others, whose subsets are still counted.
_MAX_CLUSTER = 20


@dataclass(frozen=True)
class Placement:
    """``keepers[host]``: the ``m - 1`` hosts that keep copies of its objects, nearest in the group first.

    ``reason`` says how they were chosen, for people.
    """

    keepers: Mapping[str, tuple[str, ...]]
    reason: str


def place(hosts: Mapping[str, str], m: int) -> Placement:
    """Place ``m`` copies of every host's objects, its own included. ``hosts`` maps a host to its domain.

    The same hosts give the same placement everywhere, in whatever order they come. Groups have m members
    (some have more when m does not divide the number of hosts), all of different domains. Where one
    domain has too many hosts for that, each of its hosts gets the least loaded keepers of other domains
    instead. ``UsageError`` when there are fewer than ``m`` domains, and no placement could survive one.
    """
    if m < 1:
        raise UsageError(f"{m} copies of an object are none")
    domains = Counter(hosts.values())
    if hosts and len(domains) < m:
        raise UsageError(
            f"{m} copies need hosts in {m} failure domains, and there are {len(domains)}: {sorted(domains)}",
            hint="keep fewer copies, or say more precisely which hosts fail together",
        )
    if m == 1:
        return Placement(dict.fromkeys(sorted(hosts), ()), "one copy: on its own host only")
    groups = len(hosts) // m
    crowded, most = max(domains.items(), key=lambda item: (item[1], item[0]), default=("", 0))
    if most <= groups:
        return Placement(_grouped(hosts, groups, m), f"{groups} groups of {m} hosts or more, by domain")
    return Placement(
        _balanced(hosts, m),
        f"{most} hosts of {crowded!r} are too many for {groups} groups: least loaded hosts elsewhere",
    )


def _grouped(hosts: Mapping[str, str], groups: int, m: int) -> dict[str, tuple[str, ...]]:
    """Deal the hosts, sorted by domain, to the groups in turn: a domain of at most ``groups`` hosts never
    deals two to one group."""
    ordered = sorted(hosts, key=lambda host: (hosts[host], host))
    keepers = {}
    for first in range(groups):
        members = ordered[first::groups]
        for at, host in enumerate(members):
            keepers[host] = tuple(members[(at + step) % len(members)] for step in range(1, m))
    return keepers


def _balanced(hosts: Mapping[str, str], m: int) -> dict[str, tuple[str, ...]]:
    load = dict.fromkeys(hosts, 0)
    keepers = {}
    sizes = Counter(hosts.values())
    # The largest domains first: they have the least choice.
    for host in sorted(hosts, key=lambda host: (-sizes[hosts[host]], hosts[host], host)):
        chosen: list[str] = []
        for candidate in sorted(hosts, key=lambda other: (load[other], hosts[other], other)):
            taken = {hosts[each] for each in (host, *chosen)}
            if len(chosen) < m - 1 and hosts[candidate] not in taken:
                chosen.append(candidate)
                load[candidate] += 1
        keepers[host] = tuple(chosen)
    return keepers


def survives(keepers: Mapping[str, tuple[str, ...]], lost: Iterable[str]) -> bool:
    """Whether every host's objects have a copy outside ``lost``."""
    gone = set(lost)
    return not any(gone.issuperset((host, *kept)) for host, kept in keepers.items())


def recovery_probability(keepers: Mapping[str, tuple[str, ...]], failed: int) -> float:
    """The probability that nothing is lost when ``failed`` hosts, all equally likely, fail at once. Exact.

    Hosts fall into clusters that share no copies, so the sets of ``failed`` hosts that lose nothing are
    counted by the coefficient of x**failed in the product of one polynomial per cluster, whose
    coefficient of x**j counts the harmless sets of j of its hosts. For N/m groups of m that polynomial is
    (1+x)**m - x**m, and with failed = m it is GEMINI's 1 - (N/m) / C(N, m).
    ``UsageError`` for more failures than hosts, and for clusters of more than 20 hosts.
    """
    if not 0 <= failed <= len(keepers):
        raise UsageError(f"{failed} of {len(keepers)} hosts cannot fail")
    harmless = [1]
    for cluster in _clusters(keepers):
        if len(cluster) > _MAX_CLUSTER:
            raise UsageError(f"{len(cluster)} hosts share copies, too many to count all their subsets")
        inside = {host: keepers[host] for host in cluster}
        counts = [
            sum(survives(inside, lost) for lost in itertools.combinations(cluster, size))
            for size in range(len(cluster) + 1)
        ]
        harmless = _product(harmless, counts)
    return harmless[failed] / math.comb(len(keepers), failed)


def _clusters(keepers: Mapping[str, tuple[str, ...]]) -> list[list[str]]:
    """The hosts, by who shares copies with whom."""
    cluster_of = {host: {host} for host in keepers}
    for host, kept in keepers.items():
        for other in kept:
            if cluster_of[other] is not cluster_of[host]:
                merged = cluster_of[host] | cluster_of[other]
                cluster_of.update(dict.fromkeys(merged, merged))
    return sorted({min(members): sorted(members) for members in cluster_of.values()}.values())


def _product(a: list[int], b: list[int]) -> list[int]:
    out = [0] * (len(a) + len(b) - 1)
    for (i, x), (j, y) in itertools.product(enumerate(a), enumerate(b)):
        out[i + j] += x * y
    return out
