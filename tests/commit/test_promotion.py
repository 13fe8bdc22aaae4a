"""The journal learns of a copy when all of it is there, and never because somebody died."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from commit_harness import Store, lost_ack, model_at, new_run, request, start

from durable_core.commit import promotion
from durable_core.commit.claim import Claim, maintain
from durable_core.commit.collect import sweep
from durable_core.commit.effects import Effect, Get, PutIfAbsent
from durable_core.commit.journal import EMPTY, View, replay
from durable_core.commit.promotion import add_tier, announce, decode_copied, encode_copied
from durable_core.commit.save import save_coordinator, save_writer
from durable_core.commit.state import CheckpointInfo
from durable_core.errors import CommitAborted, DurableError, FormatError, TierUnavailable, UsageError
from durable_core.format import canonical, layout
from durable_core.format.record import Kind
from durable_core.testing.sim.content import slices_of
from durable_core.types import CheckpointState

ROLES = ("dp0", "dp1")
OBJECTS = ("a/0", "a/1")


def committed(store: Store) -> tuple[Claim, View, CheckpointInfo]:
    """A run of two writers with one checkpoint."""
    new_run(store)
    claim = start(store, roles=ROLES)
    model = model_at(1)
    both = [
        (
            save_coordinator(claim.view, request(claim.token, model, "dp0", ROLES)),
            slices_of(model, "dp0"),
            "dp0",
        ),
        (save_writer(claim.view, request(claim.token, model, "dp1", ROLES)), slices_of(model, "dp1"), "dp1"),
    ]
    outcome, _ = store.together(*both)
    assert not isinstance(outcome, DurableError), outcome
    view = outcome.view
    return claim, view, view.state.checkpoints[view.state.head]


@pytest.fixture
def store() -> Store:
    return Store()


def adding(view: View, info: CheckpointInfo, **changes):
    values = {
        "generation": 1, "roles": ROLES, "objects": OBJECTS, "launch_id": "L1", "seconds": 5.0, **changes
    }  # fmt: skip
    return add_tier(view, info.c, "remote", **values)


def say(store: Store, info: CheckpointInfo, role: str, *objects: str, generation: int = 1) -> None:
    store.run(announce(info, "remote", role, objects, generation=generation))


def tiers(store: Store) -> tuple[str, ...]:
    state = store.run(replay(EMPTY)).state
    return state.checkpoints[state.head].tiers


def test_all_shares_together_make_a_copy(store):
    _, view, info = committed(store)
    say(store, info, "dp0", "a/0")
    say(store, info, "dp1", "a/1")
    added = store.run(adding(view, info))
    assert added.added and tiers(store) == (*info.tiers, "remote")


def test_added_once(store):
    _, view, info = committed(store)
    say(store, info, "dp0", *OBJECTS)
    say(store, info, "dp1")
    view = store.run(adding(view, info)).view
    records = view.next_seq
    again = store.run(adding(view, info))
    assert again.added and again.view.next_seq == records


def test_who_has_everything_need_not_wait_for_who_has_nothing(store):
    _, view, info = committed(store)
    say(store, info, "dp0", *OBJECTS)
    before = store.clock
    assert store.run(adding(view, info)).added
    assert store.clock == before


def test_a_writer_that_is_dead_costs_the_copy_only(store):
    _, view, info = committed(store)
    say(store, info, "dp0", "a/0")
    before = store.clock
    added = store.run(adding(view, info))
    assert not added.added and "dp1" in added.reason
    assert 5.0 <= store.clock - before < 6.0
    assert tiers(store) == info.tiers
    say(store, info, "dp1", "a/1")
    assert store.run(adding(added.view, info)).added


def test_an_object_in_nobodys_share(store):
    _, view, info = committed(store)
    say(store, info, "dp0", "a/0")
    say(store, info, "dp1")
    added = store.run(adding(view, info))
    assert not added.added and "a/1" in added.reason


def test_what_an_older_generation_said_does_not_count(store):
    """Its shares were other ones, and the place may have been lost since."""
    _, view, info = committed(store)
    say(store, info, "dp0", *OBJECTS)
    assert not store.run(adding(view, info, generation=2)).added


@pytest.mark.parametrize("spoilt", [b"", b"{}", b"\xff", None])
def test_a_document_that_is_damaged_or_means_another_says_nothing(store, spoilt):
    _, view, info = committed(store)
    say(store, info, "dp0", *OBJECTS)
    key = next(key for key in store.objects if "/copied-" in key)
    if spoilt is None:
        other = decode_copied(store.objects[key], key=key)
        spoilt = encode_copied(promotion.Copied("disk", other.role, other.manifest, other.objects))
    store.objects[key] = spoilt
    assert not store.run(adding(view, info)).added


def test_retired_meanwhile(store):
    claim, view, info = committed(store)
    model = model_at(2)
    both = [
        (save_coordinator(view, request(claim.token, model, "dp0", ROLES)), slices_of(model, "dp0"), "dp0"),
        (save_writer(view, request(claim.token, model, "dp1", ROLES)), slices_of(model, "dp1"), "dp1"),
    ]
    view = store.together(*both)[0].view
    say(store, info, "dp0", *OBJECTS)
    store.run(maintain(view, Kind.CHECKPOINT_RETIRED, {"c": info.c, "reason": "old"}, "L1"))
    added = store.run(adding(view, info))
    assert not added.added
    assert added.view.state.checkpoints[info.c].state is CheckpointState.RETIRED
    gone = store.run(sweep(added.view))
    assert any("/copied-" in key for key in gone.deleted)


def test_announced_twice_is_once_and_with_other_objects_refused(store):
    _, _, info = committed(store)
    say(store, info, "dp0", "a/0")
    say(store, info, "dp0", "a/0")
    with pytest.raises(CommitAborted):
        say(store, info, "dp0", "a/1")


@pytest.mark.parametrize("applied", [False, True])
def test_an_announcement_whose_answer_is_lost(store, applied):
    _, view, info = committed(store)
    lost_ack(store, 0, applied=applied)
    say(store, info, "dp0", *OBJECTS)
    assert store.run(adding(view, info)).added


def test_a_home_that_is_away_for_a_moment(store):
    _, view, info = committed(store)
    say(store, info, "dp0", *OBJECTS)
    left = [3]

    def spoil(effect: Effect) -> None:
        if isinstance(effect, Get) and "/copied-" in effect.key and left[0]:
            left[0] -= 1
            raise TierUnavailable("away")

    store.spoil = spoil
    assert store.run(adding(view, info)).added


class Killed(BaseException):
    pass


def kills() -> Iterator[int]:
    yield from range(40)


def test_killed_anywhere_the_set_is_as_it_was_or_complete(store):
    """Killed before and after each write of the coordinator."""
    done = 0
    for after in (False, True):
        for nth in kills():
            store = Store()
            _, view, info = committed(store)
            say(store, info, "dp0", *OBJECTS)
            left = [nth]

            def spoil(
                effect: Effect, store: Store = store, left: list[int] = left, after: bool = after
            ) -> None:
                if isinstance(effect, PutIfAbsent):
                    left[0] -= 1
                    if left[0] < 0:
                        if after:
                            store.put(effect.key, effect.data)
                        raise Killed

            store.spoil = spoil
            try:
                store.run(adding(view, info))
            except Killed:
                store.spoil = lambda effect: None
                assert tiers(store) in (info.tiers, (*info.tiers, "remote"))
                assert store.run(adding(EMPTY, info, launch_id="L2", seconds=0.0)).added
                assert tiers(store) == (*info.tiers, "remote")
                done += 1
            else:
                break
    assert done >= 4


def test_names_of_documents():
    name = layout.checkpoint_name(1, 2, "0123abcd" * 4)
    key = name.copied("remote", 3, "dp0")
    parsed = layout.parse_checkpoint_key(key)
    assert parsed is not None and (parsed.name, parsed.what, parsed.role) == (name, "copied", "dp0")
    for tier in ("", "Remote", "a-b", "x" * 40):
        with pytest.raises(UsageError):
            name.copied(tier, 3, "dp0")


@pytest.mark.parametrize("change", [{"objects": [1]}, {"role": "-"}, {"manifest": "x"}, {"more": 1}])
def test_documents_are_not_believed(change):
    whole = {"v": 1, "tier": "remote", "role": "dp0", "manifest": "sha256:" + "0" * 64, "objects": []}
    assert decode_copied(canonical.dumps(whole), key="k").role == "dp0"
    with pytest.raises(FormatError):
        decode_copied(canonical.dumps({**whole, **change}), key="k")
