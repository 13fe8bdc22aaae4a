"""Only what changed is written, and every checkpoint of a long chain restores bit for bit."""

from __future__ import annotations

import threading

import pytest
import torch
from incremental_subject import Pair, Run, same

from durable_core.commit import reuse
from durable_core.commit.claim import mark_corrupt
from durable_core.commit.collect import retire, sweep
from durable_core.commit.journal import replay
from durable_core.commit.request import SaveAborted
from durable_core.commit.retention import Retention
from durable_core.engine import verify
from durable_core.engine.inspect import open_tier
from durable_core.errors import CorruptError
from durable_core.state import changes
from durable_core.tier.memory import MemoryTier


@pytest.fixture
def tier():
    return MemoryTier("home")


def copied(state):
    return {key: tensor.clone() for key, tensor in state.items()}


def embedding(rows=4096, dim=64):
    return {f"emb.{part}": torch.randn(rows, dim) for part in ("weight", "exp_avg", "exp_avg_sq")}


def touch(state, share, generator):
    rows = state["emb.weight"].shape[0]
    ids = torch.randint(0, rows, (max(1, int(rows * share)),), generator=generator)
    for tensor in state.values():
        if tensor.dim() == 2 and tensor.shape[0] == rows:
            tensor[ids] += 1.0


def test_a_frozen_base_is_written_once(tier):
    run = Run(tier)
    state = {"base": torch.randn(400_000), "adapter": torch.randn(4_000)}
    first = run.save(state)
    for _ in range(5):
        state["adapter"] += 1
        outcome = run.save(state)
        assert outcome.bytes_written <= first.bytes_written / 20
        assert same(run.read(outcome.c), state)
    run.close()


def test_without_the_previous_slot_whole_slices_are_still_reused(tier):
    run = Run(tier, keep_previous=False)
    state = {"base": torch.randn(400_000), "adapter": torch.randn(4_000)}
    first = run.save(state)
    state["adapter"] += 1
    outcome = run.save(state)
    assert outcome.bytes_written <= first.bytes_written / 20 and same(run.read(outcome.c), state)
    run.close()


def test_a_sparse_update_is_a_patch_and_long_chains_restore(tier):
    run = Run(tier)
    generator = torch.Generator().manual_seed(0)
    state = {**embedding(), "head": torch.randn(64, 8)}
    full = run.save(state).bytes_written
    expected, written = {0: copied(state)}, []
    for _ in range(40):
        touch(state, 0.002, generator)
        state["head"] += 1
        outcome = run.save(state)
        written.append(outcome.bytes_written)
        expected[outcome.c] = copied(state)
    assert sorted(written)[len(written) // 2] <= full / 10
    assert max(written) <= 1.02 * full
    assert all(same(run.read(c), state) for c, state in expected.items())
    assert not verify.verify(open_tier(tier)).findings
    manifest = run.known.manifest
    pieces = [piece for entry in manifest.tensors.values() for piece in entry.slices]
    assert all(len(piece.patches) <= reuse.MAX_PATCHES for piece in pieces)
    assert any(piece.patches for piece in pieces)
    assert sum(info.nbytes for info in manifest.objects) <= 2 * manifest.logical_bytes
    run.close()


def test_dense_updates_cost_no_more_than_everything(tier):
    run = Run(tier)
    state = {"w": torch.randn(300_000), "m": torch.randn(300_000), "constant": torch.randn(10)}
    full = run.save(state).bytes_written
    for _ in range(4):
        state["w"] += 1
        state["m"] += 1
        assert run.save(state).bytes_written <= 1.02 * full
    assert len(run.known.manifest.objects) <= 2
    run.close()


def test_patched_slices_survive_retirement_and_collection_of_their_base(tier):
    run = Run(tier)
    generator = torch.Generator().manual_seed(1)
    state = embedding()
    for _ in range(12):
        touch(state, 0.001, generator)
        last = run.save(state).c
        done = run.performer.run(retire(run.view, Retention(2), launch_id="C"))
        run.view = run.performer.run(sweep(done.view)).view
        assert same(run.read(last), state)
    assert run.view.state.checkpoints[last].reuses[0] == 0
    run.close()


def damage(tier, key):
    """One bit, in the middle of the data."""
    data = bytearray(tier.get(key))
    data[len(data) * 3 // 4] ^= 1
    tier.delete(key)
    tier.write_object(key, [data])


def test_what_every_checkpoint_rests_on_has_a_second_copy(tier):
    run = Run(tier, twins=True)
    state = {f"base{i}": torch.randn(4_000) for i in range(8)} | {"adapter": torch.randn(100)}
    expected = {}
    for _ in range(reuse.TWIN_AGE + 8 * 8):
        state["adapter"] += 1
        expected[run.save(state).c] = copied(state)
    pieces = {key: entry.slices[0] for key, entry in run.known.manifest.tensors.items()}
    assert all(pieces[f"state/base{i}"].twin for i in range(8))
    shared = {pieces[f"state/base{i}"].object for i in range(8)}
    for key in shared:
        damage(tier, key)
    newest = max(expected)
    assert same(run.read(newest), expected[newest]), "read from the second copy"
    run.close()


def test_what_is_marked_damaged_is_written_again(tier):
    run = Run(tier)
    state = {"base": torch.randn(40_000), "adapter": torch.randn(400)}
    for _ in range(3):
        state["adapter"] += 1
        newest = run.save(state).c
    (piece,) = run.known.manifest.tensors["state/base"].slices
    damage(tier, piece.object)
    with pytest.raises(CorruptError):
        run.read(newest)
    how = {"launch_id": "S", "reason": "scrub", "objects": [piece.object]}
    run.performer.run(mark_corrupt(run.view, newest, **how))
    run.view = run.performer.run(replay(run.view))
    state["adapter"] += 1
    outcome = run.save(state)
    assert same(run.read(outcome.c), state)
    assert piece.object not in {info.key for info in run.known.manifest.objects}
    run.close()


def test_changed_pages_are_found_whatever_changed():
    generator = torch.Generator().manual_seed(2)
    for nbytes in (0, 1, 4095, 4096, 4097, 300_001):
        old = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator).numpy()
        for count in (0, 1, 7):
            new = old.copy()
            if nbytes:
                new[torch.randint(0, nbytes, (count,), generator=generator).numpy()] ^= 255
            runs = changes.runs(memoryview(old), memoryview(new), nbytes)
            patched = old.copy()
            for begin, length in runs:
                patched[begin : begin + length] = new[begin : begin + length]
            assert (patched == new).all()
    assert changes.runs(memoryview(b"a" * 9000), memoryview(b"b" * 9000), 8000) is None
    assert changes.runs(memoryview(b"a"), memoryview(b"ab"), 8000) is None


def test_a_slot_that_is_needed_is_given_up_and_the_save_is_whole(tier):
    run = Run(tier)
    generator = torch.Generator().manual_seed(3)
    state = embedding()
    run.save(state)
    assert run.pool.acquire() is not None and run.pool.acquire() is None, "held for comparison"
    assert run.lineage.spare() and not run.lineage.spare()
    touch(state, 0.001, generator)
    outcome = run.save(state)
    assert outcome.bytes_written > 0.9 * outcome.bytes and same(run.read(outcome.c), state)
    run.close()


@pytest.mark.parametrize("when", ["sampled", "runs"])
def test_a_slot_that_is_needed_is_given_up_in_the_middle_of_comparing(tier, monkeypatch, when):
    """The training thread wants it while the writer's looks at it: it waits for one slice, and no longer."""
    run = Run(tier)
    generator = torch.Generator().manual_seed(6)
    state = {**embedding(), "frozen": torch.randn(8192, 96)}
    run.save(state)
    touch(state, 0.001, generator)
    given: list[bool] = []
    taker = threading.Thread(target=lambda: given.append(run.lineage.spare()))
    compare = getattr(changes, when)

    def wanted(*arguments):
        if not taker.ident:
            taker.start()
        assert not given, "it was taken away while it was looked at"
        return compare(*arguments)

    write = tier.write_object

    def after_the_taker(key, parts):
        taker.join(60)
        return write(key, parts)

    monkeypatch.setattr(changes, when, wanted)
    monkeypatch.setattr(tier, "write_object", after_the_taker)
    outcome = run.save(state)
    assert len(given) == 1 and same(run.read(outcome.c), state)  # False: it came when the slot was free again
    assert run.pool.acquire() is not None
    assert outcome.bytes_written < outcome.bytes, "what did not change is left out all the same"
    run.close()


def test_after_a_save_that_failed_the_last_commit_is_still_followed(tier, monkeypatch):
    run = Run(tier)
    generator = torch.Generator().manual_seed(4)
    state = embedding()
    run.save(state)
    touch(state, 0.001, generator)
    with monkeypatch.context() as patch:
        patch.setattr(tier, "size", lambda key: 0)
        with pytest.raises(SaveAborted) as caught:
            run.save(state)
    run.view = caught.value.view
    outcome = run.save(state)
    assert same(run.read(outcome.c), state)
    run.close()


def test_two_writers_patch_what_is_each_ones_own(tier):
    pair = Pair(tier)
    generator = torch.Generator().manual_seed(5)
    shared = embedding()
    own = [{"bn": torch.randn(4096, 16)} for _ in pair.roles]
    for step in range(6):
        outcome = pair.save([{**shared, **each} for each in own])
        assert (outcome.bytes_written <= outcome.bytes / 10) == (step > 0)
        for role, each in zip(pair.roles, own, strict=True):
            assert same(pair.read(outcome.c, role), {**shared, **each})
        touch(shared, 0.001, generator)
        for each in own:
            each["bn"][step] += 1
    manifest = pair.manifest(outcome.c)
    for role in pair.roles:
        assert manifest.tensors[f"roles/{role}/state/bn"].slices[0].patches
    assert not verify.verify(open_tier(tier)).findings
    pair.close()
