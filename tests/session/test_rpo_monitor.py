"""The monitor against ground truth: a history is simulated, a domain is lost, and what remains is counted."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_core.errors import UsageError
from durable_core.session.goals import default_traits
from durable_core.session.monitor import Mark, Monitor
from durable_core.spec.goals import DOMAINS, FATES, Goal
from durable_core.types import Traits

TIERS = {name: default_traits(name) for name in ("memory", "peer", "disk")} | {
    "remote": Traits(default_traits("remote").survives, frozenset({"credentials"}))
}


def mark(step: int) -> Mark:
    return Mark(step, 10.0 * step, 1000 * step)


def monitor(*goals: Goal, home: str | None = "remote", **more: object) -> Monitor:
    return Monitor(TIERS, goals, home=home, **more)  # type: ignore[arg-type]


def test_nothing_saved_means_starting_over() -> None:
    watch = monitor(Goal("process", rpo_steps=2))
    watch.reached(mark(3))
    found = watch.standing("process", 31.0)
    assert (found.tier, found.newest.step, found.gap_steps, found.gap_seconds) == (None, 0, 3, 31.0)
    assert [each.domain for each in found.breached] == ["process"]


def test_each_domain_has_its_own_newest_step() -> None:
    watch = monitor()
    watch.committed(0, mark(1), ["disk", "remote"])
    watch.committed(1, mark(4), ["disk"])
    watch.sealed("peer", mark(5))
    watch.sealed("memory", mark(6))
    watch.reached(mark(7))
    newest = {d: (watch.standing(d, 70.0).tier, watch.standing(d, 70.0).newest.step) for d in DOMAINS}
    assert newest == {
        "process": ("memory", 6), "host": ("peer", 5), "rack": ("remote", 1), "cluster": ("remote", 1),
        "region": (None, 0),
    }  # fmt: skip
    watch.added(1, "remote")
    assert watch.standing("cluster", 70.0).newest.step == 4
    assert watch.standing("cluster", 71.5).gap_seconds == 31.5
    assert watch.standing("cluster", 70.0).gap_tokens == 3000


def test_lag_is_told_in_steps_seconds_and_tokens() -> None:
    watch = monitor()
    watch.committed(0, mark(2), ["disk"])
    watch.reached(mark(5))
    lag = watch.lag("disk", 53.0)
    assert (lag.steps, lag.seconds, lag.tokens) == (3, 33.0, 3000)
    assert watch.lag("remote", 53.0).steps == 5


def test_a_throttled_store_lags_by_its_delay() -> None:
    watch, delay = monitor(), 3
    for step in range(1, 30):
        watch.reached(mark(step))
        if step > delay:
            watch.committed(step, mark(step - delay), ["remote"])
            assert watch.lag("remote", mark(step).time).steps == delay
            assert watch.lag("remote", mark(step).time).seconds == 10.0 * delay


def test_breaches_are_told_by_domain() -> None:
    watch = monitor(
        Goal("process", rpo_steps=2), Goal("cluster", rpo_seconds=25.0), Goal("host", rto_seconds=1.0)
    )
    watch.committed(0, mark(1), ["disk", "remote"])
    watch.sealed("memory", mark(3))
    watch.reached(mark(3))
    assert watch.breaches(30.0) == ()
    assert [each.domain for each in watch.breaches(36.0)] == ["cluster"]
    watch.freed("memory", 3)
    watch.reached(mark(4))
    assert [each.domain for each in watch.breaches(40.0)] == ["process", "cluster"]


def test_a_snapshot_that_not_all_have_sealed_is_none() -> None:
    watch = monitor(roles=("dp0", "dp1"))
    watch.sealed("memory", mark(4), "dp0")
    watch.sealed("memory", mark(3), "dp0")
    watch.sealed("memory", mark(3), "dp1")
    assert watch.standing("process", 50.0).newest.step == 3
    watch.freed("memory", 3, "dp1")
    assert watch.standing("process", 50.0).tier is None
    watch.sealed("memory", mark(3), "dp1")
    assert watch.standing("process", 50.0).newest.step == 3


def test_a_snapshot_before_the_newest_commit_cannot_be_adopted() -> None:
    watch = monitor()
    watch.committed(0, mark(2), ["remote", "disk"])
    watch.sealed("peer", mark(4))
    assert watch.standing("host", 50.0).newest.step == 4
    watch.committed(1, mark(5), ["disk"])
    assert watch.standing("host", 50.0).newest.step == 2
    watch.sealed("peer", mark(5))  # the bytes of a checkpoint: found by content
    assert watch.standing("host", 50.0).newest.step == 5


def test_nothing_is_recoverable_without_the_journal() -> None:
    watch = monitor(home="disk")
    watch.sealed("peer", mark(4))
    assert watch.standing("host", 50.0).tier is None
    with pytest.raises(UsageError):
        monitor(home="floppy")


def test_goals_for_a_shared_fate_are_watched() -> None:
    watch = Monitor(TIERS, [Goal("credentials", rpo_steps=1)], home="disk")
    watch.committed(0, mark(1), ["remote"])
    watch.reached(mark(3))
    assert watch.standings(30.0)[-1].domain == "credentials"
    assert watch.breaches(30.0)[0].tier is None


# --- ground truth ----------------------------------------------------------------------------


@dataclass
class Truth:
    """A world of objects: each lies in one tier, under one role, with the step its bytes are of."""

    roles: tuple[str, ...]
    step: int = 0
    snapshots: set[tuple[str, str, int]] = field(default_factory=set)
    checkpoints: dict[int, int] = field(default_factory=dict)
    copies: set[tuple[str, int]] = field(default_factory=set)
    head: int = -1

    def recoverable(self, domain: str, tiers: dict[str, Traits], home: str) -> int:
        """Destroy, then look at what is left and restore as a restart would."""

        def gone(tier: str) -> bool:
            traits = tiers[tier]
            return domain in traits.shares_fate or (domain in DOMAINS and domain not in traits.survives)

        if gone(home):
            return 0
        snapshots = {each for each in self.snapshots if not gone(each[0])}
        copies = {each for each in self.copies if not gone(each[0])}
        whole = [
            step
            for tier in tiers
            for step in range(self.step + 1)
            if all((tier, role, step) in snapshots for role in self.roles)
        ]
        adopted = [step for step in whole if step > self.head]
        if adopted:
            return max(adopted)
        for _, step in sorted(self.checkpoints.items(), key=lambda item: -item[1]):
            held = any(
                (tier, c) in copies for tier in tiers for c, s in self.checkpoints.items() if s == step
            )
            if held or step in whole:
                return step
        return 0


actions = st.lists(
    st.tuples(
        st.sampled_from(["step", "step", "seal", "free", "commit", "add", "drop"]), st.integers(0, 10**6)
    ),
    max_size=60,
)
traits = st.builds(
    Traits, st.frozensets(st.sampled_from(DOMAINS)), st.frozensets(st.sampled_from(FATES), max_size=2)
)


@settings(deadline=None)
@given(actions, st.lists(traits, min_size=4, max_size=4), st.integers(1, 3), st.sampled_from(sorted(TIERS)))
def test_the_monitor_equals_ground_truth(
    history: list[tuple[str, int]], declared: list[Traits], writers: int, home: str
) -> None:
    tiers = dict(zip(TIERS, declared, strict=True))
    roles = tuple(f"dp{i}" for i in range(writers))
    truth, watch, names = Truth(roles), Monitor(tiers, home=home, roles=roles), tuple(tiers)
    for action, dice in history:
        tier, role = names[dice % 4], roles[dice % writers]
        if action == "step":
            truth.step += 1
            watch.reached(mark(truth.step))
        elif action == "seal":
            truth.snapshots.add((tier, role, truth.step))
            watch.sealed(tier, mark(truth.step), role)
        elif action == "free" and truth.snapshots:
            lost = sorted(truth.snapshots)[dice % len(truth.snapshots)]
            truth.snapshots.discard(lost)
            watch.freed(lost[0], lost[2], lost[1])
        elif action == "commit" and truth.step > truth.head:
            c = truth.head = truth.step
            truth.checkpoints[c] = c
            truth.copies.add((tier, c))
            watch.committed(c, mark(c), [tier])
        elif action == "add" and truth.checkpoints:
            c = sorted(truth.checkpoints)[dice % len(truth.checkpoints)]
            truth.copies.add((tier, c))
            watch.added(c, tier)
        elif action == "drop" and truth.checkpoints:
            c = sorted(truth.checkpoints)[dice % len(truth.checkpoints)]
            everywhere = bool(dice % 2)
            truth.copies -= {(t, c) for t in (names if everywhere else (tier,))}
            watch.dropped(c, None if everywhere else tier)
            if everywhere:
                del truth.checkpoints[c]
        for domain in DOMAINS + FATES:
            now = 10.0 * truth.step + 3.0
            found = watch.standing(domain, now)
            expected = truth.recoverable(domain, tiers, home)
            assert found.newest.step == expected
            assert found.gap_steps == truth.step - expected
            assert found.gap_seconds == pytest.approx(now - 10.0 * expected)
