"""Which snapshots of a dead generation are adopted, and what the journal says of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from commit_harness import DIGEST, Store, model_at, new_run, request, start

from durable_core.commit import ending
from durable_core.commit.adopt import UNTRUSTED, Adoption, Declined, Replaced, Sight, adopt, choose
from durable_core.commit.claim import Choice, claim_generation, mark_corrupt
from durable_core.commit.effects import PutIfAbsent
from durable_core.commit.journal import EMPTY, AppendInDoubt, replay
from durable_core.commit.request import SaveAborted
from durable_core.commit.save import save_coordinator, save_writer
from durable_core.errors import Fenced, InDoubt, UsageError
from durable_core.format.seal import Seal
from durable_core.testing.sim import content

PAIR = ("dp0", "dp1")
OLD = Replaced("run", 3, "L1", PAIR, head=6, head_step=52, anchors={4: 40, 5: 50, 6: 52})


def sight(role="dp0", step=53, **changes):
    values = {
        "run_id": "run",
        "generation": 3,
        "launch_id": "L1",
        "role": role,
        "roles": PAIR,
        "step": step,
        "head": 6,
        "after": 52,
        "digests": {"state/w": f"w{step}"},
        "content": f"{role}@{step}",
    }
    return Sight(**{**values, **changes})


def both(step=53, **changes):
    return [sight("dp0", step, **changes), sight("dp1", step, **changes)]


def declined(sights, replaced=OLD, **how):
    found = choose(replaced, sights, **how)
    assert isinstance(found, Declined), found
    return " | ".join((found.reason, *found.passed))


# --- the decision ----------------------------------------------------------------------------


def test_the_newest_step_that_every_writer_sealed():
    found = choose(OLD, [*both(53), *both(54), sight("dp0", 55)])
    assert isinstance(found, Adoption)
    assert (found.generation, found.step, found.head, found.after) == (3, 54, 6, 52)
    assert {role: [s.step for s in held] for role, held in found.sights.items()} == {
        "dp0": [54],
        "dp1": [54],
    }
    assert found.passed == ("step 55: not sealed by dp1",) and "54" in found.reason


def test_copies_of_one_snapshot_are_alternatives():
    peer = sight("dp1", source="peer", head=5, after=50)
    found = choose(OLD, [*both(), peer])
    assert isinstance(found, Adoption) and [s.source for s in found.sights["dp1"]] == ["", "peer"]


@pytest.mark.parametrize("head, after", [(6, 52), (5, 50), (4, 40)])
def test_a_writer_need_not_have_heard_of_the_newest_commit(head, after):
    """c6 was committed by the generation itself, so what it trained next continues it all the same."""
    found = choose(OLD, [sight("dp0"), sight("dp1", head=head, after=after)])
    assert isinstance(found, Adoption) and (found.head, found.after) == (6, 52)


def test_before_the_first_commit_of_a_run():
    new = Replaced("run", 1, "L1", PAIR, None, None, {None: None})
    assert isinstance(choose(new, both(0, generation=1, head=None, after=None)), Adoption)
    assert "no commit of generation 1" in declined(both(1, generation=1, head=0, after=0), new)


@pytest.mark.parametrize(
    "sights, why",
    [
        ([], "c6 stays the newest"),
        ([sight("dp0")], "not sealed by dp1"),
        ([sight("dp0", 53), sight("dp1", 54)], "step 53: not sealed by dp1"),
        (both(run_id="other"), "of run other"),
        (both(generation=2), "sealed under generation 2"),
        (both(generation=4), "sealed under generation 4"),
        (both(launch_id="L2"), "of launch L2"),
        (both(52), "c6 is at step 52"),
        (both(51, head=5, after=50), "c6 is at step 52"),
        (both(head=7, after=53), "no commit of generation 3"),
        (both(head=3, after=30), "no commit of generation 3"),
        (both(head=None, after=None), "no commit of generation 3"),
        (both(head=5, after=51), "no commit of generation 3"),
        (both(roles=("dp0", "dp1", "dp9")), "its writers are dp0, dp1, dp9"),
        ([*both(), sight("dp9", roles=("dp0", "dp1", "dp9"))][2:], "its writers are"),
        ([sight("dp0"), sight("dp1", digests={"state/w": "x"})], "state/w differs between dp0 and dp1"),
        ([*both(), sight("dp1", content="x")], "dp1 has sealed it more than once, differently"),
        ([sight("dp0", adopted=2), sight("dp1")], "more than once|a copy of the generation before"),
        (both(head=5, after=50, adopted=2), "which c6 does not continue"),
    ],
)
def test_what_is_refused(sights, why):
    text = declined(sights)
    assert any(part in text for part in why.split("|")), text


def test_a_refused_step_does_not_hide_an_older_one():
    found = choose(OLD, [*both(53), sight("dp0", 54), sight("dp1", 54, digests={"state/w": "x"})])
    assert isinstance(found, Adoption) and found.step == 53 and "state/w differs" in found.passed[0]


def test_a_copy_may_be_adopted_again_while_its_generation_committed_nothing():
    idle = replace(OLD, anchors={6: 52})
    assert isinstance(choose(idle, both(adopted=2)), Adoption)


@pytest.mark.parametrize("reason", sorted(UNTRUSTED))
def test_no_memory_after_numeric_or_integrity_trouble(reason):
    assert reason in declined(both(), reason=reason)
    assert isinstance(choose(OLD, both(), reason="F1"), Adoption)


def test_a_sight_is_what_a_seal_says():
    infos = content.describe(content.slices_of(model_at(3), "dp1"))
    seal = Seal("run", 3, "L1", "dp1", PAIR, 53, 6, 52, infos, {"documents": {"role": 1}}, b"rows")
    seen = Sight.of(seal, alike=lambda key: key in ("state/w", "state/b"), source="slot 1")
    (weight,) = (info for info in infos if info.slice.key == "state/w")
    assert seen.digests.keys() == {"state/w[0]", "state/b[0]"} and seen.digests["state/w[0]"] == weight.xxh3
    assert seen.source == "slot 1" and seen.adopted is None and (seen.head, seen.after) == (6, 52)
    assert Sight.of(replace(seal, head=5, after=50), alike=lambda key: False).content == seen.content
    copy = replace(seal, body={**seal.body, "adopted": 2})
    assert Sight.of(copy, alike=lambda key: False).adopted == 2
    for other in (replace(seal, infos=infos[1:]), replace(seal, body={"documents": {"role": 2}})):
        assert Sight.of(other, alike=lambda key: False).content != seen.content


# --- what was replaced, by the journal -------------------------------------------------------


@pytest.fixture
def store():
    store = Store()
    new_run(store)
    return store


def saved(store, claim, step, role="dp0", roles=("dp0",), **changes):
    model = model_at(step)
    program = save_coordinator(claim.view, request(claim.token, model, role, roles, **changes))
    outcome = store.run(program, content.slices_of(model, role))
    return replace(claim, view=outcome.view)


def test_replaced_is_what_the_record_of_the_claim_found(store):
    first = start(store)
    assert Replaced.by(first).bar == "no generation has been replaced"
    first = saved(store, saved(store, first, 0), 2)
    second = start(store)
    found = Replaced.by(second)
    assert (found.generation, found.launch_id, found.members) == (1, "L1", ("dp0",))
    assert (found.head, found.head_step, found.bar) == (1, 2, "")
    assert found.anchors == {1: 2, 0: 0, None: None}
    third = start(store, "L2")
    assert Replaced.by(third).anchors == {1: 2} and Replaced.by(third).generation == 2


def test_a_commit_that_lands_before_the_claim_counts(store):
    first = saved(store, start(store), 0)
    seen = store.run(replay(EMPTY))
    saved(store, first, 3)
    late = store.run(replay(seen))
    assert late.state.head_step == 3
    assert Replaced.by(start(store)).head_step == 3


def bars(store):
    return Replaced.by(start(store)).bar


def test_a_step_back_adopts_nothing(store):
    first = saved(store, saved(store, start(store), 0), 2)
    store.run(mark_corrupt(first.view, 1, launch_id="C", reason="scrub"))
    assert bars(store) == "the new generation goes back to c0, behind c1"


def test_an_explicit_choice_of_an_older_one_adopts_nothing(store):
    saved(store, saved(store, start(store), 0), 2)
    claim = start(store, choose=lambda state: Choice(0, "asked for"))
    assert "behind c1" in Replaced.by(claim).bar


def test_other_roles_adopt_nothing(store):
    saved(store, start(store), 0)
    assert "the roles were dp0 and are dp0, dp1" in Replaced.by(start(store, roles=PAIR)).bar


def test_a_generation_that_ended_with_the_run_leaves_nothing(store):
    first = saved(store, start(store), 2)
    view = store.run(ending.succeed(first.view, first.token, c=0, target=2))
    store.run(ending.extend(view, launch_id="L1", target=4))
    assert "ended with the run" in bars(store)


def test_a_fork_adopts_nothing(store):
    first = saved(store, start(store), 2)
    store.run(ending.fork(first.view, launch_id="L1", spec={}, spec_digest=DIGEST, diff=[], origin=0))
    claim = start(store)
    assert "a fork starts from" in Replaced.by(claim).bar
    with pytest.raises(SaveAborted, match="a fork starts from"):
        store.run(adopt(claim.view, request(claim.token, model_at(3), adopted=1)))
    assert Replaced.by(start(store, "L2")).bar == ""


@pytest.mark.parametrize("failure, barred", [("F13", True), ("F10", False)])
def test_reported_corruption_bars_adoption(store, failure, barred):
    first = saved(store, start(store), 2)
    store.run(
        ending.record_failure(
            first.view, first.token, failure_class=failure, signature="", evidence=None, step=2
        )
    )
    assert bool(bars(store)) is barred
    assert bars(store) == ""  # the next claim replaces a generation that reported nothing


# --- the adoption ----------------------------------------------------------------------------


def test_an_adoption_is_an_ordinary_checkpoint_that_says_so(store):
    saved(store, start(store), 0)
    claim = start(store)
    outcome = store.run(
        adopt(claim.view, request(claim.token, model_at(3), adopted=1)), content.slices_of(model_at(3), "dp0")
    )
    info = outcome.view.state.checkpoints[outcome.c]
    assert (info.step, info.parent, info.generation, info.adopted) == (3, 0, 2, 1)
    assert outcome.view.voids == () and outcome.view.state.head == info.c


def test_two_writers_adopt_together(store):
    claim = start(store, roles=PAIR)
    later = start(store, roles=PAIR)
    model = model_at(3)
    results = store.together(
        *(
            (
                adopt(later.view, request(later.token, model, role, PAIR, adopted=1)),
                content.slices_of(model, role),
                role,
            )
            for role in PAIR
        )
    )
    assert [result.step for result in results] == [3, 3]
    assert claim.token.generation == 1


def test_a_fenced_writer_cannot_adopt(store):
    saved(store, start(store), 0)
    claim = start(store)
    start(store, "L2")
    with pytest.raises(Fenced):
        store.run(adopt(claim.view, request(claim.token, model_at(3), adopted=1)))


@pytest.mark.parametrize("adopted", [0, 1, 3])
def test_only_the_generation_directly_before_is_adopted(store, adopted):
    saved(store, start(store), 0)
    start(store)
    claim = start(store)
    with pytest.raises(SaveAborted, match="only generation 2 has been replaced"):
        store.run(adopt(claim.view, request(claim.token, model_at(3), adopted=adopted)))


def test_a_generation_that_has_trained_adopts_nothing(store):
    saved(store, start(store), 0)
    claim = saved(store, start(store), 2)
    with pytest.raises(SaveAborted, match="has committed c1 already"):
        store.run(adopt(claim.view, request(claim.token, model_at(3), adopted=1)))


def test_nor_one_that_has_only_tried_to_save(store):
    saved(store, start(store), 0)
    claim = start(store)
    with pytest.raises(SaveAborted):
        saved(store, claim, 1, roles=PAIR)  # nobody else is there
    with pytest.raises(SaveAborted, match="a step of its own"):
        store.run(adopt(claim.view, request(claim.token, model_at(3), adopted=1)))


def given_up(store, claim, step):
    with pytest.raises(SaveAborted):
        store.run(
            adopt(claim.view, request(claim.token, model_at(step), "dp0", PAIR, adopted=1)),
            content.slices_of(model_at(step), "dp0"),
        )
    return replace(claim, view=store.run(replay(claim.view)))


def test_an_adoption_given_up_may_be_tried_again(store):
    saved(store, start(store), 0)
    claim = given_up(store, start(store), 3)
    outcome = store.run(
        adopt(claim.view, request(claim.token, model_at(2), adopted=1)), content.slices_of(model_at(2), "dp0")
    )
    assert outcome.step == 2


def test_writers_do_not_take_an_adoption_given_up_for_their_save(store):
    """Training began before the step of the adoption: its number must not stand for a later save."""
    start(store, roles=PAIR)
    claim = given_up(store, start(store, roles=PAIR), 3)
    for step in (2, 3):
        model = model_at(step)
        programs = [
            (
                program(claim.view, request(claim.token, model, role, PAIR)),
                content.slices_of(model, role),
                role,
            )
            for program, role in ((save_writer, "dp1"), (save_coordinator, "dp0"))
        ]
        assert [result.step for result in store.together(*programs)] == [step, step]


@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_answer_for_the_commit_is_pursued(store, applied):
    saved(store, start(store), 0)
    claim = start(store)
    commits = []

    def spoil(effect):
        if isinstance(effect, PutIfAbsent) and b"checkpoint.committed" in effect.data:
            commits.append(effect)
            if len(commits) <= 6:  # more than one append attempts
                if applied and len(commits) == 6:
                    store.put(effect.key, effect.data)
                raise InDoubt("no answer")

    store.spoil = spoil
    outcome = store.run(
        adopt(claim.view, request(claim.token, model_at(3), adopted=1)), content.slices_of(model_at(3), "dp0")
    )
    assert outcome.step == 3 and outcome.view.state.head == outcome.c and len(commits) >= 6


def test_a_doubt_that_stays_is_no_leave_to_train(store):
    saved(store, start(store), 0)
    claim = start(store)

    def spoil(effect):
        if isinstance(effect, PutIfAbsent) and b"checkpoint.committed" in effect.data:
            raise InDoubt("no answer")

    store.spoil = spoil
    with pytest.raises(AppendInDoubt):
        store.run(
            adopt(claim.view, request(claim.token, model_at(3), adopted=1)),
            content.slices_of(model_at(3), "dp0"),
        )


def test_a_doubt_about_the_number_only_gives_the_adoption_up(store):
    saved(store, start(store), 0)
    claim = start(store)
    sent = []

    def spoil(effect):
        if isinstance(effect, PutIfAbsent) and b"checkpoint.allocated" in effect.data:
            sent.append(effect)
            if len(sent) <= 5:
                raise InDoubt("no answer")

    store.spoil = spoil
    with pytest.raises(SaveAborted, match="did not arrive") as caught:
        store.run(adopt(claim.view, request(claim.token, model_at(3), adopted=1)))
    assert caught.value.view.doubt is None and caught.value.view.state.head == 0


def test_an_ordinary_save_is_no_adoption(store):
    claim = start(store)
    with pytest.raises(UsageError, match="adopted"):
        store.run(adopt(claim.view, request(claim.token, model_at(1))))


def test_a_doubt_is_settled_before_a_claim_chooses(store):
    """Otherwise the claim would replace another state than the one it looked at."""
    first = saved(store, start(store), 0)

    def spoil(effect):
        if isinstance(effect, PutIfAbsent) and b"checkpoint.committed" in effect.data:
            raise InDoubt("no answer")

    store.spoil = spoil
    with pytest.raises(AppendInDoubt) as caught:
        saved(store, first, 2)
    store.spoil = lambda effect: None
    claim = store.run(claim_generation(caught.value.view, launch_id="L1", members=("dp0",)))
    assert claim.before.head == 1 and claim.restore_point.c == 1
    assert (Replaced.by(claim).head_step, Replaced.by(claim).bar) == (2, "")
