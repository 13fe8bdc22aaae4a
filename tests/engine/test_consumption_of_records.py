"""Mixtures and packs judged from the ledger alone: a run that was killed and went on, and planted faults."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch.utils.data import Dataset

from durable_core.data import BufferedShuffle, DurableLoader, Mixture, Packing
from durable_core.engine.audit import positions
from durable_core.engine.audit.consumption import Consumption, consume
from durable_core.engine.audit.segments import Segment
from durable_core.format.ledger import Row, RowFlag, decode_segment, encode_segment

SIZES = {"code": 30, "prose": 17, "law": 11}
BATCH, EVERY = 4, 5


class Documents(Dataset[Any]):
    """Of 1 to 20 tokens, one of them without any; ``lost`` do not decode."""

    def __init__(self, name: str, count: int) -> None:
        self.dataset_id = f"sha256:{name}"
        self.lengths = np.array([1 + (i * 7919 + len(name)) % 20 for i in range(count)], dtype=np.int64)
        self.lengths[3] = 0
        self.blocks = np.full(count, 1, np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        return index * 1000 + np.arange(self.lengths[index], dtype=np.int64)


def mixed(**options: Any) -> Mixture:
    sources = {name: Documents(name, size) for name, size in SIZES.items()}
    return Mixture(sources, {"code": "0.5", "prose": "0.3", "law": "0.2"}, **options)


def loader(dataset: Any, **options: Any) -> DurableLoader:
    return DurableLoader(dataset, BATCH, seed=11, **{"drop_last": True, "collate_fn": list, **options})


GREEDY, BEST = Packing(24, eos_id=0), Packing(24, policy="best_fit", window=4)
DROPS = replace(GREEDY, tail="drop")
RUNS: dict[str, Callable[[], DurableLoader]] = {
    "token mixture": lambda: loader(mixed(unit="token")),
    "packed token mixture": lambda: loader(mixed(unit="token"), packing=GREEDY),
    "packed mixture, best fit": lambda: loader(mixed(unit="document"), packing=BEST),
    "truncated": lambda: loader(mixed(unit="document"), packing=replace(BEST, on_long="truncate", length=16)),
    "mixture of packs": lambda: loader(mixed(unit="packed"), packing=GREEDY),
    "mixture of packs, tails dropped": lambda: loader(mixed(unit="packed"), packing=DROPS),
    "with replacement": lambda: loader(mixed(unit="token", replacement={"law": True}), packing=GREEDY),
    "stop": lambda: loader(mixed(unit="token", exhaustion="stop"), packing=GREEDY),
    "renormalize": lambda: loader(mixed(unit="token", exhaustion="renormalize"), packing=GREEDY),
    "epochs": lambda: loader(mixed(unit="token", epoch_size=23)),
    "packs": lambda: loader(Documents("one", 60), packing=GREEDY),
    "packs, tails dropped": lambda: loader(Documents("one", 60), packing=DROPS),
    "packs, best fit": lambda: loader(Documents("one", 60), packing=BEST),
    "packs, kept": lambda: loader(Documents("one", 60), packing=BEST, drop_last=False),
    "packs of a buffer": lambda: loader(Documents("one", 60), packing=GREEDY, order=BufferedShuffle(8)),
}  # fmt: skip


OTHER = {"code": "0.1", "prose": "0.2", "law": "0.7"}
GIVEN = 17  # between a commit and the kill that follows it, and so given again


def trained(now: DurableLoader, step: int, updates: bool) -> None:
    now.acknowledge(step=step)
    if updates and step == GIVEN:
        now.update_weights(OTHER, lead=4)


def run(
    make: Callable[[], DurableLoader], steps: int = 60, *, leave: int | None = None, updates: bool = False
) -> list[Segment]:
    """A commit every few steps; killed between two of them, and gone on from the last, again and again."""
    now, saved = make(), json.dumps(make().state_dict())
    segments: list[Segment] = []
    batches = iter(now)
    step = 0
    while True:
        if step % EVERY == 0:
            if step:
                saved = json.dumps(now.state_dict())
            at = next(positions(json.loads(saved)))
            rows = {"dp0": decode_segment(encode_segment(now.drain_rows()), key="rows")}
            segments.append(Segment(len(segments), step - EVERY if step else -1, step, rows, *at))
            if step == steps:
                return segments
            if step % (3 * EVERY) == 0:  # what comes before the kill is in no ledger
                for lost in range(step + 1, step + 4):
                    if next(batches, None) is not None:
                        trained(now, lost, updates)
                now = make()
                now.load_state_dict(json.loads(saved))
                batches = iter(now)
        batch = None if step == leave else next(batches, None)
        if batch is None:
            leave = None
            batches = iter(now)
            batch = next(batches)
        step += 1
        trained(now, step, updates)


def judged(segments: list[Segment]) -> Consumption:
    found = consume(segments)
    assert not found.ids_checked and any("counted by the epochs" in note for note in found.notes)
    return found


def kinds(found: Consumption) -> set[str]:
    return {finding.kind for finding in found.findings}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("leave", [None, 22])
def test_a_sound_run_is_proven_from_its_ledger(name: str, leave: int | None) -> None:
    found = judged(run(RUNS[name], leave=leave))
    assert found.sound, (found.findings, found.notes)
    if "mixture" in name and "dropped" not in name:
        assert all(source.epochs >= 1 for source in found.sources)


@pytest.mark.parametrize("options", [{}, {"epoch_size": 23}, {"exhaustion": "stop"}])
def test_weights_given_during_the_run_are_part_of_the_proof(options: dict[str, Any]) -> None:
    segments = run(lambda: loader(mixed(**options)), updates=True)
    assert segments[-1].plan is not None and segments[3].plan is not None
    [(_, given)] = segments[-1].plan["updates"]
    assert dict(given) == OTHER and "updates" not in segments[3].plan
    found = consume(segments)
    assert found.sound and found.ids_checked, found.findings
    silent = [replace(s, plan={k: v for k, v in (s.plan or {}).items() if k != "updates"}) for s in segments]
    assert not consume(silent).sound


def test_weights_given_to_what_cannot_be_computed() -> None:
    found = judged(run(RUNS["packed token mixture"], updates=True))
    assert found.sound and any("the weights changed" in note for note in found.notes)


# --- faults -----------------------------------------------------------------------------------

Rows = list[Row]


def spoilt(segments: list[Segment], change: Callable[[Rows], Rows], c: int) -> list[Segment]:
    rows = {"dp0": change(list(segments[c].rows["dp0"]))}
    return [replace(s, rows=rows) if s.c == c else s for s in segments]


def edit(row: Row, place: int, other: Row, taken: int) -> Row:
    """The piece at ``place`` replaced by one of another row."""
    columns = {}
    for name in ("ids", "epochs", "amounts", "lengths"):
        values = getattr(row, name)
        if values is not None:
            columns[name] = np.concatenate([values[:place], getattr(other, name)[taken:taken + 1],
                                            values[place + 1:]])  # fmt: skip
    return replace(row, **columns)


def without(row: Row, place: int) -> Row:
    given = {name: getattr(row, name) for name in ("ids", "epochs", "amounts", "lengths")}
    return replace(row, **{name: np.delete(v, place) for name, v in given.items() if v is not None})


def place_of(row: Row) -> int:
    """Of a record with tokens that came whole."""
    if row.amounts is None or row.lengths is None:
        return 1
    return int(np.flatnonzero((row.amounts == row.lengths) & (row.amounts > 1))[0])


def repeat(rows: Rows) -> Rows:
    """A record twice, and the one in whose place it came never."""
    return [rows[0], edit(rows[1], place_of(rows[1]), rows[0], place_of(rows[0])), *rows[2:]]


def skip(rows: Rows) -> Rows:
    return [rows[0], without(rows[1], place_of(rows[1])), *rows[2:]]


def fewer(rows: Rows) -> Rows:
    assert rows[1].amounts is not None
    amounts = rows[1].amounts.copy()
    amounts[place_of(rows[1])] -= 1
    return [rows[0], replace(rows[1], amounts=amounts), *rows[2:]]


def epoch(rows: Rows) -> Rows:
    assert rows[1].epochs is not None
    epochs = rows[1].epochs.copy()
    epochs[place_of(rows[1])] += 1
    return [rows[0], replace(rows[1], epochs=epochs), *rows[2:]]


FAULTS = {"repeat": repeat, "skip": skip, "fewer": fewer, "epoch": epoch}
EXACT = [name for name in RUNS if name not in ("packs, best fit", "stop", "renormalize")]


WHOLE = ("token mixture", "epochs")
CASES = [(name, fault) for name in EXACT for fault in FAULTS if fault != "fewer" or name not in WHOLE]


@pytest.mark.parametrize(("name", "fault"), CASES)
@pytest.mark.parametrize("c", [3, 7, 12])  # epochs that are over, and the open one
def test_a_planted_fault_is_found(name: str, fault: str, c: int) -> None:
    segments = run(RUNS[name])
    found = judged(spoilt(segments, FAULTS[fault], c))
    assert {"repeat": {"repeat"}, "skip": {"skip"}, "fewer": {"skip"}, "epoch": {"skip"}}[fault] <= kinds(
        found
    )


def test_findings_name_source_epoch_and_ids() -> None:
    segments = run(RUNS["packed token mixture"])
    row = segments[2].rows["dp0"][1]
    place = place_of(row)
    assert row.epochs is not None
    gone, of = int(row.ids[place]), int(row.epochs[place])
    ends = np.cumsum([*SIZES.values()])
    which = int(np.searchsorted(ends, gone, side="right"))
    gone -= int(ends[which]) - [*SIZES.values()][which]
    [finding] = judged(spoilt(segments, skip, 2)).findings
    assert finding.detail == f"{[*SIZES][which]}: 1 records of its epoch {of} never came: {gone}"


def test_epochs_swapped_between_two_records() -> None:
    """Each record came, and as often as it should: but not in its epoch."""
    segments = run(RUNS["packed token mixture"])
    flat = [(c, r, p) for c, s in enumerate(segments) for r, row in enumerate(s.rows.get("dp0", ()))
            for p in range(len(row.ids)) if row.amounts is not None and row.lengths is not None
            and row.amounts[p] == row.lengths[p] > 1 and row.ids[p] < SIZES["code"]]  # fmt: skip
    rows = [list(s.rows.get("dp0", ())) for s in segments]

    def epoch_of(at: tuple[int, int, int]) -> int:
        return int(rows[at[0]][at[1]].epochs[at[2]])  # type: ignore[index]

    one = next(at for at in flat if epoch_of(at) == 0)
    two = next(at for at in flat if epoch_of(at) == 1)
    for (c, r, p), label in ((one, 1), (two, 0)):
        epochs = rows[c][r].epochs.copy()  # type: ignore[union-attr]
        epochs[p] = label
        rows[c][r] = replace(rows[c][r], epochs=epochs)
    found = judged([replace(s, rows={"dp0": part}) for s, part in zip(segments, rows, strict=True)])
    assert {"repeat", "skip"} <= kinds(found)


def test_what_was_left_out_by_declaration_is_not_missing() -> None:
    segments = run(RUNS["packed token mixture"])

    def leave_out(rows: Rows) -> Rows:
        place = place_of(rows[1])
        lost = Row(rows[1].step, rows[1].epoch, rows[1].batch, rows[1].ids[place:place + 1], RowFlag.SKIPPED,
                   epochs=rows[1].epochs[place:place + 1])  # type: ignore[index]  # fmt: skip
        return [rows[0], without(rows[1], place), lost, *rows[2:]]

    found = judged(spoilt(segments, leave_out, 2))
    assert found.sound and sum(source.left_out for source in found.sources) == 1, found.findings


def test_a_lineage_that_begins_inside_a_run_still_tells_repeats() -> None:
    """As when a run begins with another's checkpoint: what came before it is in no ledger of its own."""
    segments = run(RUNS["packed token mixture"])
    late = [replace(segments[2], rows={}), *segments[3:]]
    found = consume(late)
    assert found.sound and any("what is missing is not judged" in note for note in found.notes)
    row = segments[4].rows["dp0"][1]
    again = spoilt(late, lambda rows: [edit(rows[0], 0, row, place_of(row)), *rows[1:]], 4)
    assert "repeat" in kinds(consume(again))


def test_segments_from_before_epochs_were_written_stay_readable() -> None:
    segments = run(RUNS["packed token mixture"])
    old = [replace(s, rows={"dp0": [replace(row, epochs=None, lengths=None) for row in s.rows["dp0"]]})
           for s in segments]  # fmt: skip
    found = consume(old)
    assert found.sound and any("not told apart" in note for note in found.notes)
