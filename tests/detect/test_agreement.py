"""Replays, replicas and steps computed twice: what a difference points to, and what is said to be covered."""

from __future__ import annotations

import pytest

from durable_core.detect.policy import LIMITS, Integrity, coverage
from durable_core.detect.recompute import Recompute, Twice
from durable_core.detect.replay import Replay, Replayed
from durable_core.detect.replicas import Digests, Replicas, odd_ones_out
from durable_core.errors import UsageError

# --- replays ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "onset"),
    [
        (11, 10),  # right at the beginning: it may be the checkpoint of step 10 that is wrong
        (12, 10),
        (13, 12),  # its loss is of what step 12 left; the one of step 12, of step 11's, was the same
        (40, 39),
    ],
)
def test_a_replay_that_differs_early_speaks_against_its_checkpoint(step, onset):
    found = Replay().judge(Replayed(step, 10, "loss differs"))
    assert found is not None
    assert (found.failure, found.step, found.onset, found.signature) == (
        "F13",
        step,
        onset,
        "replay-mismatch",
    )


def test_steps_that_follow_from_a_difference_are_no_news():
    replay = Replay()
    assert replay.judge(Replayed(11, 10)) is None and not replay.standing
    assert replay.judge(Replayed(12, 10, "loss differs")) is not None and replay.standing
    assert replay.judge(Replayed(13, 10, "loss differs")) is None


# --- replicas --------------------------------------------------------------------------------


def test_two_that_differ_do_not_tell_which_is_wrong():
    found = Replicas(5, 0).judge(Digests(5, {"dp0": "a", "dp1": "b"}))
    assert found is not None and found.suspects == ()
    assert "cannot be told" in found.reason


@pytest.mark.parametrize(
    ("digests", "suspects"),
    [
        ("aab", ("dp2",)),
        ("abaa", ("dp1",)),
        ("aabb", ()),
        ("abc", ()),
        ("aaabc", ("dp3", "dp4")),
    ],
)
def test_of_three_or_more_the_odd_one_out_is_named(digests, suspects):
    named = {f"dp{place}": digest for place, digest in enumerate(digests)}
    found = Replicas(1, 0).judge(Digests(1, named, ("model/w",)))
    assert found is not None and found.suspects == suspects == odd_ones_out(named)[0]
    assert "model/w" in found.reason


def test_the_onset_is_right_after_the_last_agreement():
    replicas = Replicas(5, restored=20)
    assert replicas.judge(Digests(25, {"dp0": "a", "dp1": "a"})) is None
    assert replicas.agreed == 25
    found = replicas.judge(Digests(30, {"dp0": "a", "dp1": "b"}))
    assert found is not None and found.onset == 26
    assert replicas.judge(Digests(35, {"dp0": "a", "dp1": "b"})) is None, "told, and it has not ended"


def test_what_differs_from_the_start_on_was_restored_so():
    found = Replicas(5, restored=20).judge(Digests(21, {"dp0": "a", "dp1": "b"}))
    assert found is not None and found.onset == 20, "the restore point itself is not trusted"


# --- computed twice --------------------------------------------------------------------------


def test_what_was_computed_twice_and_differs_puts_all_since_the_last_check_in_doubt():
    recompute = Recompute(10, restored=4)
    first = recompute.judge(Twice(10, "a", "b"))
    assert first is not None and (first.failure, first.onset) == ("F13", 5)
    assert recompute.judge(Twice(20, "a", "a")) is None and recompute.agreed == 20
    again = recompute.judge(Twice(30, "a", "b"))
    assert again is not None and again.onset == 21


# --- what is said ----------------------------------------------------------------------------


def test_every_detector_says_what_it_covers_and_what_it_does_not():
    rows = coverage(Integrity(replicas_every=50, recompute_every=100), replicas=2)
    assert [row.detector for row in rows if row.on] == [
        "non-finite", "spike:loss", "spike:grad_norm", "replay", "replicas", "recompute",
    ]  # fmt: skip
    assert all(row.covers and row.misses and row.version >= 1 for row in rows)
    assert {row.detector: row.period for row in rows}["replicas"] == 50
    assert "did not fire, and no more" in LIMITS and "not that the values were right" in LIMITS


def test_what_is_off_is_listed_as_off():
    rows = {row.detector: row.on for row in coverage(Integrity())}
    assert rows == {
        "non-finite": True, "spike:loss": True, "spike:grad_norm": True, "replay": True, "replicas": False,
        "recompute": False,
    }  # fmt: skip
    off = {
        row.detector: row.on for row in coverage(Integrity(non_finite=False, spikes=None, replicas_every=9))
    }
    assert not off["non-finite"] and not off["spike:loss"]
    assert not off["replicas"], "there is one replica"


def test_the_launcher_decides_what_a_finding_leads_to():
    assert Integrity().decided({}) == "continue"
    assert Integrity(on_numeric="stop").decided({"DURABLE_ON_NUMERIC": ""}) == "stop"
    assert Integrity(on_numeric="stop").decided({"DURABLE_ON_NUMERIC": "continue"}) == "continue"
    with pytest.raises(UsageError, match="DURABLE_ON_NUMERIC"):
        Integrity().decided({"DURABLE_ON_NUMERIC": "perhaps"})


@pytest.mark.parametrize(
    "bad",
    [{"on_numeric": "halt"}, {"replicas_every": 0}, {"recompute_every": True}, {"recompute_every": 1.5}],
)
def test_settings_of_integrity_are_checked(bad):
    with pytest.raises(UsageError, match=next(iter(bad))):
        Integrity(**bad)
