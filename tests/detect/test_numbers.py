"""Non-finite numbers and spikes: found when they are there, silent when they are not."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest

from durable_core.detect.base import Finding, Step
from durable_core.detect.finite import SKIPPED_IN_A_ROW, NonFinite
from durable_core.detect.spike import Spike, Spikes
from durable_core.errors import UsageError

NAN, INF = math.nan, math.inf


def told(detector, samples: Iterable[Step]) -> list[Finding]:
    return [finding for sample in samples if (finding := detector.judge(sample)) is not None]


# --- not finite ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "norm", "onset", "signature"),
    [
        (NAN, None, 4, "non-finite:loss"),  # the loss is of the weights that step 4 left
        (-INF, 1.0, 4, "non-finite:loss"),
        (1.0, INF, 5, "non-finite:grad_norm"),  # a finite loss speaks for the weights it was computed from
        (NAN, NAN, 4, "non-finite:loss+grad_norm"),
    ],
)
def test_what_is_not_finite_is_found_with_its_onset(loss, norm, onset, signature):
    (found,) = told(NonFinite(), [Step(5, loss, norm)])
    assert (found.failure, found.step, found.onset, found.signature) == ("F12", 5, onset, signature)


def test_the_initial_state_is_nobodys_fault():
    (found,) = told(NonFinite(), [Step(1, NAN)])
    assert found.onset == 1


def test_it_is_told_once_until_it_has_ended():
    losses = [1.0, NAN, NAN, NAN, 1.0, INF]
    detector = NonFinite()
    assert [found.step for found in told(detector, map(Step, range(1, 7), losses))] == [2, 6]
    assert detector.standing


def test_a_step_that_a_scaler_skipped_is_not_judged():
    """Searching for its scale is what it does."""
    detector = NonFinite()
    skipped = [Step(step, 1.0, INF, updated=False) for step in range(1, SKIPPED_IN_A_ROW)]
    assert not told(detector, skipped) and not detector.standing
    assert not told(detector, [Step(SKIPPED_IN_A_ROW, 1.0, 2.0)])


def test_a_scaler_that_finds_none_is_no_search_any_more():
    """With NaN in the weights every update is skipped, for ever."""
    steps = [Step(step, NAN, NAN, updated=False) for step in range(11, 11 + SKIPPED_IN_A_ROW + 5)]
    (found,) = told(NonFinite(), steps)
    assert (found.step, found.onset) == (10 + SKIPPED_IN_A_ROW, 10)
    assert f"{SKIPPED_IN_A_ROW} updates in a row" in found.reason


def test_what_is_not_reported_is_not_judged():
    assert not told(NonFinite(), [Step(1)])


# --- spikes ----------------------------------------------------------------------------------


def series(count: int, draw) -> list[float]:
    """A loss that falls from 4 to 2, with noise."""
    return [2 + 2 * math.exp(-step / 200) + draw() for step in range(count)]


def student(source: random.Random, freedom: int) -> float:
    """Student's t: a normal over the root of a chi-square."""
    chi = math.fsum(source.gauss(0, 1) ** 2 for _ in range(freedom))
    return source.gauss(0, 1) / math.sqrt(chi / freedom)


NOISES = {
    "normal": lambda source: 0.02 * source.gauss(0, 1),
    "student-3": lambda source: 0.02 * student(source, 3),
    "exponential": lambda source: 0.02 * source.expovariate(1),
    "outliers": lambda source: 0.02 * source.gauss(0, 1) + (0.5 if source.random() < 0.02 else 0),
}


@pytest.mark.parametrize("noise", NOISES)
def test_clean_series_raise_no_alarm_however_heavy_their_tails(noise):
    """Expected in these 8 x 2,000 steps: fewer than 0.2 of them, by the bound in ``Spikes`` for the worst."""
    alarms = 0
    for seed in range(8):
        source = random.Random(seed)
        losses = series(2000, lambda source=source: NOISES[noise](source))
        alarms += len(told(Spike("loss", Spikes()), map(Step, range(1, 2001), losses)))
    assert alarms == 0


def test_without_patience_heavy_tails_do_raise_alarms():
    """That the test above can fail."""
    source = random.Random(0)
    losses = series(2000, lambda: NOISES["student-3"](source))
    assert told(Spike("loss", Spikes(patience=1)), map(Step, range(1, 2001), losses))


@pytest.mark.parametrize("noise", NOISES)
def test_a_lasting_spike_is_found_within_its_patience(noise):
    source = random.Random(1)
    losses = series(400, lambda: NOISES[noise](source))
    losses[300:] = [loss + 3 for loss in losses[300:]]
    detector = Spike("loss", Spikes())
    found, *more = told(detector, map(Step, range(1, 401), losses))
    assert (found.step, found.onset) == (303, 300), "steps 301 to 303; the loss of 301 is of what 300 left"
    assert found.failure == "F12" and not more
    assert not detector.standing, "after some steps it is the level"


def test_one_step_alone_is_none_and_drops_never_are():
    source = random.Random(2)
    losses = series(400, lambda: 0.02 * source.gauss(0, 1))
    losses[200] += 50
    losses[250:] = [loss - 1.5 for loss in losses[250:]]
    assert not told(Spike("loss", Spikes()), map(Step, range(1, 401), losses))


def test_an_alarm_ends_below_calm_and_not_between():
    """Hysteresis: what swings around the limit is one alarm."""
    base = [1.0 + 0.01 * (step % 5) for step in range(100)]
    deviation = 1.4826 * 0.01
    between = [1.02 + factor * deviation for factor in (7, 7, 7, 4, 7, 7, 7, 4, 7, 7, 7)]
    detector = Spike("loss", Spikes())
    assert len(told(detector, map(Step, range(1, 112), base + between))) == 1
    assert detector.standing
    told(detector, [Step(200, 1.0)])
    assert not detector.standing


def test_the_warm_up_is_not_judged_and_rows_of_before_a_restore_count_for_it():
    settings = Spikes(warm_up=8, window=16)
    falling = [100.0, 50, 1, 1.1, 1.2, 30, 40, 50]
    assert not told(Spike("loss", settings), map(Step, range(1, 9), falling))
    warmed = Spike("loss", settings)
    warmed.warm(Step(step, 1 + 0.01 * (step % 3)) for step in range(1, 9))
    assert [found.step for found in told(warmed, map(Step, range(9, 13), [9.0] * 4))] == [11]


def test_a_loss_that_stands_still_raises_no_alarm_at_rounding():
    losses = [0.5] * 100 + [0.5 + 1e-9] * 10
    assert not told(Spike("loss", Spikes()), map(Step, range(1, 111), losses))


def test_gradient_norms_are_judged_by_their_logarithm():
    source = random.Random(3)
    norms = [math.exp(source.gauss(0, 1)) for _ in range(1000)]  # their own tail reaches 30 times the median
    detector = Spike("grad_norm", Spikes())
    assert not told(detector, (Step(step, None, norm) for step, norm in enumerate(norms, 1)))
    (found,) = told(detector, (Step(1001 + step, None, 1e6) for step in range(3)))
    assert found.signature == "spike:grad_norm" and "1000000" in found.reason


def test_what_is_not_finite_is_left_to_the_other_detector():
    assert not told(Spike("loss", Spikes()), (Step(step, NAN) for step in range(1, 200)))


@pytest.mark.parametrize(
    "bad", [{"calm": 7.0}, {"limit": -1.0}, {"patience": 0}, {"warm_up": 3}, {"window": 10}, {"limit": INF}]
)
def test_settings_of_spikes_are_checked(bad):
    with pytest.raises(UsageError):
        Spikes(**bad)
