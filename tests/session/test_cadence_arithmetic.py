"""The arithmetic of the sources, checked: what they got right, and what they did not."""

from __future__ import annotations

import pytest

from durable_core.errors import UsageError
from durable_core.session.cadence import arithmetic as a
from durable_core.session.cadence import model

HOUR = 3600.0


def test_two_percent_a_year_per_card() -> None:
    """0.0055 % a day; 10,000 such cards are interrupted every 43.8 h."""
    assert a.DAY_S / a.of_annual_rate(0.02) == pytest.approx(0.0000548, rel=0.001)
    assert a.cluster_mtbf(a.of_annual_rate(0.02), 10_000) / HOUR == pytest.approx(43.8)


def test_a_week_of_ten_thousand_cards_is_hardly_ever_quiet() -> None:
    """Published as "nearly 70 %": it is 97.8 %, and 70 % would need 0.63 % a year."""
    assert a.at_least_one(7 * a.DAY_S, a.cluster_mtbf(a.of_annual_rate(0.02), 10_000)) == pytest.approx(
        0.978, abs=0.0005
    )
    assert a.at_least_one(7 * a.DAY_S, a.cluster_mtbf(a.of_annual_rate(0.0063), 10_000)) == pytest.approx(
        0.70, abs=0.005
    )


def test_a_month_of_them_never_is() -> None:
    quiet = 1 - a.at_least_one(30 * a.DAY_S, a.cluster_mtbf(a.of_annual_rate(0.02), 10_000))
    assert quiet == pytest.approx(7.3e-8, rel=0.01)


def test_five_years_over_ten_thousand_is_4_38_hours_and_ten_times_the_other_rate() -> None:
    mtbf = a.cluster_mtbf(5 * a.YEAR_S, 10_000)
    assert mtbf / HOUR == pytest.approx(4.38)
    assert a.of_annual_rate(0.02) / (5 * a.YEAR_S) == pytest.approx(10.0)


def test_published_interruptions_scaled_to_ten_thousand_cards() -> None:
    """466 in 54 days on 16,384; 6.50 per 1000 node-days on 1,250 nodes."""
    assert pytest.approx(4.56, abs=0.005) == 54 * 24 / 466 * 16_384 / 10_000
    assert a.cluster_mtbf(1000 / 6.50 * a.DAY_S, 1250) / HOUR == pytest.approx(2.95, abs=0.005)


def test_seven_hundred_billion_parameters_are_9_8_terabytes() -> None:
    size = a.state_size(700 * 10**9)
    assert list(size.parts.values()) == [1_400 * 10**9, 2_800 * 10**9, 2_800 * 10**9, 2_800 * 10**9]
    assert size.total == 9_800 * 10**9


def test_a_trillion_without_and_with_master_weights() -> None:
    assert a.state_size(10**12, "bf16-adam").total == 10 * 10**12
    assert a.state_size(10**12).total == 14 * 10**12
    assert a.state_size(10**12, "bf16-weights").total == 2 * 10**12


def test_one_node_writes_for_an_hour_and_a_cluster_for_400_seconds() -> None:
    assert model.sync_full_seconds(9.8e12, 2.72e9) == pytest.approx(HOUR, rel=0.001)
    assert model.sync_full_seconds(8e12, 20e9) == 400.0
    assert model.sync_full_seconds(9.8e12, 20e9) == 490.0


def test_what_the_synchronous_save_costs_at_that_rate() -> None:
    mtbf = 4.38 * HOUR
    interval = model.young(400.0, mtbf)
    assert interval / 60 == pytest.approx(59, abs=0.5)
    assert model.waste(interval, 400.0, mtbf) == pytest.approx(0.225, abs=0.0005)


def test_a_step_of_a_published_schedule_as_a_cursor() -> None:
    """Step 10,000 is batch 178 of the fourth epoch: 3,274 batches an epoch."""
    assert divmod(10_000 - 178, 3) == (3274, 0)


def test_async_saves_lose_an_interval_and_the_lag_at_worst() -> None:
    _, full, _ = model.strategies(
        9.8e12, bytes_per_second=20e9, copy_bytes_per_second=6.25e12, mtbf=4.38 * HOUR, restart=180.0
    )
    assert full.rpo == full.interval + full.lag == pytest.approx(full.interval + 490.0)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("inf"), float("nan")])
def test_what_is_no_rate_is_refused(bad: float) -> None:
    for made in (
        lambda: a.of_annual_rate(bad),
        lambda: a.cluster_mtbf(bad, 1),
        lambda: a.at_least_one(1.0, bad),
    ):
        with pytest.raises(UsageError):
            made()


def test_what_is_no_size_is_refused() -> None:
    for made in (
        lambda: a.state_size(0),
        lambda: a.state_size(5, "fp4-lion"),
        lambda: a.cluster_mtbf(1.0, 0),
    ):
        with pytest.raises(UsageError):
            made()
