"""Elastic membership: refused unless everything supports it, and the global batch stays what it is."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from durable_core.data import DurableLoader
from durable_core.errors import UnsupportedError
from durable_core.launch.capabilities import allowed, batch_plan, obstacles
from durable_core.spec import CAPABILITIES, DataSpec, Elastic, Membership, RunSpec
from durable_core.types import Promise

STEP = 12  # samples of an optimizer step


def elastic(
    least: int, most: int, *, supports: Any = CAPABILITIES, uneven: str = "refuse", **changes: Any
) -> RunSpec:
    how = {"promise": Promise.EXACT_ORDER, "data": DataSpec(dataset_id="d", global_batch=STEP), **changes}
    return RunSpec(membership=Membership(elastic=Elastic(least, most, uneven, tuple(supports))), **how)


@pytest.mark.parametrize("missing", CAPABILITIES)
def test_one_missing_capability_refuses_the_range(missing: str) -> None:
    assert not obstacles(elastic(1, 4), now=4)
    found = obstacles(elastic(1, 4, supports=[c for c in CAPABILITIES if c != missing]), now=4)
    assert [one.capability for one in found] == [missing]


def test_a_range_of_one_size_and_other_contracts_need_no_capability() -> None:
    assert not obstacles(elastic(4, 4, supports=()), now=4)
    assert not obstacles(RunSpec(membership=Membership(fixed=4)), now=4) and not obstacles(RunSpec(), now=1)


def test_bits_and_a_batch_that_never_divides_stand_in_the_way() -> None:
    assert [one.capability for one in obstacles(elastic(1, 4, promise=Promise.BITWISE), now=4)] == ["promise"]
    data = DataSpec(dataset_id="d", global_batch=7)
    found = obstacles(elastic(2, 6, data=data), now=7)
    assert [one.capability for one in found] == ["global_batch"] and "2 to 6" in found[0].why
    assert not obstacles(elastic(2, 6, data=data, uneven="spread"), now=7)


def test_the_sizes_that_are_allowed_hold_the_global_batch() -> None:
    assert allowed(elastic(1, 8), 5) == (4, 3, 2, 1)
    assert allowed(elastic(1, 8, uneven="spread"), 5) == (5, 4, 3, 2, 1)
    assert allowed(elastic(6, 8), 5) == ()
    fixed = RunSpec(membership=Membership(fixed=4))
    assert allowed(fixed, 4) == (4,) and allowed(fixed, 3) == () and allowed(RunSpec(), 3) == ()


# --- the same samples in every step ----------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 7, 12])
@pytest.mark.parametrize("micro_batch", [1, 4, 12])
def test_every_number_of_workers_takes_the_same_samples_in_a_step(workers: int, micro_batch: int) -> None:
    plan = batch_plan(STEP, workers, micro_batch=micro_batch, uneven="spread")
    for step in range(3):
        taken = [at for share in plan.shares for at in share.positions(step, STEP)]
        assert taken == list(range(step * STEP, (step + 1) * STEP))
    assert all(max(share.micro_batches) <= micro_batch for share in plan.shares)
    assert plan.even is (STEP % workers == 0)


def test_1024_workers_become_1020() -> None:
    before = batch_plan(1024 * 1020, 1024, micro_batch=1020)
    after = batch_plan(1024 * 1020, 1020, micro_batch=1020)
    assert (before.accumulate, before.even) == (1, True)
    assert (after.accumulate, after.even, after.shares[0].micro_batches) == (2, True, (512, 512))
    with pytest.raises(UnsupportedError, match="does not divide"):
        batch_plan(4096, 1020, micro_batch=4)
    spread = batch_plan(4096, 1020, micro_batch=4, uneven="spread")
    assert sum(share.samples for share in spread.shares) == 4096
    assert {share.samples for share in spread.shares} == {4, 5} and spread.accumulate == 2


def test_a_batch_smaller_than_the_group_has_no_plan() -> None:
    with pytest.raises(UnsupportedError, match="no sample for each"):
        batch_plan(3, 4, micro_batch=1, uneven="spread")


def loaders(workers: int, state: Any = None) -> tuple[list[DurableLoader], int]:
    """The loaders of a group of ``workers`` as its plan has them, and the micro-batches of a step."""
    plan = batch_plan(STEP, workers, micro_batch=3)
    assert plan.even
    size, number = plan.shares[0].micro_batches[0], plan.accumulate
    made = [
        DurableLoader(
            list(range(61)), size, seed=5, replica=replica, replicas=workers, accumulate=number,
            promise="exact-order", dataset_id="counting", drop_last=True,
        )
        for replica in range(workers)
    ]  # fmt: skip
    for loader in made if state is not None else ():
        loader.load_state_dict(state)
    return made, number


def take(group: list[DurableLoader], number: int, steps: int) -> tuple[list[list[int]], Any]:
    """The ids of each step of all workers together, sorted, and the state after them."""
    iterators = [iter(loader) for loader in group]
    found = []
    for step in range(steps):
        ids: list[int] = []
        for loader, batches in zip(group, iterators, strict=True):
            ids += [i for batch in itertools.islice(batches, number) for i in batch.tolist()]
            loader.acknowledge(number, step=step)
        found.append(sorted(ids))
    return found, group[0].state_dict()


@pytest.mark.parametrize(("before", "after"), [(2, 1), (4, 3), (3, 4)])
@pytest.mark.filterwarnings("ignore:data. batches of")
def test_another_number_of_workers_goes_on_with_the_same_batches(before: int, after: int) -> None:
    whole, _ = take(*loaders(before), steps=4)
    first, state = take(*loaders(before), steps=2)
    second, _ = take(*loaders(after, state), steps=2)
    assert first + second == whole and all(len(ids) == STEP for ids in whole)
