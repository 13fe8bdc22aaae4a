"""Traces of readings: told first, a reason to leave later, and back again only when it is well."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest

from durable_core.errors import UsageError
from durable_core.launch.health.levels import RULES, XID, Kind, Level, Reading, Rule, Watch
from durable_core.launch.health.probes import Disk, NvidiaSmi, Skew, parse


def levels(kind: Kind, values: list[float], *, every: float = 60.0, affected: bool = False) -> list[int]:
    """The level after each look."""
    watch, found = Watch(), []
    for look, value in enumerate(values):
        watch = watch.seen([Reading(kind, value, "gpu0")], every * look)
        found.append(max((one.level for one in watch.findings(affected=affected)), default=Level.GOOD))
    return [int(level) for level in found]


def test_a_link_that_slows_is_told_after_three_looks_and_left_after_three_worse_ones() -> None:
    trace = [1.0, 0.85, 0.85, 0.85, 0.85, 0.4, 0.4, 0.4]
    assert levels(Kind.LINK_SPEED, trace) == [0, 0, 0, 1, 1, 1, 1, 2]


def test_a_single_bad_look_is_nothing() -> None:
    assert levels(Kind.LINK_SPEED, [1.0, 0.4, 1.0, 0.4, 0.4, 1.0, 1.0]) == [0] * 7


def test_looks_that_are_bad_in_different_degrees_are_bad_all_the_same() -> None:
    assert levels(Kind.LINK_SPEED, [0.4, 0.85, 0.4, 0.4, 0.4, 0.85]) == [0, 0, 1, 1, 1, 1]
    assert levels(Kind.LINK_SPEED, [0.4, 0.85, 0.4, 0.4, 0.4, 0.4]) == [0, 0, 1, 1, 1, 2]
    assert levels(Kind.LINK_SPEED, [0.4, 1.0, 0.4, 0.4]) == [0, 0, 0, 0], "a good look begins it anew"


def test_what_is_better_but_not_well_stays() -> None:
    trace = [0.8, 0.8, 0.8, 0.95, 0.95, 0.95, 0.95, 0.98, 0.98, 0.98]
    assert levels(Kind.LINK_SPEED, trace) == [0, 0, 1, 1, 1, 1, 1, 1, 1, 0]


def test_a_value_that_swings_around_the_threshold_does_not_make_it_flap() -> None:
    found = levels(Kind.LINK_SPEED, [0.89, 0.91] * 20 + [0.89] * 3 + [0.91, 0.89] * 20)
    assert sum(a != b for a, b in pairwise(found)) == 1


def test_correctable_errors_count_by_their_rate() -> None:
    assert levels(Kind.ECC_CORRECTABLE, [5000, 5000, 5000, 5000]) == [0, 0, 0, 0]
    assert levels(Kind.ECC_CORRECTABLE, [0, 1, 2, 3, 4]) == [0, 0, 0, 1, 1], "60 an hour"
    assert levels(Kind.ECC_CORRECTABLE, [0, 20, 40, 60, 80]) == [0, 0, 0, 2, 2], "1200 an hour"
    assert levels(Kind.ECC_CORRECTABLE, [900, 0, 0, 0]) == [0, 0, 0, 0], "the driver was loaded anew"
    assert levels(Kind.ECC_CORRECTABLE, [900, 50, 100, 150]) == [0, 0, 0, 2], "and counts from nothing"


def test_one_uncorrectable_error_is_enough() -> None:
    assert levels(Kind.ECC_UNCORRECTABLE, [0, 0, 1]) == [0, 0, 2]


def test_what_would_be_told_is_a_reason_to_leave_once_the_work_is_affected() -> None:
    trace = [0.0, 10.0, 20.0, 30.0, 40.0]
    assert levels(Kind.LINK_ERRORS, trace) == [0, 0, 0, 1, 1]
    assert levels(Kind.LINK_ERRORS, trace, affected=True) == [0, 0, 0, 2, 2]
    assert levels(Kind.LINK_ERRORS, [0.0] * 5, affected=True) == [0] * 5, "what is well is no reason"


@pytest.mark.parametrize(("code", "level"), [(31, 0), (63, 1), (79, 2), (74, 2), (48, 2), (999, 1)])
def test_xid_codes(code: int, level: int) -> None:
    assert levels(Kind.XID, [code]) == [level]


def test_of_several_events_at_once_the_worst_counts() -> None:
    watch = Watch().seen([Reading(Kind.XID, code, "gpu0") for code in (79, 31, 63)], 0.0)
    (found,) = watch.findings()
    assert found.level is Level.EVICT and "gpu0" in found.reason


def test_missed_beats_are_suspected_at_the_third() -> None:
    assert levels(Kind.BEATS_MISSED, [0, 1, 2, 3, 9, 0]) == [0, 0, 0, 1, 1, 0]


def test_a_disk_fills_and_is_cleared() -> None:
    assert levels(Kind.DISK_FREE, [0.5, 0.09, 0.09, 0.005, 0.005, 0.12, 0.2, 0.2]) == [0, 0, 1, 1, 2, 2, 2, 0]


def test_subjects_are_told_apart_and_silence_is_not_health() -> None:
    watch = Watch()
    for look in range(3):
        watch = watch.seen([Reading(Kind.LINK_SPEED, 0.4, "a"), Reading(Kind.LINK_SPEED, 1.0, "b")], look)
    assert [(one.subject, one.level, one.since) for one in watch.findings()] == [("a", Level.EVICT, 2)]
    for look in range(9):
        watch = watch.seen([], 9.0 + look)
    assert len(watch.findings()) == 1


def test_every_kind_has_a_rule_and_codes_have_a_severity() -> None:
    assert set(RULES) == set(Kind)
    assert set(XID.values()) <= {0, 1, 2}


@pytest.mark.parametrize("values", [(2.0, 1.0, 0.0, False), (1.0, 2.0, 3.0, False), (1.0, 2.0, 0.0, True)])
def test_a_rule_in_no_order_is_refused(values: tuple[float, float, float, bool]) -> None:
    notify, evict, clear, falling = values
    with pytest.raises(UsageError):
        Rule(notify, evict, clear, falling)


# --- probes ----------------------------------------------------------------------------------


def test_the_disk_as_it_is(tmp_path: Path) -> None:
    look = Disk([tmp_path, tmp_path / "none"]).read()
    (reading,) = look.readings
    assert 0 <= reading.value <= 1 and reading.subject == str(tmp_path)
    assert str(tmp_path / "none") in look.absent


def test_a_full_disk_by_inodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.statvfs_result((4096, 4096, 1000, 900, 900, 1000, 5, 5, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    (reading,) = Disk([tmp_path]).read().readings
    assert reading.value == pytest.approx(0.005)


class Hands:
    """A clock that moves one second at each look."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        self.time += 1.0
        return self.time

    def monotonic(self) -> float:
        return self.now()

    def sleep(self, seconds: float) -> None: ...

    def new_id(self) -> str:
        return "0" * 32


@pytest.mark.parametrize(("there", "off"), [(101.5, 0.0), (100.0, 1.0), (107.0, 5.0)])
def test_skew_allows_for_what_the_question_takes(there: float, off: float) -> None:
    (reading,) = Skew(lambda: there, Hands(), against="the store").read().readings
    assert reading == Reading(Kind.CLOCK_SKEW, off, "the store")


def test_a_clock_that_cannot_be_asked_is_absent() -> None:
    def gone() -> float:
        raise TimeoutError("no answer")

    look = Skew(gone, Hands(), against="the store").read()
    assert look.readings == () and look.absent == "the store: no answer"


def test_without_nvidia_smi_it_says_that_it_is_not_here() -> None:
    look = NvidiaSmi("no-such-program-as-this").read()
    assert look.readings == () and look.absent == "no-such-program-as-this is not here"


def fake(tmp_path: Path, body: str) -> str:
    path = tmp_path / "smi"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_what_nvidia_smi_answers(tmp_path: Path) -> None:
    look = NvidiaSmi(
        fake(tmp_path, "echo '0, 12, 0, 41, Not Active'; echo '1, [N/A], 3, [N/A], Active'")
    ).read()
    assert look.absent == ""
    assert [(r.subject, r.kind.value, r.value) for r in look.readings] == [
        ("gpu0", "ecc_correctable", 12), ("gpu0", "ecc_uncorrectable", 0), ("gpu0", "temperature", 41),
        ("gpu0", "throttled", 0), ("gpu1", "ecc_uncorrectable", 3), ("gpu1", "throttled", 1),
    ]  # fmt: skip


@pytest.mark.parametrize("body", ["echo 'No devices were found'; exit 6", "kill -9 $$"])
def test_a_tool_that_fails_is_absent(tmp_path: Path, body: str) -> None:
    look = NvidiaSmi(fake(tmp_path, body)).read()
    assert look.readings == () and "status" in look.absent


def test_a_line_that_is_none_is_left_out() -> None:
    assert parse("Unable to determine the device handle") == ()
