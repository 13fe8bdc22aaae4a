"""What never changes beside what always does: second copies stay, and a small change costs a small write."""

from __future__ import annotations

import pytest
import torch
from incremental_subject import Run, same

from durable_core.commit import reuse
from durable_core.commit.collect import retire, sweep
from durable_core.commit.retention import Retention
from durable_core.engine import verify
from durable_core.engine.inspect import open_tier
from durable_core.tier.memory import MemoryTier


@pytest.fixture
def run():
    run = Run(MemoryTier("home"), twins=True)
    yield run
    run.close()


def pieces(run):
    return {key: entry.slices[0] for key, entry in run.known.manifest.tensors.items()}


def test_second_copies_are_written_once_beside_an_adapter_that_always_changes(run):
    state = {f"base{i:02}": torch.randn(1_000) for i in range(80)} | {"adapter": torch.randn(2_000)}
    full = run.save(state).bytes_written
    written = []
    for _ in range(reuse.TWIN_AGE + 96):
        state["adapter"] += 1
        outcome = run.save(state)
        written.append(outcome.bytes_written)
        view = run.performer.run(retire(run.view, Retention(2), launch_id="C")).view
        run.view = run.performer.run(sweep(view)).view
    found = pieces(run)
    assert all(found[f"state/base{i:02}"].twin for i in range(80))
    headers = sum(2 * 8192 for _ in written)
    adapters = len(written) * 8_000
    assert sum(written) - headers - adapters <= 80 * 4_000, "no second copy was written twice"
    assert written[-8:] == [min(written)] * 8
    assert sum(info.nbytes - info.header_bytes for info in run.known.manifest.objects) <= 2 * full
    assert same(run.read(outcome.c), state) and not verify.verify(open_tier(run.tier)).findings


def test_what_is_moved_out_of_a_dead_object_stays_where_it_goes(run):
    state = {"frozen": torch.randn(1_000), "adapter": torch.randn(20_000)}
    state["base"] = torch.randn(40_000)
    run.save({**state, "adapter": torch.randn(200_000)})
    written = []
    for _ in range(5):
        state["adapter"] += 1
        written.append(run.save(state).bytes_written)
    assert max(written[1:]) < 20_000 * 4 + 3 * 4096
    assert same(run.read(run.view.state.head), state)


@pytest.mark.parametrize("restarted", [False, True])
def test_one_element_of_a_frozen_tensor_costs_a_page_and_not_the_tensor(run, restarted):
    state = {"base": torch.randn(400_000), "adapter": torch.randn(10_000)}
    full = run.save(state).bytes_written
    written = []
    for step in range(6):
        state["adapter"] += 1
        if step in (0, 3):
            state["base"][1000 * step] = -state["base"][1000 * step]
        if restarted and step not in (0, 3):
            run.lineage.spare()
        outcome = run.save(state)
        written.append(outcome.bytes_written)
        assert same(run.read(outcome.c), state)
    assert max(written) <= full / 20
    assert 1 <= len(pieces(run)["state/base"].patches) <= 2
    assert not verify.verify(open_tier(run.tier)).findings


def test_a_patch_that_cannot_be_read_is_not_moved_and_the_slice_is_written(run):
    state = {"base": torch.randn(400_000), "adapter": torch.randn(10_000)}
    run.save(state)
    state["base"][7] += 1
    state["adapter"] += 1
    run.save(state)
    (patch,) = pieces(run)["state/base"].patches
    data = bytearray(run.tier.get(patch.object))
    data[patch.begin + patch.nbytes - 1] ^= 1
    run.tier.delete(patch.object)
    run.tier.write_object(patch.object, [data])
    for _ in range(2):
        state["adapter"] += 1
        outcome = run.save(state)
    assert not pieces(run)["state/base"].patches and same(run.read(outcome.c), state)


def test_second_copies_of_one_large_tensor_are_spread_over_many_saves(run):
    state = {"embedding": torch.randn(12_000, 512), "adapter": torch.randn(1_000)}
    full = run.save(state).bytes_written
    written = []
    for _ in range(reuse.TWIN_AGE + 80):
        state["adapter"] += 1
        written.append(run.save(state).bytes_written)
    entry = run.known.manifest.tensors["state/embedding"]
    assert all(piece.twin for piece in entry.slices)
    assert max(written) <= full / 20
    lost = {piece.object for piece in entry.slices}
    assert lost.isdisjoint(piece.twin.object for piece in entry.slices)
    for key in lost:
        run.tier.delete(key)
    assert same(run.read(run.view.state.head), state), "from the second copies alone"
