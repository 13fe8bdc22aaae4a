"""The cost model against the numbers of its sources, and the properties that make an optimum one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_core.errors import UsageError
from durable_core.session.cadence import model

C, M, RESTART = 30.0, 6 * 3600.0, 180.0

costs = st.floats(1e-6, 1e4)
mtbfs = st.floats(1.0, 1e8)


def test_thirty_seconds_every_six_hours() -> None:
    assert model.young(C, M) == pytest.approx(1138.42, abs=0.005)  # 18.97 min
    assert model.daly(C, M) == pytest.approx(1118.51, abs=0.005)
    assert model.exact(C, M) == pytest.approx(1118.51, abs=0.005)


@pytest.mark.parametrize(
    ("minutes", "percent"), [(5, 11.53), (10, 7.22), (20, 6.11), (40, 7.64), (80, 12.57)]
)
def test_waste_of_the_published_program(minutes: float, percent: float) -> None:
    assert 100 * model.waste(minutes * 60, C, M, restart=RESTART) == pytest.approx(percent, abs=0.005)


def test_least_waste_is_at_youngs_interval() -> None:
    assert 100 * model.waste(model.young(C, M), C, M, restart=RESTART) == pytest.approx(6.104, abs=0.0005)


@pytest.mark.parametrize(
    ("cost", "young", "daly", "exact"),
    [(60, 268.3, 229.8, 229.9), (300, 600.0, 416.7, 419.0), (1200, 1200.0, 600.0, 568.5)],
)
def test_frequent_interruptions(cost: float, young: float, daly: float, exact: float) -> None:
    assert model.young(cost, 600.0) == pytest.approx(young, abs=0.05)
    assert model.daly(cost, 600.0) == pytest.approx(daly, abs=0.05)
    assert model.exact(cost, 600.0) == pytest.approx(exact, abs=0.05)


def test_lag_costs_but_does_not_move_the_optimum() -> None:
    at = [model.waste(t, C, M, lag=500.0) - model.waste(t, C, M) for t in (300.0, 1138.42, 5000.0)]
    assert at == pytest.approx([500.0 / M] * 3)


@given(costs, mtbfs)
def test_exact_is_the_root_of_its_equation(cost: float, mtbf: float) -> None:
    u = model.exact(cost, mtbf) / mtbf
    assert 0.0 < u <= 1.0
    if u < 1.0 - 1e-9:
        # The residue of the equation, as an error of u: its slope there is u / (1 - u).
        residue = (-math.log1p(-u) - u - cost / mtbf) * (1.0 - u) / u
        assert abs(residue) <= 1e-9 * u + 1e-15 / u


@given(costs, mtbfs, st.floats(0.05, 20.0))
def test_no_other_interval_wastes_less(cost: float, mtbf: float, factor: float) -> None:
    best = model.exact(cost, mtbf)
    assert model.exact_waste(best, cost, mtbf) <= model.exact_waste(best * factor, cost, mtbf) + 1e-12


@given(costs, mtbfs)
def test_daly_is_within_a_percent_while_it_is_meant_to_hold(cost: float, mtbf: float) -> None:
    if cost <= mtbf / 2:
        assert model.daly(cost, mtbf) == pytest.approx(model.exact(cost, mtbf), rel=0.01)
    if cost >= 2 * mtbf:
        assert model.daly(cost, mtbf) == mtbf


@given(costs, mtbfs, st.floats(1.001, 10.0), st.sampled_from(["exact", "young"]))
def test_costlier_saves_and_rarer_failures_lengthen_the_interval(
    cost: float, mtbf: float, factor: float, method: model.Method
) -> None:
    interval = model.METHODS[method]
    assert interval(cost * factor, mtbf) >= interval(cost, mtbf) * (1 - 1e-9)
    assert interval(cost, mtbf * factor) >= interval(cost, mtbf) * (1 - 1e-9)


def test_hopeless_intervals_waste_everything() -> None:
    assert model.exact_waste(1e6, 1.0, 1.0) == 1.0
    assert model.exact(1e5, 1.0) == 1.0
    assert model.exact(0.0, 1.0) == 0.0


# --- several tiers ---------------------------------------------------------------------------


def test_each_tier_has_the_optimum_of_the_failures_it_recovers() -> None:
    loads = [model.Load(0.1, 1 / 7200.0), model.Load(2.0, 1 / 86400.0), model.Load(5.0, 0.0)]
    intervals = [model.tier_interval(load) for load in loads]
    assert intervals[0] == pytest.approx(math.sqrt(2 * 0.1 * 7200))
    assert intervals[2] == math.inf
    best = model.tiered_waste(intervals, loads)
    for i in range(2):
        for factor in (0.8, 1.25):
            other = [t * factor if i == j else t for j, t in enumerate(intervals)]
            assert model.tiered_waste(other, loads) > best


@given(st.lists(st.floats(0.5, 1e6), min_size=1, max_size=5), st.data())
def test_slower_tiers_are_multiples_within_their_bounds(wanted: list[float], data: st.DataObject) -> None:
    most = [data.draw(st.one_of(st.just(math.inf), st.floats(1, 1e6))) for _ in wanted]
    steps = model.nested(wanted, most)
    for i, (before, after) in enumerate(zip((1, *steps), steps, strict=False)):
        assert after % before == 0
        assert after <= max(before, most[i])
        if most[i] == math.inf:  # nearest: no neighbouring multiple is closer
            assert abs(after - wanted[i]) <= max(before / 2 + 1e-6, before - wanted[i] + 1e-6)


# --- strategies ------------------------------------------------------------------------------


def test_synchronous_baseline() -> None:
    assert model.sync_full_seconds(8e12, 20e9) == 400.0
    assert model.sync_full_seconds(9.8e12, 2.72e9) == pytest.approx(3600, rel=0.01)


def test_strategies_compared() -> None:
    sync, full, incremental = model.strategies(
        8e12, bytes_per_second=20e9, copy_bytes_per_second=5e11, mtbf=4.38 * 3600, restart=180.0, changed=0.1
    )
    assert (sync.cost, sync.extra_bytes, sync.lag) == (400.0, 0.0, 0.0)
    assert (full.cost, full.extra_bytes, full.lag) == (16.0, 16e12, 400.0)
    assert incremental.cost == pytest.approx(1.6) and incremental.lag == pytest.approx(40.0)
    assert full.interval >= full.lag / 2  # two slots drain no faster than the writes
    assert sync.waste > full.waste > incremental.waste
    assert full.rpo == full.interval + full.lag


@pytest.mark.parametrize("bad", [{"changed": 0.0}, {"mtbf": 0.0}, {"slots": 0}, {"bytes_per_second": 0.0}])
def test_figures_that_make_no_sense_are_refused(bad: dict[str, float]) -> None:
    good = {"bytes_per_second": 1e9, "copy_bytes_per_second": 5e9, "mtbf": 3600.0}
    with pytest.raises(UsageError):
        model.strategies(1e9, **{**good, **bad})  # type: ignore[arg-type]
