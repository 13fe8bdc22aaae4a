"""The audit of mixtures and packed documents: by source, by epoch of a source, against the policy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from mixed_runs import BASES, GLOBAL, Pattern, cursor, described, edited, lineage, plan

from durable_core.data.cursor import Cursor
from durable_core.data.sequence import Batch, State
from durable_core.engine.audit.consumption import Consumption, consume
from durable_core.engine.audit.segments import Segment
from durable_core.engine.audit.shares import quota_bound
from durable_core.format.ledger import Row, RowFlag


def kinds(found: Consumption) -> set[str]:
    return {finding.kind for finding in found.findings}


@pytest.mark.parametrize("roles", [1, 2, 4])
@pytest.mark.parametrize("per_epoch", [None, 3, 4])
def test_a_sound_mixture_passes_by_its_sources_alone(roles: int, per_epoch: int | None) -> None:
    """No code here can compute the sequence: every source still has to give each record once an epoch."""
    found = consume(lineage(roles=roles, per_epoch=per_epoch))
    assert found.sound and not found.ids_checked
    assert {s.name: (s.draws, s.epochs) for s in found.sources} == {"a": (40, 4), "b": (20, 3)}
    assert [s.due for s in found.sources] == [40.0, 20.0]


@pytest.mark.parametrize("per_epoch", [None, 3, 4])
def test_the_sequence_itself_proves_it_id_by_id(per_epoch: int | None) -> None:
    found = consume(lineage(roles=2, per_epoch=per_epoch), sequence=Pattern(per_epoch))
    assert found.sound and found.ids_checked and not found.notes


def test_a_record_given_twice_and_one_left_out_are_counted_in_their_source() -> None:
    def swap(rows: list[Row]) -> list[Row]:
        ids = rows[1].ids.copy()
        first = next(i for i, x in enumerate(ids) if x < BASES["b"])
        ids[first] = next(x for x in rows[0].ids if x < BASES["b"])
        return [rows[0], replace(rows[1], ids=ids), *rows[2:]]

    blind = consume(edited(lineage(), 1, swap))
    a, b = blind.sources
    assert (a.repeated, a.skipped, b.repeated, b.skipped) == (1, 1, 0, 0)
    assert (blind.repeated, blind.skipped) == (1, 1) and kinds(blind) == {"repeat", "skip"}
    told = consume(edited(lineage(), 1, swap), sequence=Pattern())
    assert (told.repeated, told.skipped) == (1, 1)


def test_a_repeat_in_the_epoch_of_a_source_that_is_still_open() -> None:
    def again(rows: list[Row]) -> list[Row]:
        ids = rows[0].ids.copy()
        ids[[0, 2]] = ids[0]
        return [replace(rows[0], ids=ids)]

    found = consume(edited(lineage(1, 1), 1, again))
    assert found.sources[0].repeated == 1 and not found.sources[0].epochs and not found.sound


def test_what_is_drawn_with_replacement_may_come_again() -> None:
    sources = [{**source, "replacement": True} for source in plan()["sources"]]
    rows = [Row(1, 0, 0, np.array([3, 9, 3, 3])), Row(2, 0, 1, np.array([9, 1, 1, 9]))]
    segments = described(edited(lineage(2, 2), 1, lambda _: rows), sources=sources, name="other_v1")
    found = consume(segments)
    assert found.sound and [s.repeated for s in found.sources] == [0, 0]


def test_a_missing_batch_is_found_by_its_number() -> None:
    found = consume(edited(lineage(), 2, lambda rows: [*rows[:2], *rows[3:]]))
    assert found.skipped == GLOBAL and {"skip", "cursor"} <= kinds(found)


def test_ids_of_no_source() -> None:
    wrong = edited(lineage(1, 1), 1, lambda rows: [replace(rows[0], ids=np.array([0, 9, 99, 1]))])
    assert "mixture" in kinds(consume(wrong))


# --- the policy -------------------------------------------------------------------------------


def test_quotas_hold_their_bound_at_every_draw() -> None:
    """The right records in the wrong order of sources: only the debt tells."""
    sequence = Pattern()
    drawn, _ = sequence.take(sequence.start(0), 60)
    is_a = drawn.ids < BASES["b"]
    late = np.concatenate([drawn.ids[is_a], drawn.ids[~is_a]])
    rows = [Row(k + 1, 0, k, part) for k, part in enumerate(np.split(late, 15))]
    name = "quota_v9"
    found = consume(described(edited(lineage(15, 15), 1, lambda _: rows), name=name))
    assert kinds(found) == {"mixture"} and "off its quota; the bound is 0.500" in found.findings[0].detail
    assert consume(described(lineage(15, 15), name=name)).sound


def test_the_bound_of_quotas() -> None:
    assert [quota_bound(m) for m in (1, 2, 3, 5)] == [0.0, 0.5, 0.75, 0.875]


def test_a_drift_of_random_draws_is_noted_and_proves_nothing() -> None:
    rows = [Row(k + 1, 0, k, np.array([9, 10, 11, 12]) + k % 2) for k in range(15)]
    sources = [{**source, "replacement": True} for source in plan()["sources"]]
    segments = edited(lineage(15, 15), 1, lambda _: rows)
    found = consume(described(segments, sources=sources, name="other_v1", window=30))
    assert found.sound and not found.ids_checked
    assert any("of 2 windows of 30 beyond 4" in note for note in found.notes), found.notes


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"unit": "token"}, "units of tokens"),
        ({"exhaustion": "renormalize"}, "renormalized"),
        ({"changes": [[10, [1, 1]]]}, "weights changed"),
        ({"updates": [[10, {"a": 1, "b": 1}]]}, "weights changed"),
    ],
)
def test_shares_that_draws_do_not_tell_are_said_to_be_unjudged(
    change: dict[str, object], reason: str
) -> None:
    notes = consume(described(lineage(), **change)).notes
    assert "not judged" in notes[-1] and reason in notes[-1]


def test_weights_changed_by_a_restart_leave_the_counts_going() -> None:
    segments = lineage()
    segments[2:] = described(segments[2:], weights=[1, 1])
    found = consume(segments)
    assert found.sound and [s.epochs for s in found.sources] == [4, 3]
    assert "the weights changed during the run" in found.notes[0]


# --- records left out, epochs left early ------------------------------------------------------


def test_records_left_out_by_declaration_are_no_skip_and_are_listed() -> None:
    def leave_out(rows: list[Row]) -> list[Row]:
        bad = rows[1].ids[1:2]
        kept = replace(rows[1], ids=np.delete(rows[1].ids, 1), flags=RowFlag.PADDED)
        return [rows[0], kept, replace(rows[1], ids=bad, flags=RowFlag.SKIPPED), *rows[2:]]

    for sequence in (None, Pattern()):
        found = consume(edited(lineage(), 1, leave_out), sequence=sequence)
        assert found.sound, found.findings
        assert sum(s.left_out for s in found.sources) == 1 == found.epochs[0].left_out
    # the same without the declaration
    silent = consume(edited(lineage(), 1, lambda rows: [r for r in leave_out(rows) if not r.skipped]))
    assert {"cursor"} <= kinds(silent)
    assert consume(edited(lineage(), 1, lambda r: [x for x in leave_out(r) if not x.skipped]),
                   sequence=Pattern()).skipped == 1  # fmt: skip


def test_a_mixture_left_early_goes_on_where_it_stopped() -> None:
    base = lineage(10, 5)
    leave = Row(6, 0, 5, np.empty(0, np.int64), RowFlag.ABANDONED)
    moved = [leave, *(replace(row, epoch=1, batch=row.batch - 5) for row in base[2].rows["dp0"])]
    segments = edited(base, 2, lambda _: moved)
    segments[2] = replace(segments[2], cursor=replace(cursor(10), epoch=1, batch=5))
    for sequence in (None, Pattern()):
        found = consume(segments, sequence=sequence)
        assert found.sound, found.findings
        assert [epoch.abandoned for epoch in found.epochs] == [0, 0]


# --- packed documents -------------------------------------------------------------------------


class Halves:
    """Packs of two pieces: every document of 4 tokens is cut in two, which follow each other."""

    name, carries = "halves_v1", True

    def __init__(self) -> None:
        self.description = {"name": "halves_v1", "inner": plan(unit="document")}

    def batches(self, global_batch: int) -> int | None:
        return None

    def start(self, epoch: int, before: State | None = None) -> State:
        return before or Pattern().start(0)

    def take(self, state: State, count: int) -> tuple[Batch, State]:
        batch, state = Pattern().take(state, count)
        begins = np.tile(np.array([0, 2], np.int64), count)
        packs = np.arange(0, 2 * count + 1, 2)
        return Batch(batch.ids.repeat(2), batch.epochs.repeat(2), begins, begins + 2, packs), state


def packed(steps: int = 12) -> list[Segment]:
    sequence, rows = Halves(), []
    state = sequence.start(0)
    for step in range(steps):
        batch, state = sequence.take(state, GLOBAL)
        assert batch.ends is not None and batch.begins is not None
        rows.append(Row(step + 1, 0, step, batch.ids, amounts=batch.ends - batch.begins))
    at = Cursor("mixture", "halves_v1", 5, 0, steps, None, GLOBAL, "short", steps * GLOBAL)
    start = replace(at, batch=0, consumed_samples=0)
    plan_ = sequence.description
    return [Segment(0, -1, 0, {}, start, plan_), Segment(1, 0, steps, {"dp0": rows}, at, plan_)]


def test_packed_documents_are_counted_in_packs_pieces_and_tokens() -> None:
    found = consume(packed(), sequence=Halves())
    assert found.sound and found.ids_checked, found.findings
    assert (found.samples, found.pieces) == (48, 96)
    assert {s.name: s.tokens for s in found.sources} == {"a": 128, "b": 64}


def test_without_its_sequence_a_packed_run_is_checked_by_batches() -> None:
    found = consume(packed())
    assert found.sound and not found.ids_checked and found.samples == 48


@pytest.mark.parametrize("fault", ["tokens", "piece"])
def test_a_piece_cut_short_or_lost_is_found(fault: str) -> None:
    def spoil(rows: list[Row]) -> list[Row]:
        amounts = rows[3].amounts
        assert amounts is not None
        if fault == "tokens":
            return [*rows[:3], replace(rows[3], amounts=amounts - np.eye(1, 8, dtype=np.int64)[0]), *rows[4:]]
        return [*rows[:3], replace(rows[3], ids=rows[3].ids[1:], amounts=amounts[1:]), *rows[4:]]

    found = consume(edited(packed(), 1, spoil), sequence=Halves())
    assert kinds(found) == ({"order"} if fault == "tokens" else {"skip"})
