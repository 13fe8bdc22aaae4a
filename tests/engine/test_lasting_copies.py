"""What never changes beside what always does: second copies stay, and no save writes much for them."""

from __future__ import annotations

import random

import pytest
import torch
from incremental_subject import Run, same

from durable_core.commit import reuse
from durable_core.commit.collect import retire, sweep
from durable_core.commit.retention import Retention
from durable_core.engine import verify
from durable_core.engine.inspect import open_tier
from durable_core.state import slices as slicing
from durable_core.tier.memory import MemoryTier


@pytest.fixture
def run():
    run = Run(MemoryTier("home"), twins=True)
    yield run
    run.close()


def collect(run, keep_last):
    view = run.performer.run(retire(run.view, Retention(keep_last), launch_id="C")).view
    run.view = run.performer.run(sweep(view)).view


def slices(run):
    return [piece for entry in run.known.manifest.tensors.values() for piece in entry.slices]


def test_second_copies_are_written_once_beside_an_adapter_that_always_changes(run):
    """Of so many only one fits in a share at each save, which leaves nearly half of it unused."""
    count = 70
    state = {f"base{i:03}": torch.randn(1_000) for i in range(count)} | {"adapter": torch.randn(2_000)}
    full = run.save(state).bytes_written
    written = []
    for step in range(reuse.TWIN_AGE + count + 16):
        state["adapter"] += 1
        outcome = run.save(state)
        written.append(outcome.bytes_written)
        if step % 20 == 0:
            collect(run, 2)
    assert all(piece.twin for piece in slices(run) if "base" in piece.info.slice.key)
    headers = sum(2 * 8192 for _ in written)
    adapters = len(written) * 8_000
    assert sum(written) - headers - adapters <= count * 4_000, "no second copy was written twice"
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


@pytest.mark.parametrize("changed", [(), (3, 40)])
def test_no_save_writes_much_of_one_large_tensor_that_hardly_ever_changes(run, changed, monkeypatch):
    monkeypatch.setattr(slicing, "LEAST_BYTES", 1 << 16)
    state = {"embedding": torch.randn(4_096, 256), "adapter": torch.randn(1_000)}
    full = run.save(state).bytes_written
    written = []
    for step in range(reuse.TWIN_AGE + 80):
        state["adapter"] += 1
        if step in changed:
            state["embedding"][100 * step, 7] += 1
        written.append(run.save(state).bytes_written)
    assert max(written) <= full / (10 if changed else 20)
    entry = run.known.manifest.tensors["state/embedding"]
    assert all(piece.twin for piece in entry.slices), "also of what was patched"
    lost = {piece.object for piece in entry.slices}
    assert lost.isdisjoint(piece.twin.object for piece in entry.slices)
    for key in lost:
        run.tier.delete(key)
    assert same(run.read(run.view.state.head), state), "from the second copies alone"


@pytest.mark.parametrize("seed", range(3))
def test_whatever_changes_every_checkpoint_that_is_held_reads_back(run, seed):
    chance = random.Random(seed)
    torch.manual_seed(seed)
    state = {f"t{i}": torch.randn(chance.choice([10, 3_000, 40_000])) for i in range(8)}
    state["large"] = torch.randn(700, 1_000)
    saved = {}
    for _ in range(60):
        for key in chance.sample(sorted(state), chance.choice([0, 1, 1, 4])):
            tensor = state[key].view(-1)
            begin = chance.randrange(len(tensor))
            tensor[begin : begin + chance.choice([1, 2_000, len(tensor)])] += 1
        if chance.random() < 0.1:
            run.lineage.spare()
        saved[run.save(state).c] = {key: tensor.clone() for key, tensor in state.items()}
        collect(run, chance.randint(1, 4))
    held = [c for c in saved if run.view.state.checkpoints[c].usable]
    assert held and all(same(run.read(c), saved[c]) for c in held)
    assert not verify.verify(open_tier(run.tier)).findings
