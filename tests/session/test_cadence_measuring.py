"""C, L and M from what happens: no clock, only durations that are told."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_core.commit.fold import apply
from durable_core.commit.state import RunState
from durable_core.errors import UsageError
from durable_core.format.record import Kind, Record
from durable_core.session.cadence import Meter, estimate, history, read_history
from durable_core.session.cadence.meter import quantile


def saves(
    meter: Meter, count: int, *, stall: float, slow: float, in_flight: int, calm: int, write: float
) -> None:
    """``count`` saves, each in flight for ``in_flight`` steps of 1 s + ``slow``, then ``calm`` of 1 s."""
    for _ in range(count):
        meter.staged(stall)
        for i in range(in_flight):
            held = stall if i == 0 else 0.0  # the step after a save is measured with its stall
            if i == in_flight - 1:
                meter.persisted(write)
            meter.stepped(1.0 + slow + held)
        for _ in range(calm):
            meter.stepped(1.0)


def test_cost_is_the_stall_and_the_interference() -> None:
    meter = Meter()
    saves(meter, 10, stall=0.25, slow=0.1, in_flight=4, calm=6, write=4.0)
    figures = meter.figures()
    assert figures.stall == 0.25 and figures.step == pytest.approx(1.0)
    assert figures.interference == pytest.approx(0.4)
    assert figures.cost == pytest.approx(0.65)


def test_a_slow_store_is_no_cost() -> None:
    fast, slow = Meter(), Meter()
    saves(fast, 5, stall=0.1, slow=0.0, in_flight=1, calm=5, write=0.5)
    saves(slow, 5, stall=0.1, slow=0.0, in_flight=5, calm=1, write=500.0)
    assert fast.figures().cost == pytest.approx(slow.figures().cost)
    assert slow.figures().persist == 500.0


def test_stolen_cycles_are_a_cost() -> None:
    meter = Meter()
    saves(meter, 5, stall=0.1, slow=0.5, in_flight=2, calm=5, write=2.0)
    assert meter.figures().cost == pytest.approx(0.1 + 2 * 0.5)


def test_interference_is_never_negative_and_none_without_a_comparison() -> None:
    meter = Meter()
    saves(meter, 5, stall=0.1, slow=-0.5, in_flight=2, calm=5, write=2.0)
    assert meter.figures().interference == 0.0
    always = Meter()
    saves(always, 5, stall=0.1, slow=0.5, in_flight=3, calm=0, write=2.0)
    assert always.figures().interference == 0.0


def test_one_validation_between_two_steps_is_no_interference() -> None:
    meter = Meter()
    saves(meter, 10, stall=0.1, slow=0.0, in_flight=3, calm=3, write=2.0)
    meter.staged(0.1)
    meter.stepped(600.1)
    assert meter.figures().interference == pytest.approx(0.0, abs=1e-9)
    assert meter.figures().step == pytest.approx(1.0)


def test_the_wait_at_the_guard_belongs_to_the_save_before() -> None:
    meter = Meter()
    meter.staged(0.1, barrier=0.05)
    meter.waited(0.2)
    meter.stepped(1.35)
    assert meter.figures().stall == pytest.approx(0.35)
    assert meter.figures().step == pytest.approx(1.0)


def test_lag_and_failed_saves() -> None:
    meter = Meter()
    for seconds in (1.0, 2.0, 3.0):
        meter.staged(0.0)
        meter.persisted(seconds, lag=seconds + 1)
    meter.staged(0.0)
    meter.failed()
    figures = meter.figures()
    assert (figures.lag_p50, figures.lag_p99, figures.persist) == (3.0, 4.0, 3.0)
    assert figures.completed == 0.75


def test_nothing_is_known_at_first() -> None:
    figures = Meter().figures()
    assert figures.step is figures.cost is figures.lag_p99 is None


def test_only_the_last_saves_count() -> None:
    meter = Meter()
    for stall in [9.0] * 50 + [1.0] * 20:
        meter.staged(stall)
    assert meter.figures().cost == 1.0


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1.0))
def test_quantile(values: list[float], q: float) -> None:
    found = quantile(values, q)
    assert found in values
    assert sum(v <= found for v in values) >= q * len(values) - 1e-6
    assert sum(v < found for v in values) < q * len(values)


# --- interruptions ---------------------------------------------------------------------------


class Journal:
    """Just the records that make a history, folded."""

    def __init__(self) -> None:
        self.state, self._seq = RunState(), 0
        digest = "sha256:" + "0" * 64
        self.add(Kind.RUN_CREATED, 0.0, run_id="r", spec={}, spec_digest=digest, seed=0, promise="bitwise")

    def add(self, kind: Kind, time: float, **payload: object) -> None:
        generation = self.state.generation + (kind is Kind.GENERATION_STARTED)
        record = Record(self._seq, generation, 0, "l", f"{self._seq:032x}", kind, payload, time=time)
        self.state, verdict = apply(self.state, record)
        assert verdict.effective, verdict.reason
        self._seq += 1

    def start(self, time: float, **more: object) -> None:
        head = self.state.head
        self.add(
            Kind.GENERATION_STARTED, time,
            restore_point=head, manifest_digest=None if head is None else "", members=["dp0"], takeover=False,
            **more,
        )  # fmt: skip

    def fail(self, time: float, kind: str = "F1") -> None:
        self.add(Kind.FAILURE, time, **{"class": kind, "signature": "s", "evidence": None, "step": None})

    def commit(self, time: float, step: int) -> None:
        c = self.state.next_c
        parent = self.state.head
        self.add(Kind.CHECKPOINT_ALLOCATED, time, c=c, step=step, parent=parent)
        self.add(
            Kind.CHECKPOINT_COMMITTED, time, c=c, step=step, parent=parent, manifest="m", manifest_digest="",
            bytes=1, bytes_written=1, tiers=["disk"], cursor_digest="", reuses=[], ledger=None,
        )  # fmt: skip


def test_every_generation_that_was_replaced_is_an_interruption() -> None:
    journal = Journal()
    journal.start(0.0)
    journal.commit(1000.0, 1)
    journal.start(2000.0)
    journal.commit(2600.0, 2)
    journal.start(9000.0)
    found = read_history(journal.state, burst=100.0).lived(500.0)
    assert [each.time for each in found.interruptions] == [1000.0, 2600.0]
    assert found.uptime == 1000.0 + 600.0 + 500.0  # not the time it was down
    assert found.gaps == (1000.0, 600.0)


def test_going_back_by_oneself_is_none() -> None:
    journal = Journal()
    journal.start(0.0)
    journal.commit(1000.0, 1)
    journal.start(2000.0, asked=True)
    journal.commit(3000.0, 2)
    journal.start(4000.0)
    found = read_history(journal.state, burst=1.0)
    assert [each.time for each in found.interruptions] == [3000.0]
    assert found.uptime == 2000.0 and found.gaps == (2000.0,)


def test_a_drain_that_lost_no_work_is_none() -> None:
    journal = Journal()
    journal.start(0.0)
    journal.add(Kind.RUN_DRAINING, 100.0, reason="SIGTERM", step=5)
    journal.commit(110.0, 5)
    journal.start(200.0)
    found = read_history(journal.state, burst=1.0)
    assert found.interruptions == () and found.planned == 1


def test_a_drain_counts_before_anybody_has_started_again() -> None:
    journal = Journal()
    journal.start(0.0)
    journal.commit(90.0, 5)
    journal.start(200.0)
    journal.add(Kind.RUN_DRAINING, 210.0, reason="SIGTERM", step=5)  # right after its start: nothing is lost
    assert read_history(journal.state, burst=1.0).planned == 1


def test_a_drain_that_never_committed_is_one() -> None:
    journal = Journal()
    journal.start(0.0)
    journal.commit(90.0, 4)
    journal.add(Kind.RUN_DRAINING, 100.0, reason="SIGTERM", step=5)
    journal.start(200.0)
    assert len(read_history(journal.state, burst=1.0).interruptions) == 1


def test_the_end_of_the_run_is_none() -> None:
    journal = Journal()
    journal.start(0.0)
    journal.commit(90.0, 4)
    journal.add(Kind.RUN_SUCCEEDED, 100.0, c=0, target=None)
    found = read_history(journal.state, burst=1.0)
    assert found.interruptions == () and found.planned == 0 and found.uptime == 90.0


def test_a_burst_is_one_incident_and_takes_the_widest_domain() -> None:
    journal = Journal()
    for time, kind in ((0.0, "F1"), (100.0, "F2"), (150.0, "F1")):
        journal.start(time)
        journal.fail(time + 40.0, kind)
    journal.start(1000.0)
    found = read_history(journal.state, burst=180.0)
    assert [(each.time, each.domain) for each in found.interruptions] == [(40.0, "host")]
    apart = read_history(journal.state, burst=1.0)
    assert [each.domain for each in apart.interruptions] == ["process", "host", "process"]


def test_a_crash_loop_is_not_one_incident_for_ever() -> None:
    journal = Journal()
    for i in range(11):
        journal.start(i * 100.0)
    assert len(read_history(journal.state, burst=250.0).interruptions) == 4


def test_a_failed_write_interrupts_nothing() -> None:
    journal = Journal()
    journal.start(0.0)
    journal.fail(50.0, "F10")
    assert read_history(journal.state, burst=1.0).interruptions == ()


def test_the_prior_is_worth_one_failure() -> None:
    rate = estimate(history.History(), prior_mtbf=3600.0)
    assert rate.mtbf == 3600.0 and rate.failures == 0
    assert sum(rate.by_domain.values()) == pytest.approx(1 / 3600.0)
    with pytest.raises(UsageError):
        estimate(history.History(), prior_mtbf=0.0)


@given(st.integers(0, 50), st.floats(0, 1e7), st.floats(1, 1e6))
def test_the_rates_of_the_domains_add_up(failures: int, uptime: float, prior: float) -> None:
    seen = tuple(history.Interruption(float(i), ("process", "host", "rack")[i % 3]) for i in range(failures))
    rate = estimate(history.History(uptime, seen), prior_mtbf=prior)
    assert sum(rate.by_domain.values()) == pytest.approx(1 / rate.mtbf)
    assert rate.mtbf == pytest.approx((prior + uptime) / (1 + failures))


def test_the_estimate_converges_from_a_wrong_prior() -> None:
    dice = random.Random(5)
    true = 1800.0
    gaps = tuple(dice.expovariate(1 / true) for _ in range(2000))
    seen = tuple(history.Interruption(float(i)) for i in range(len(gaps)))
    rate = estimate(history.History(sum(gaps), seen, gaps), prior_mtbf=1e6)
    assert rate.mtbf == pytest.approx(true, rel=0.35)
    near = estimate(history.History(sum(gaps), seen, gaps), prior_mtbf=4 * 3600.0)
    assert near.mtbf == pytest.approx(true, rel=0.06)


def test_exponential_gaps_pass_and_regular_or_clustered_ones_do_not() -> None:
    dice = random.Random(11)
    misfits = [history.exponential_misfit([dice.expovariate(1.0) for _ in range(20)]) for _ in range(400)]
    # Stephens' table: beyond 1.094 in 5 % of the cases, beyond 1.308 in 1 %; within four deviations.
    assert 3 <= sum(misfit is not None and misfit > 1.094 for misfit in misfits) <= 37
    assert sum(misfit is not None and misfit > history.MISFIT_LIMIT for misfit in misfits) <= 12
    regular = [1.0 + 0.01 * i for i in range(20)]
    clustered = [0.01] * 15 + [100.0] * 5
    for gaps in (regular, clustered):
        misfit = history.exponential_misfit(gaps)
        assert misfit is not None and misfit > history.MISFIT_LIMIT
        rate = estimate(history.History(sum(gaps), (), tuple(gaps)), prior_mtbf=1.0)
        assert rate.exponential is False
    assert history.exponential_misfit([1.0] * 4) is None
