"""Who writes what, and whether the receipts make one whole checkpoint."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_core.commit.plan import check_coverage, check_receipts, divergent_keys, plan, unite
from durable_core.errors import CommitAborted, CoverageError
from durable_core.format import digests
from durable_core.format.layout import CheckpointName
from durable_core.format.receipt import Receipt
from durable_core.types import ObjectInfo, PlacedSlice, SliceInfo, SliceKey

NAME = CheckpointName(1, 3, "ab" * 4)


def info(key, n, salt="0", offset=0, whole=None):
    xxh3 = digests.xxh3(f"{key}{salt}".encode())
    return SliceInfo(SliceKey(key, (offset,), (n,)), "U8", (whole or n,), n, xxh3, xxh3[:8])


def offers(sizes, roles):
    return {role: tuple(info(f"state/{i}", n) for i, n in enumerate(sizes)) for role in roles}


def assign(held):
    return {role: tuple(info.slice for info in infos) for role, infos in plan(held).write.items()}


def test_replicated_slices_are_written_once():
    planned = assign(offers([5, 3, 9, 1], ["dp0", "dp1", "dp2"]))
    written = [piece for pieces in planned.values() for piece in pieces]
    assert len(written) == 4 == len(set(written))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=80), st.integers(1, 6))
def test_no_writer_has_more_than_the_mean_and_one_slice(sizes, writers):
    roles = [f"dp{i}" for i in range(writers)]
    planned = plan(offers(sizes, roles)).write
    loads = [sum(piece.nbytes for piece in planned[role]) for role in roles]
    assert sum(loads) == sum(sizes)
    assert max(loads) <= sum(sizes) / writers + max(sizes)


def test_loads_are_within_a_fifth_of_the_mean_where_sizes_allow():
    sizes = [1000 + 37 * i % 400 for i in range(60)]
    loads = [
        sum(piece.nbytes for piece in pieces)
        for pieces in plan(offers(sizes, ["dp0", "dp1", "dp2", "dp3"])).write.values()
    ]
    mean = sum(loads) / 4
    assert all(0.8 * mean <= load <= 1.2 * mean for load in loads)


def test_every_writer_computes_the_same_whatever_the_order_of_offers():
    held = offers([5, 3, 9, 9, 1], ["dp0", "dp1"])
    assert assign(held) == assign(dict(reversed(held.items())))


def test_what_differs_between_replicas_is_kept_for_each():
    held = {
        "dp0": (info("state/w", 4), info("state/bn", 2, "a"), info("roles/dp0/rng", 1)),
        "dp1": (info("state/w", 4), info("state/bn", 2, "b"), info("roles/dp1/rng", 1)),
    }
    assert divergent_keys(held) == {"state/bn"}
    keys = {role: {piece.key for piece in pieces} for role, pieces in assign(held).items()}
    assert {"roles/dp0/state/bn", "roles/dp0/rng"} <= keys["dp0"]
    assert {"roles/dp1/state/bn", "roles/dp1/rng"} <= keys["dp1"]
    assert ("state/w" in keys["dp0"]) != ("state/w" in keys["dp1"])


def receipt(role, held, mine, name=NAME, step=7):
    begin, placed = 8, []
    for each in mine:
        placed.append(PlacedSlice(each, name.shard(role), begin))
        begin += each.nbytes
    objects = (ObjectInfo(name.shard(role), begin, 8, "0" * 32),)
    documents = {"state": 1, "role": role}
    return Receipt(role, name.generation, name.c, step, held, tuple(placed), objects, documents)


def both():
    held = offers([5, 3, 9], ["dp0", "dp1"])
    planned = plan(held).write
    return {role: receipt(role, held[role], planned[role]) for role in held}


def test_receipts_that_agree_pass():
    found = both()
    check_receipts(found, ("dp0", "dp1"), NAME, 7)
    whole = unite(found, ("dp0", "dp1"))
    assert sorted(whole.tensors) == ["state/0", "state/1", "state/2"]
    assert set(whole.documents) == {("state", "*"), ("role", "dp0"), ("role", "dp1")}


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda found: found.pop("dp1"), "no receipt of dp1"),
        (lambda found: found.update(dp1=replace(found["dp0"])), "signed by dp0"),
        (lambda found: found.update(dp1=replace(found["dp1"], step=6)), "dp1 speaks of"),
        (lambda found: found.update(dp1=replace(found["dp1"], generation=2)), "dp1 speaks of"),
        (lambda found: found.update(dp1=replace(found["dp1"], c=2)), "dp1 speaks of"),
        (lambda found: found.update(dp1=replace(found["dp1"], placed=())), "did not write"),
        (lambda found: found.update(dp1=replace(found["dp1"], placed=found["dp0"].placed)), "did not write"),
        (lambda found: found.update(dp1=replace(found["dp1"], objects=found["dp0"].objects)), "claims"),
        (lambda found: found.update(dp9=found.pop("dp1")), "no receipt of dp1"),
    ],
)
def test_receipts_count_by_identity(spoil, words):
    found = both()
    spoil(found)
    with pytest.raises(CommitAborted, match=words):
        check_receipts(found, ("dp0", "dp1"), NAME, 7)


def test_gaps_overlaps_and_mixtures_are_named():
    def placed(*infos):
        return [PlacedSlice(each, "o", 0) for each in infos]

    halves = placed(info("w", 4, whole=8), info("w", 4, offset=4, whole=8))
    assert list(check_coverage(halves)) == ["w"]
    with pytest.raises(CoverageError, match="w"):
        check_coverage(halves[:1])
    with pytest.raises(CoverageError, match="w"):
        check_coverage([*halves, *placed(info("w", 2, offset=3, whole=8))])
    with pytest.raises(CoverageError, match="different"):
        check_coverage([halves[0], *placed(info("w", 5, offset=4, whole=9))])
