"""The audit's arithmetic: what is planted is found and counted; what is right passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_core.data.cursor import Cursor, Layout, Remainder
from durable_core.data.order import make_order
from durable_core.engine.audit.consumption import Consumption, consume, role_order
from durable_core.engine.audit.segments import Segment
from durable_core.format.ledger import Row, RowFlag

ORDER = "full_prp_v1"
Rows = list[tuple[str, Row]]  # role, row


def cursor(step: int, size: int, batch: int, remainder: Remainder, order: str = ORDER) -> Cursor:
    layout = Layout(size, batch, remainder)
    epoch, at = layout.position(step)
    whole = layout.interval(layout.batches - 1)[1]
    consumed = epoch * whole + (layout.interval(at - 1)[1] if at else 0)
    return Cursor("data", order, 3, epoch, at, size, batch, remainder, consumed)


def rows_of(step: int, now: Cursor, roles: Sequence[str]) -> Rows:
    """The rows of optimizer step ``step`` (from 1): the ids the order demands, dealt to the roles."""
    assert now.size is not None
    layout = Layout(now.size, now.global_batch, now.remainder)
    order = make_order(ORDER, now.size, dataset_id=now.dataset_id, seed=now.seed)
    epoch, batch = layout.position(step - 1)
    rows: Rows = []
    for replica, role in enumerate(roles):
        start, stop = layout.share(batch, replica, len(roles))
        ids = [int(order.ids(epoch, p % now.size, p % now.size + 1)[0]) for p in range(start, stop)]
        rows.append((role, Row(step, epoch, batch, np.array(ids, np.int64))))
    return rows


def lineage(
    steps: int = 12, every: int = 3, *, size: int = 21, batch: int = 4, remainder: Remainder = "drop",
    roles: Sequence[str] = ("dp0",),
) -> list[Segment]:  # fmt: skip
    """A sound run, committed every ``every`` steps."""
    segments = [Segment(0, -1, 0, {}, cursor(0, size, batch, remainder))]
    for after in range(0, steps, every):
        through = min(after + every, steps)
        now = cursor(through, size, batch, remainder)
        found = [row for step in range(after + 1, through + 1) for row in rows_of(step, now, roles)]
        by_role = {role: tuple(row for name, row in found if name == role) for role in roles}
        segments.append(Segment(len(segments), after, through, by_role, now))
    return segments


def edited(segments: list[Segment], c: int, change: Any, role: str = "dp0") -> list[Segment]:
    """The lineage with the rows of one segment changed, the cursors as they were."""
    rows = {**segments[c].rows, role: tuple(change(list(segments[c].rows[role])))}
    return [replace(s, rows=rows) if s.c == c else s for s in segments]


def kinds(found: Consumption) -> set[str]:
    return {finding.kind for finding in found.findings}


@pytest.mark.parametrize("remainder", ["drop", "short", "wrap"])
@pytest.mark.parametrize("roles", [("dp0",), ("dp0", "dp1"), tuple(f"dp{i}" for i in range(11))])
def test_a_sound_run_passes(remainder: Remainder, roles: Sequence[str]) -> None:
    segments = lineage(17, 4, batch=11, size=45, remainder=remainder, roles=roles)
    found = consume(segments)
    assert found.sound and found.ids_checked and (found.repeated, found.skipped) == (0, 0)
    assert segments[-1].cursor is not None and found.samples == segments[-1].cursor.consumed_samples


@given(
    st.integers(1, 40), st.integers(1, 9), st.integers(0, 30), st.integers(1, 6),
    st.sampled_from(["drop", "short", "wrap"]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_any_sound_run_passes(size: int, batch: int, steps: int, every: int, remainder: Remainder) -> None:
    batch = min(batch, size)
    assert consume(lineage(steps, every, size=size, batch=batch, remainder=remainder)).sound


def test_the_number_of_replicas_may_change_between_segments() -> None:
    one, two = lineage(12, 6), lineage(12, 6, roles=("dp0", "dp1"))
    assert consume([one[0], one[1], two[2]]).sound


def test_a_retired_manifest_leaves_the_ledger_to_prove_it() -> None:
    segments = [replace(s, cursor=None) if s.c < 3 else s for s in lineage()]
    assert consume(segments).sound
    assert consume(edited(segments, 1, lambda rows: rows[:-1])).skipped == 4


# --- planted faults ---------------------------------------------------------------------------


def test_a_skipped_batch_is_counted() -> None:
    found = consume(edited(lineage(), 2, lambda rows: [rows[0], rows[2]]))
    assert (found.skipped, found.repeated) == (4, 0)
    assert kinds(found) == {"skip", "cursor"}
    assert any("missing batches 4" in finding.detail for finding in found.findings)


def test_a_repeated_batch_is_counted() -> None:
    found = consume(edited(lineage(), 2, lambda rows: [rows[0], rows[0], *rows[1:]]))
    assert (found.skipped, found.repeated) == (0, 4)


def test_a_batch_done_again_after_its_epoch_was_over_is_a_repeat() -> None:
    again = lineage()[1].rows["dp0"][0]
    found = consume(edited(lineage(16), 4, lambda rows: [*rows, replace(again, step=12)]))
    assert found.repeated == 4 and "repeat" in kinds(found)


def test_a_loader_that_skips_samples_is_found_by_its_ids() -> None:
    """Batch numbers, counts and cursor are all as they should be: only the ids tell."""

    def skip(rows: list[Row]) -> list[Row]:
        wrong = rows[1].ids.copy()
        wrong[2] = rows[0].ids[0]
        return [rows[0], replace(rows[1], ids=wrong), *rows[2:]]

    found = consume(edited(lineage(), 2, skip))
    assert (found.skipped, found.repeated) == (1, 1)


def test_swapped_batches_are_out_of_order_though_each_came_once() -> None:
    def swap(rows: list[Row]) -> list[Row]:
        return [replace(rows[0], ids=rows[1].ids), replace(rows[1], ids=rows[0].ids), *rows[2:]]

    found = consume(edited(lineage(), 1, swap))
    assert (found.skipped, found.repeated) == (0, 0)
    assert kinds(found) == {"order"} and not found.sound


def test_one_missing_replica_is_a_skip() -> None:
    found = consume(edited(lineage(roles=("dp0", "dp1")), 2, lambda rows: rows[:-1], role="dp1"))
    assert found.skipped == 2


def test_an_epoch_that_was_left_out_whole_is_a_skip() -> None:
    segments = lineage(15, 5, size=20)  # one epoch a segment
    found = consume([s for s in segments if s.c != 2])
    assert found.skipped == 20 and "skip" in kinds(found)


def test_rows_outside_their_segment_overlap() -> None:
    found = consume(edited(lineage(), 3, lambda rows: [replace(rows[0], step=6), *rows[1:]]))
    assert kinds(found) == {"overlap"}


def test_rows_beyond_the_cursor_are_found() -> None:
    extra = rows_of(13, cursor(13, 21, 4, "drop"), ("dp0",))[0][1]
    found = consume(edited(lineage(), 4, lambda rows: [*rows, replace(extra, step=12)]))
    assert "cursor" in kinds(found)


def test_a_cursor_that_ran_ahead_of_the_model_is_found() -> None:
    segments = lineage()
    head = replace(segments[-1], cursor=cursor(13, 21, 4, "drop"))
    found = consume([*segments[:-1], head])
    assert found.skipped == 4 and "cursor" in kinds(found)


# --- what may be missing ----------------------------------------------------------------------


def left_early() -> list[Segment]:
    """The trainer leaves epoch 0 after 3 of 5 batches, on purpose, and goes on with epoch 1."""
    base = lineage(9, 3, size=20)
    leave = Row(4, 0, 3, np.empty(0, np.int64), RowFlag.ABANDONED)
    nexts = [replace(row, step=row.step - 2) for row in lineage(8, 8, size=20)[1].rows["dp0"][5:8]]
    now = Cursor("data", ORDER, 3, 1, 3, 20, 4, "drop", 24)
    return [base[0], base[1], Segment(2, 3, 6, {"dp0": (leave, *nexts)}, now)]


def test_an_epoch_left_by_declaration_is_no_skip() -> None:
    found = consume(left_early())
    assert found.sound, found.findings
    assert [epoch.abandoned for epoch in found.epochs] == [8, 0]


def test_the_same_without_the_declaration_is_a_skip() -> None:
    found = consume(edited(left_early(), 2, lambda rows: rows[1:]))
    assert found.skipped == 8


def test_epochs_jumped_over_by_declaration_are_no_skip() -> None:
    base, leave = lineage(3, 3, size=20), Row(4, 0, 3, np.empty(0, np.int64), RowFlag.ABANDONED)
    order = make_order(ORDER, 20, dataset_id="data", seed=3)
    row = Row(4, 5, 0, order.ids(5, 0, 4))
    now = Cursor("data", ORDER, 3, 5, 1, 20, 4, "drop", 16)
    assert consume([*base, Segment(2, 3, 4, {"dp0": (leave, row)}, now)]).sound


def test_a_lineage_that_starts_inside_an_epoch() -> None:
    segments = lineage()
    start = Segment(0, -1, 3, {}, segments[1].cursor)
    assert consume([start, *segments[2:]]).sound


def test_an_unknown_order_is_checked_by_batch_numbers() -> None:
    segments = [replace(s, cursor=replace(s.cursor, order="their-own")) if s.cursor else s for s in lineage()]
    found = consume(segments)
    assert found.sound and not found.ids_checked
    assert consume(edited(segments, 2, lambda rows: [rows[0], rows[2]])).skipped == 4
    assert consume(edited(segments, 2, lambda rows: [*rows, rows[-1]])).repeated == 4


def test_without_any_cursor_batch_numbers_still_have_to_continue() -> None:
    segments = [replace(s, cursor=None) for s in lineage(12)]
    assert consume(segments).sound
    assert consume(edited(segments, 2, lambda rows: rows[1:])).skipped == 1  # of unknown size: one batch


def test_nothing_consumed_is_nothing_wrong() -> None:
    assert consume([]).sound and consume(lineage(0)).sound


def test_roles_are_dealt_by_number() -> None:
    assert sorted(["dp10", "dp2", "x", "dp0"], key=role_order) == ["dp0", "dp2", "dp10", "x"]
