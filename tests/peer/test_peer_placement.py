"""Placement: no two copies in one failure domain, and the formula against counting and Monte Carlo."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_core.errors import UsageError
from durable_core.tier.peer.placement import Placement, place, recovery_probability, survives


def racks(*sizes: int) -> dict[str, str]:
    return {f"h{rack}-{i}": f"rack{rack}" for rack, size in enumerate(sizes) for i in range(size)}


def alone(count: int) -> dict[str, str]:
    """Hosts that fail independently."""
    return racks(*[1] * count)


def check(hosts: dict[str, str], m: int) -> Placement:
    placed = place(hosts, m)
    assert placed.keepers.keys() == hosts.keys()
    for host, kept in placed.keepers.items():
        domains = {hosts[each] for each in (host, *kept)}
        assert len(kept) == m - 1 and len(domains) == m, (host, kept)
    return placed


@given(st.lists(st.integers(1, 6), min_size=1, max_size=8), st.integers(1, 4))
def test_every_copy_is_in_a_domain_of_its_own_or_it_is_impossible(sizes: list[int], m: int) -> None:
    hosts = racks(*sizes)
    if len(sizes) < m:
        with pytest.raises(UsageError, match="failure domains"):
            place(hosts, m)
        return
    placed = check(hosts, m)
    for rack in set(hosts.values()) if m > 1 else ():
        assert survives(placed.keepers, [host for host in hosts if hosts[host] == rack])


@given(st.lists(st.integers(1, 5), min_size=2, max_size=6), st.randoms())
def test_the_order_of_the_hosts_does_not_matter(sizes: list[int], chance: random.Random) -> None:
    hosts = racks(*sizes)
    shuffled = list(hosts.items())
    chance.shuffle(shuffled)
    assert place(dict(shuffled), 2) == place(hosts, 2)


@pytest.mark.parametrize(
    ("sizes", "m"), [((4, 4), 2), ((1,) * 16, 2), ((3, 3, 3), 3), ((2,) * 6, 4), ((5, 4, 3), 2)]
)
def test_groups_when_m_divides_the_hosts(sizes: tuple[int, ...], m: int) -> None:
    placed = check(racks(*sizes), m)
    groups = {frozenset((host, *kept)) for host, kept in placed.keepers.items()}
    assert len(groups) == sum(sizes) / m and all(len(group) == m for group in groups)
    load = Counter(itertools.chain.from_iterable(placed.keepers.values()))
    assert set(load.values()) == {m - 1}  # everybody keeps as much as the others
    assert "groups" in placed.reason


@pytest.mark.parametrize(("sizes", "m"), [((1,) * 7, 2), ((1,) * 5, 3), ((2, 2, 1), 2)])
def test_a_group_has_more_hosts_when_m_does_not_divide_them(sizes: tuple[int, ...], m: int) -> None:
    placed = check(racks(*sizes), m)
    load = Counter(itertools.chain.from_iterable(placed.keepers.values()))
    assert set(load.values()) == {m - 1}


def test_a_domain_with_most_of_the_hosts_is_spread_evenly() -> None:
    placed = check(racks(9, 3), 2)
    load = Counter(itertools.chain.from_iterable(placed.keepers.values()))
    assert [load[f"h1-{i}"] for i in range(3)] == [3, 3, 3]
    assert "'rack0'" in placed.reason


def test_what_cannot_be_placed_says_why() -> None:
    with pytest.raises(
        UsageError, match=r"2 copies need hosts in 2 failure domains, and there are 1: \['rack0'\]"
    ):
        place(racks(8), 2)
    with pytest.raises(UsageError):
        place(racks(1, 1), 0)


def test_few_hosts() -> None:
    assert place({}, 2).keepers == {}
    assert place({"a": "x"}, 1).keepers == {"a": ()}


def test_sixteen_hosts_two_copies_two_failures() -> None:
    """GEMINI's example: 1 - (N/m) / C(N, m) = 1 - 8/120, 93.3 %; and a Monte Carlo estimate of it."""
    keepers = place(alone(16), 2).keepers
    exact = recovery_probability(keepers, 2)
    assert exact == pytest.approx(1 - 8 / math.comb(16, 2)) and round(exact, 3) == 0.933
    chance, hosts, trials = random.Random(1), sorted(keepers), 20_000
    survived = sum(survives(keepers, chance.sample(hosts, 2)) for _ in range(trials))
    sigma = math.sqrt(exact * (1 - exact) / trials)
    assert abs(survived / trials - exact) < 4 * sigma


@pytest.mark.parametrize(("count", "m"), [(6, 2), (7, 2), (9, 3), (10, 3), (8, 1), (3, 2)])
def test_the_formula_counts_every_set_of_failures(count: int, m: int) -> None:
    keepers = place(alone(count), m).keepers
    for failed in range(count + 1):
        sets = list(itertools.combinations(sorted(keepers), failed))
        counted = sum(survives(keepers, lost) for lost in sets) / len(sets)
        assert recovery_probability(keepers, failed) == pytest.approx(counted)
    assert recovery_probability(keepers, m - 1) == 1.0


def test_groups_lose_less_than_a_ring() -> None:
    """Why groups: a ring of the same hosts has twice as many fatal pairs."""
    hosts = sorted(alone(16))
    ring = {host: (hosts[(i + 1) % 16],) for i, host in enumerate(hosts)}
    assert recovery_probability(place(alone(16), 2).keepers, 2) > recovery_probability(ring, 2)
    assert recovery_probability(ring, 2) == pytest.approx(1 - 16 / 120)


def test_what_cannot_be_counted_is_refused() -> None:
    hosts = [f"h{i:02}" for i in range(24)]
    ring = {host: (hosts[(i + 1) % 24],) for i, host in enumerate(hosts)}
    with pytest.raises(UsageError, match="24 hosts share copies"):
        recovery_probability(ring, 2)
    with pytest.raises(UsageError):
        recovery_probability(place(alone(4), 2).keepers, 5)
