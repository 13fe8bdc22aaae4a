"""A run of checkpoints that share objects, copies of it in a second place, and the fate of a flipped bit."""

from __future__ import annotations

import functools

import pytest
import torch
from checkpoint_subject import DISK, REMOTE, flipped, spoil
from incremental_subject import Run, same

from durable_core.engine import restore, verify
from durable_core.engine.copies import Fault, Place, Sources, TierSource
from durable_core.engine.inspect import Reader, open_tier
from durable_core.engine.promote import promote
from durable_core.engine.repair import Outcome, lasting_copies, repair, scrub
from durable_core.engine.transfer import Inventory
from durable_core.errors import ObjectNotFoundError
from durable_core.tier.memory import MemoryTier

State = dict[str, torch.Tensor]


def saved(tier: MemoryTier) -> tuple[Reader, dict[int, State]]:
    """A reader, and the state of every checkpoint: a frozen part, one that changes, and sparse rows."""
    run = Run(tier)
    state = {"frozen": torch.randn(5000), "w": torch.randn(3000), "rows": torch.randn(4096, 64)}
    expected: dict[int, State] = {}
    for step in range(6):
        state["w"] += 1
        state["rows"][step * 7] += 1
        outcome = run.save(state)
        expected[outcome.c] = {key: tensor.clone() for key, tensor in state.items()}
    run.close()
    return open_tier(tier), expected


def held(reader: Reader) -> Inventory:
    return Inventory(reader.manifest(info) for info in reader.retained())


def faults(place: Place, inventory: Inventory) -> list[Fault]:
    return [fault for found in scrub([place], inventory) for fault in found.faults]


def restored(reader: Reader, c: int, *places: Place) -> tuple[State, tuple[Fault, ...]]:
    info = reader.checkpoint(c)
    sources = Sources([TierSource(place) for place in places])
    found = restore.read(reader.tier, info.manifest, info.manifest_digest, "dp0", sources)
    return found.state, found.faults


def test_every_checkpoint_comes_back_from_the_copies_alone() -> None:
    home = MemoryTier()
    reader, expected = saved(home)
    inventory = held(reader)
    assert any(len(manifest.reuses) > 1 for manifest in map(reader.manifest, reader.retained()))
    remote = Place("remote", MemoryTier(), REMOTE)
    assert promote([Place("disk", home, DISK)], remote, inventory.contents, inventory).complete
    for key in inventory.contents:
        home.delete(key)  # the documents stay at home
    for c, state in expected.items():
        assert same(restored(reader, c, remote)[0], state)


def test_a_copy_is_made_object_by_object_and_for_all_who_share_it() -> None:
    """Promoted one checkpoint at a time, as they are committed: later ones copy only what is new."""
    home = MemoryTier()
    reader, expected = saved(home)
    inventory = held(reader)
    disk, remote = Place("disk", home, DISK), Place("remote", MemoryTier(), REMOTE)
    copied: list[str] = []
    for info in sorted(reader.retained(), key=lambda info: info.c):
        keys = [each.key for each in reader.manifest(info).objects]
        copied += promote([disk], remote, keys, inventory).copied
    assert len(copied) == len(set(copied)) == len(inventory.contents)
    assert faults(remote, inventory) == []
    assert all(same(restored(reader, c, remote)[0], state) for c, state in expected.items())


def test_a_flipped_bit_anywhere_is_found_stepped_around_and_repaired() -> None:
    home = MemoryTier()
    reader, expected = saved(home)
    inventory = held(reader)
    disk, remote = Place("disk", home, DISK), Place("remote", MemoryTier(), REMOTE)
    promote([disk], remote, inventory.contents, inventory)
    copies = functools.partial(lasting_copies, places=[disk, remote], inventory=inventory)
    assert set(copies(scrub([disk, remote], inventory)).values()) == {2}
    for key, contents in inventory.contents.items():
        each = contents.stored[-1].extent
        spoil(home, key, flipped(home.get(key), each.begin + each.nbytes // 2))
        found = faults(disk, inventory)
        assert [(fault.object, fault.kind) for fault in found] == [(key, "corrupt")]
        standing = len(inventory.same(contents.stored[-1]))  # what was moved is still where it was, too
        assert copies(scrub([disk, remote], inventory))[key] == min(2, 2 * standing - 1)
        assert {finding.key for finding in verify.verify(reader).findings} == {key}
        assert all(same(restored(reader, c, disk, remote)[0], state) for c, state in expected.items())
        assert [each.outcome for each in repair(found, [disk, remote], inventory)] == [Outcome.REPAIRED]
        assert not verify.verify(reader).findings


def test_without_a_second_copy_each_checkpoint_that_needs_it_says_so() -> None:
    home = MemoryTier()
    reader, expected = saved(home)
    inventory = held(reader)
    disk = Place("disk", home, DISK)
    shared = min(inventory.contents)
    spoil(home, shared, None)
    assert lasting_copies(scrub([disk], inventory), [disk], inventory)[shared] == 0
    for info in reader.retained():
        if shared in {each.key for each in reader.manifest(info).objects}:
            with pytest.raises(ObjectNotFoundError, match=shared):
                restored(reader, info.c, disk)
        else:
            assert same(restored(reader, info.c, disk)[0], expected[info.c])
    assert [each.outcome for each in repair(faults(disk, inventory), [disk], inventory)] == [Outcome.LOST]
