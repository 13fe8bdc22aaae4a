"""What is not written again: decided alike by all, never dangling, never all in one damaged place."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from commit_harness import Store, model_at, new_run, request, start
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_core.commit import effects as fx
from durable_core.commit import reuse
from durable_core.commit.claim import mark_corrupt
from durable_core.commit.collect import retire, sweep
from durable_core.commit.journal import EMPTY, replay
from durable_core.commit.plan import agreed, check_receipts, object_of, patched, plan, unite
from durable_core.commit.retention import Retention
from durable_core.commit.reuse import Base
from durable_core.commit.save import save_coordinator, save_writer
from durable_core.errors import CommitAborted
from durable_core.format import digests, layout
from durable_core.format import manifest as manifests
from durable_core.format.layout import CheckpointName
from durable_core.format.manifest import Manifest, TensorEntry
from durable_core.format.receipt import Receipt
from durable_core.testing.sim import content
from durable_core.types import CheckpointState, Extent, ObjectInfo, PlacedSlice, Promise, SliceInfo, SliceKey

SHA = "sha256:" + "1" * 64
NOW = 9


def name_of(c):
    return CheckpointName(1, c, f"{c:08x}")


def info(key, n, version=0):
    digest = digests.xxh3(f"{key}{version}".encode())
    return SliceInfo(SliceKey(key, (0,), (n,)), "U8", (n,), n, digest, digest[:8])


def lies(what, c, begin=8):
    return PlacedSlice(what, name_of(c).shard("dp0"), begin)


def base_of(pieces, sizes=None, **how):
    """A parent whose objects are as large as given, or as their slices."""
    used = {}
    for piece in pieces:
        for extent in piece.extents:
            used[extent.object] = used.get(extent.object, 0) + extent.nbytes
    objects = tuple(ObjectInfo(k, 8 + (sizes or {}).get(k, n), 8, "0" * 32) for k, n in used.items())
    tensors = {p.info.slice.key: TensorEntry("U8", p.info.global_shape, (p,)) for p in pieces}
    manifest = Manifest(
        run_id="r", generation=1, c=NOW - 1, step=1, parent=None, spec_digest=SHA, promise=Promise.BITWISE,
        cursor=None, roles=("dp0",), objects=objects, tensors=tensors, documents={}, receipts={"dp0": SHA},
    )  # fmt: skip
    return Base(manifest, SHA, NOW, **{"twins": False, **how})


def test_what_is_equal_is_kept_where_it_lies():
    a, b = info("a", 50), info("b", 40)
    found = reuse.reuse([a, info("b", 40, 1)], base_of([lies(a, 8), lies(b, 8, 58)]))
    assert set(found.kept) == {a.slice} and set(found.patchable) == {b.slice} and not found.moved


@pytest.mark.parametrize("change", [{"dtype": "I8"}, {"crc32c": "0" * 8}, {"global_shape": (60,)}])
def test_equal_means_in_every_respect(change):
    a = info("a", 50)
    found = reuse.reuse([a._replace(**change)], base_of([lies(a, 8)]))
    assert not found.kept


def test_a_mostly_dead_object_is_given_up():
    a = info("a", 49)
    found = reuse.reuse([a], base_of([lies(a, 3)], {name_of(3).shard("dp0"): 100}))
    assert not found.kept and "49 of 100" in found.moved[a.slice]
    assert reuse.reuse([a], base_of([lies(a, 3)], {name_of(3).shard("dp0"): 98})).kept


@pytest.mark.parametrize("mark", [name_of(3).shard("dp0"), name_of(3).prefix])
def test_nothing_marked_damaged_is_kept_or_patched(mark):
    a, b = info("a", 50), info("b", 50)
    base = base_of([lies(a, 3), lies(b, 3, 58)], distrusted=frozenset({mark}))
    found = reuse.reuse([a, info("b", 50, 1)], base)
    assert not found.kept and not found.patchable and "damaged" in found.moved[a.slice]


def test_no_more_checkpoints_are_referred_to_than_allowed(monkeypatch):
    monkeypatch.setattr(reuse, "MAX_OWNERS", 3)
    infos = [info(f"t{c}", 10 + c) for c in range(6)]
    found = reuse.reuse(infos, base_of([lies(each, c) for c, each in enumerate(infos)]))
    assert {piece.object for piece in found.kept.values()} == {name_of(c).shard("dp0") for c in (3, 4, 5)}
    assert len(found.moved) == 3


def test_of_two_copies_the_one_in_a_dead_object_is_let_go():
    a = info("a", 40)
    old, new = name_of(1).shard("dp0"), name_of(2).shard("dp0")
    piece = lies(a, 1)._replace(twin=Extent(new, 16, 40, a.xxh3))
    found = reuse.reuse([a], base_of([piece], {old: 100}))
    assert found.kept[a.slice] == PlacedSlice(a, new, 16)
    found = reuse.reuse([a], base_of([piece], {new: 100}))
    assert found.kept[a.slice] == PlacedSlice(a, old, 8)
    assert reuse.reuse([a], base_of([piece], {old: 100, new: 100})).moved


def test_second_copies_take_a_fair_share_and_everything_gets_one():
    pieces = {f"t{i}": lies(info(f"t{i}", 100), 0, 8 + 100 * i) for i in range(20)}
    infos = [piece.info for piece in pieces.values()]
    saves = 0
    while any(piece.twin is None for piece in pieces.values()):
        base = replace(base_of(list(pieces.values()), twins=True), c=NOW + saves)
        due = reuse.reuse(infos, base).twins
        assert len(due) <= 1, "each is larger than the share"
        for key in due:
            twin = Extent(name_of(NOW + saves).shard("dp0"), 8, 100, pieces[key.key].info.xxh3)
            pieces[key.key] = pieces[key.key]._replace(twin=twin)
        saves += 1
    assert saves <= 20 * 100 / (2000 * reuse.TWIN_SHARE) + 10
    young = lies(info("y", 100), NOW - 1)
    assert not reuse.reuse([young.info], base_of([young], twins=True)).twins


def test_worn_slices_are_written_whole_one_after_the_other():
    base = info("e", 1000)
    patches = tuple(Extent(name_of(c).shard("dp0"), 8, 600, "0" * 32) for c in (7,))
    worn = patched(info("e", 1000, 1), lies(base, 3), patches[0])
    assert 0 < reuse.patch_room(worn) < 600
    turns = sum(
        worn.info.slice not in reuse.reuse([info("e", 1000, 2)], replace(base_of([worn]), c=c)).patchable
        for c in range(1, 101)
    )
    assert turns == 100 * reuse.WHOLE_SHARE
    full = worn._replace(patches=patches * 2)
    assert reuse.patch_room(full) == 0
    assert not reuse.reuse([info("e", 1000, 2)], base_of([full])).patchable


def test_what_was_patched_and_changes_no_more_is_written_whole_and_then_a_second_time(monkeypatch):
    monkeypatch.setattr(reuse, "TWIN_SHARE", 1)
    now = info("e", 1000, 1)
    piece = patched(now, lies(info("e", 1000), 3), Extent(name_of(8).shard("dp0"), 8, 60, "0" * 32))
    base = base_of([piece], twins=True)
    assert reuse.reuse([now], base).kept, "it may change again"
    old = replace(base, c=8 + reuse.TWIN_AGE)
    found = reuse.reuse([now], old)
    assert set(found.moved) == {now.slice} and found.lasting(now.slice) and not found.kept
    assert not reuse.reuse([now], replace(old, twins=False)).moved
    whole = replace(base_of([lies(now, 12)], twins=True), c=12 + reuse.TWIN_AGE)
    assert reuse.reuse([now], whole).twins == {now.slice}


def test_what_has_not_changed_is_written_apart_from_what_has(monkeypatch):
    monkeypatch.setattr(reuse, "TWIN_SHARE", 1)
    a, b, c = (info(f"state/{each}", 50) for each in "abc")
    base = base_of([lies(a, 3), lies(b, 4), lies(c, 5)], {name_of(4).shard("dp0"): 200}, twins=True)
    found = plan({"dp0": [a, b, info("state/c", 50, 1)]}, base).reuse
    assert a.slice in found.twins and b.slice in found.moved and c.slice in found.patchable
    name = name_of(NOW)
    assert [object_of(each.slice, found, name, "dp0") for each in (a, b, c)] == [
        name.lasting("dp0"), name.lasting("dp0"), name.shard("dp0"),
    ]  # fmt: skip


# --- any parent, any offers ------------------------------------------------------------------

SLICES = st.dictionaries(
    st.integers(0, 11), st.tuples(st.integers(0, 60), st.integers(0, 8), st.booleans(), st.booleans()),
    min_size=1, max_size=12,
)  # fmt: skip


@st.composite
def situations(draw):
    """Offers of one to three roles and a base: unchanged, changed, new, lost and divergent tensors."""
    roles = [f"dp{i}" for i in range(draw(st.integers(1, 3)))]
    drawn = draw(SLICES)
    offers = {role: [] for role in roles}
    pieces, ends = [], {}
    for i, (n, c, changed, divergent) in drawn.items():
        key = f"state/{i}"
        old = info(key, n)
        begin = ends.get(c, 8)
        ends[c] = begin + n
        pieces.append(lies(old, c, begin))
        for at, role in enumerate(roles):
            offers[role].append(info(key, n, (at + 1 if divergent else 1) if changed else 0))
    sizes = {name_of(c).shard("dp0"): end - 8 + draw(st.integers(0, 60)) for c, end in ends.items()}
    distrusted = frozenset(draw(st.sets(st.sampled_from(sorted(sizes)), max_size=2)))
    base = base_of(pieces, sizes, distrusted=distrusted, twins=draw(st.booleans()))
    return offers, draw(st.sampled_from([base, None]))


@settings(max_examples=80, deadline=None)
@given(situations())
def test_a_plan_covers_everything_exactly_once(situation):
    offers, base = situation
    planned = plan(offers, base)
    assert planned == plan(dict(reversed(offers.items())), base), "whoever computes it"
    written = [each for infos in planned.write.values() for each in infos]
    covered = [each.slice for each in written] + [piece.info.slice for piece in planned.kept]
    everything = [each.slice for infos in plan(offers).write.values() for each in infos]
    assert sorted(covered, key=str) == sorted(everything, key=str)
    assert sum(each.nbytes for each in written) <= sum(
        each.nbytes for infos in plan(offers).write.values() for each in infos
    )
    if base is not None:
        marked = base.distrusted
        used = {e.object for piece in planned.reuse.kept.values() for e in piece.extents}
        used |= {e.object for piece in planned.reuse.patchable.values() for e in piece.extents}
        assert not used & marked
        assert used <= {each.key for each in base.manifest.objects}


def receipts_of(offers, base, planned):
    """What honest writers would hand in, with every second patch taken."""
    name, found = name_of(NOW), {}
    for role, infos in planned.write.items():
        ends, placed = {}, []
        for i, each in enumerate(infos):
            before = planned.reuse.patchable.get(each.slice)
            key = object_of(each.slice, planned.reuse, name, role)
            extent = Extent(key, ends.get(key, 8), each.nbytes, each.xxh3)
            if each.slice in planned.reuse.twins:
                placed.append(planned.reuse.kept[each.slice]._replace(twin=extent))
            elif before is not None and i % 2 and reuse.patch_room(before):
                extent = extent._replace(nbytes=1)
                placed.append(patched(each, before, extent))
            else:
                placed.append(PlacedSlice(each, extent.object, extent.begin))
            ends[key] = extent.begin + extent.nbytes
        objects = tuple(ObjectInfo(key, end, 8, "0" * 32) for key, end in ends.items())
        digest = None if base is None else base.digest
        found[role] = Receipt(
            role, 1, NOW, 7, tuple(offers[role]), tuple(placed), objects, {"role": role}, base=digest
        )
    return found


@settings(max_examples=80, deadline=None)
@given(situations())
def test_receipts_of_a_plan_make_a_manifest_that_reads(situation):
    offers, base = situation
    roles = tuple(offers)
    found = receipts_of(offers, base, plan(offers, base))
    planned = check_receipts(found, roles, name_of(NOW), 7, base)
    whole = unite(found, roles, planned.kept, () if base is None else base.manifest.objects)
    manifest = Manifest(
        run_id="r", generation=1, c=NOW, step=7, parent=8, spec_digest=SHA, promise=Promise.BITWISE,
        cursor=None, roles=roles, objects=whole.objects, tensors=whole.tensors, documents={},
        receipts=dict.fromkeys(roles, SHA),
    )  # fmt: skip
    data = manifests.encode(manifest)
    assert manifests.decode(data, key=name_of(NOW).manifest) == manifest


def test_one_that_cannot_read_the_base_makes_all_plan_without():
    a = info("state/a", 50)
    offers = {"dp0": [a], "dp1": [a]}
    base = base_of([lies(a, 3)])
    found = receipts_of(offers, base, plan(offers, base))
    check_receipts(found, ("dp0", "dp1"), name_of(NOW), 7, base)
    found["dp1"] = replace(found["dp1"], base=None)
    assert agreed(found, base) is None
    with pytest.raises(CommitAborted, match="did not write"):
        check_receipts(found, ("dp0", "dp1"), name_of(NOW), 7, base)


def test_nobody_places_what_was_not_planned():
    a, b = info("a", 50), info("b", 50)
    base = base_of([lies(a, 3), lies(b, 3, 58)])
    offers = {"dp0": [a, info("b", 50, 1)]}
    planned = plan(offers, base)
    (good,) = receipts_of(offers, base, planned)["dp0"].placed
    shard, other = name_of(NOW).shard("dp0"), name_of(3).shard("dp0")
    extent = Extent(shard, 8, 9, "0" * 32)
    for bad in (
        good._replace(object=other),
        patched(good.info, lies(a, 3), extent),
        patched(good.info, lies(b, 3, 58), extent._replace(nbytes=26)),
        patched(good.info, lies(b, 3, 58), extent._replace(object=other)),
        good._replace(twin=extent._replace(object=other)),
    ):
        receipt = replace(receipts_of(offers, base, planned)["dp0"], placed=(bad,))
        with pytest.raises(CommitAborted, match=r"place|write"):
            check_receipts({"dp0": receipt}, ("dp0",), name_of(NOW), 7, base)
    receipt = replace(
        receipts_of(offers, base, planned)["dp0"], placed=(patched(good.info, lies(b, 3, 58), extent),)
    )
    check_receipts({"dp0": receipt}, ("dp0",), name_of(NOW), 7, base)


# --- a run, with collection and damage ---------------------------------------------------------


class Life:
    """Random saves of random changes, by one or two writers; every checkpoint held must always read back."""

    def __init__(self, seed, roles):
        self.chance = random.Random(seed)
        self.store = Store(unchanged=1.0)
        new_run(self.store)
        self.roles = roles
        self.launch = 0
        self.saved = {}
        self.step = 0
        self.tensors = {f"state/t{i}": self.fresh(self.chance.randint(1, 400)) for i in range(8)}
        self.tensors["state/frozen"] = self.fresh(3000)
        self.damaged: set[str] = set()
        self.restart()

    def fresh(self, n):
        return bytes(self.chance.getrandbits(8) for _ in range(n))

    def restart(self):
        state = self.store.run(replay()).state
        if state.head is not None and not any(each.usable for each in state.checkpoints.values()):
            self.save()  # all rested on what was damaged; the process that is still alive saves it anew
        self.launch += 1
        self.claim = start(self.store, f"L{self.launch}", self.roles)
        self.views = [self.claim.view] * len(self.roles)
        self.known = None
        point = self.claim.restore_point
        if point is not None:
            self.step, self.tensors = point.step, dict(self.saved[point.c])

    def save(self):
        self.step += 1
        for key in self.chance.sample(sorted(self.tensors), self.chance.randint(0, 4)):
            self.tensors[key] = self.fresh(len(self.tensors[key]))
        model = model_at(1)
        programs = []
        for role, view in zip(self.roles, self.views, strict=True):
            asked = request(
                self.claim.token, model, role, self.roles, step=self.step, ledger=None, known=self.known
            )
            program = save_coordinator if asked.coordinates else save_writer
            programs.append((program(view, asked), dict(self.tensors), role))
        outcomes = self.store.together(*programs)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        self.views = [outcome.view for outcome in outcomes]
        self.known = self.chance.choice([None, outcomes[0].known])
        self.saved[outcomes[0].c] = dict(self.tensors)

    def collect(self):
        view = self.store.run(replay())
        self.store.run(retire(view, Retention(self.chance.randint(1, 3)), launch_id="C"))
        self.store.run(sweep(EMPTY, budget=self.chance.choice([1, 5, 100])))

    def mark(self):
        """A random object of the head is found damaged, and is."""
        state = self.store.run(replay()).state
        if state.head is None:
            return
        manifest = self.manifest(state.checkpoints[state.head])
        key = self.chance.choice([each.key for each in manifest.objects])
        for c in list(state.checkpoints):
            held = state.checkpoints[c]
            present = held.state in (CheckpointState.COMMITTED, CheckpointState.CORRUPT)
            if present and key in {each.key for each in self.manifest(held).objects}:
                self.store.run(mark_corrupt(EMPTY, c, launch_id="S", reason="scrub", objects=(key,)))
        self.damaged.add(key)

    def manifest(self, held):
        return manifests.decode(self.store.objects[held.manifest], key=held.manifest)

    def check(self):
        for held in self.store.run(replay()).state.checkpoints.values():
            if not held.usable:
                continue
            manifest = self.manifest(held)
            assert not {each.key for each in manifest.objects} & self.damaged
            for key, entry in manifest.tensors.items():
                (piece,) = entry.slices
                for extent in piece.extents:
                    data = self.store.objects[extent.object][extent.begin : extent.begin + extent.nbytes]
                    assert data == self.saved[held.c][key]
            assert sum(each.nbytes - each.header_bytes for each in manifest.objects) <= 4 * 6200


@pytest.mark.parametrize("roles", [("dp0",), ("dp0", "dp1")])
@pytest.mark.parametrize("seed", range(6))
def test_nothing_dangles_through_saves_restarts_damage_and_collection(seed, roles):
    life = Life(seed, roles)
    for _ in range(40):
        act = life.chance.choices([life.save, life.collect, life.restart, life.mark], [8, 3, 1, 1])[0]
        act()
        life.check()
    reused = [held for held in life.store.run(replay()).state.checkpoints.values() if held.reuses]
    assert reused, "something was reused at all"


def test_a_damaged_manifest_of_the_parent_costs_one_full_save():
    life = Life(1, ("dp0", "dp1"))
    life.save()
    head = life.store.run(replay()).state.checkpoints[0]
    life.store.objects[head.manifest] += b" "
    life.known = None
    life.save()
    assert life.store.run(replay()).state.checkpoints[1].reuses == ()
    life.save()
    assert life.store.run(replay()).state.checkpoints[2].reuses == (1,)


def test_when_nearly_all_has_changed_nothing_is_held_for_the_rest():
    store = Store(unchanged=0.0)
    new_run(store)
    claim = start(store)
    view = claim.view
    for step in (1, 2):
        asked = request(claim.token, model_at(step))
        view = store.run(save_coordinator(view, asked), content.slices_of(model_at(step), "dp0")).view
    assert view.state.checkpoints[1].reuses == ()
    assert any(isinstance(effect, fx.Estimate) for effect in store.log)
    assert layout.parse_checkpoint_key(view.state.checkpoints[1].manifest)
