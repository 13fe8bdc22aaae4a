"""L5. What to do about a failure: again, elsewhere, later, or not at all. Pure, over the journal's history.

Every rule returns a decision with its reason, or ``None`` when it has nothing to say; the first that speaks
counts. Chance arrives as a number, so that all who decide from one journal decide alike.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from durable_core.commit.state import RunState
from durable_core.errors import UsageError
from durable_core.launch.causes import Origin
from durable_core.launch.classes import DRAINED, IN_FLIGHT, TABLE, UNITS, F, Retry, Source, Unit
from durable_core.launch.classify import Verdict
from durable_core.launch.past import Past, past, threshold
from durable_core.launch.policy import Policy as Policy


class Action(str, enum.Enum):
    RESTART = "restart"  # a new group, on the same placement
    REPLACE = "replace"  # a new group; what is quarantined is replaced, or another placement taken
    REQUEUE = "requeue"  # give the placement back, and ask again
    STOP = "stop"  # the launcher ends; the run stays as it is, and may go on
    FAIL = "fail"  # as STOP, and the journal says that the run has failed
    CONTINUE = "continue"  # the group trains on


_OF_THE_PROGRAM = frozenset({F.F1, F.F5, F.F8})  # whose repetition proves the program at fault
_ACTION = {Retry.IN_PLACE: Action.RESTART, Retry.REPLACE: Action.REPLACE, Retry.REQUEUE: Action.REQUEUE}
AGAIN = frozenset(_ACTION.values())


@dataclass(frozen=True)
class Quarantine:
    """What the next attempts leave out; ``name``: of the node, domain, image, object, path or checkpoint."""

    unit: Unit
    name: str


@dataclass(frozen=True)
class Decision:
    """``failure``: the class that it is decided as: the verdict's, or what its repetition shows.
    ``delay_s``: to wait before the next group. ``onset``: nothing from this step on is restored (F12, F13).
    ``exit_code``: of the launcher, for ``STOP`` and ``FAIL``."""

    action: Action
    delay_s: float
    charged: bool
    onset: int | None
    quarantine: tuple[Quarantine, ...]
    exit_code: int
    reason: str
    failure: F
    restore: Source = Source.NOTHING

    @property
    def again(self) -> bool:
        return self.action in AGAIN

    @property
    def told(self) -> str:
        """Why, and what is no longer counted on."""
        out = ", ".join(f"{one.unit.value} {one.name}" for one in self.quarantine)
        return self.reason + (f"; in quarantine from now on: {out}" if out else "")


@dataclass(frozen=True)
class _Case:
    state: RunState
    verdict: Verdict
    policy: Policy
    jitter: float
    now: float
    spent: Mapping[str, float]
    before: tuple[Past, ...]  # all of them

    @property
    def standing(self) -> tuple[Past, ...]:
        return tuple(one for one in self.before if not (one.forgiven or one.echo))

    @property
    def equal(self) -> tuple[Past, ...]:
        """Unforgiven failures of the same signature, which holds the step."""
        return tuple(one for one in self.standing if one.signature == self.verdict.signature)


def decide(state: RunState, verdict: Verdict, policy: Policy, *, jitter: float, now: float,
           spent: Mapping[str, float] | None = None, by: str = "",
           spare: bool = True) -> Decision:  # fmt: skip
    """What to do about ``verdict``. ``state``: the journal *before* this failure is recorded (``record``
    makes the line); ``jitter``: in [0, 1); ``now``: wall clock, compared with the times of records only;
    ``by``: who decides, for others may have recorded the same already; ``spare``: whether the group can do
    without one of its nodes: none is put in quarantine that it cannot do without.

    Deterministic. More failures that are not forgiven never make it more lenient, nor the delay shorter.
    """
    if not 0 <= jitter < 1:
        raise UsageError(f"jitter={jitter}", hint="a number in [0, 1)")
    case = _Case(state, verdict, policy, jitter, now, spent or {}, past(state, by))
    decision = next(filter(None, (rule(case) for rule in _RULES)), None)
    decision = decision or _again(case, verdict.failure, verdict.reason)
    denied = UNITS - policy.quarantine
    decision = _kept(decision, denied, "failure.quarantine does not name that")
    if spare:
        return decision
    return _kept(decision, {Unit.NODE}, "the group has no other node (--nnodes MIN:MAX)")


def record(state: RunState, verdict: Verdict, decision: Decision, by: str = "") -> dict[str, Any]:
    """The fields of the failure's record: ``books.Lapse(op_id=..., **record(...))``. ``state``: what was
    decided from; ``by``: who decided."""
    return {
        "failure": decision.failure.value,
        "signature": verdict.signature,
        "step": verdict.step if verdict.step is not None and verdict.step >= 0 else None,
        "action": decision.action.value,
        "charged": decision.charged,
        "placement": verdict.place,
        "onset": decision.onset,
        "further": {
            "beyond": threshold(state, verdict.step),
            "domain": verdict.domain,
            "object": verdict.object,
            "detect_s": verdict.detect_s,
            "by": by,
            "secondary": verdict.origin is Origin.SECONDARY,
        },
        "evidence": {
            "what": verdict.reason,
            "seen_as": verdict.failure.value,
            "also": [other.value for other in verdict.also],
            "culprit": verdict.culprit,
            "why": decision.reason,
            "delay_s": decision.delay_s,
            "quarantine": [{"unit": one.unit.value, "name": one.name} for one in decision.quarantine],
        },
    }


def suspects(state: RunState) -> tuple[Quarantine, ...]:
    """Nodes whose wrong numbers (F12) a replay came past without them: they computed wrong (SDC-08). A
    later generation has committed beyond the step, and none has found the same there."""
    lines = past(state)
    numeric = [one for one in lines if one.failure is F.F12 and one.place and not one.echo]
    found = [
        Quarantine(Unit.NODE, one.place) for one in numeric
        if one.forgiven and not any(other is not one and other.step == one.step for other in numeric)
    ]  # fmt: skip
    return tuple(dict.fromkeys(found))


def _kept(decision: Decision, units: Collection[Unit], why: str) -> Decision:
    """Without what stays, and why: nobody may leave it out, or no other can stand in for it (a run of which
    no node is left is no better off)."""
    names = [one.name for one in decision.quarantine if one.unit in units]
    if not names:
        return decision
    rest = tuple(one for one in decision.quarantine if one.unit not in units)
    told = f"{', '.join(names)} would be left out, and {why}"
    return replace(decision, quarantine=rest, reason=f"{decision.reason}; {told}")


# --- the rules, in their order ---------------------------------------------------------------


def _no_retry(case: _Case) -> Decision | None:
    """Some classes are never tried again, and some failures of others leave nothing to try."""
    verdict = case.verdict
    if verdict.hopeless:
        why = f"nothing is left to go on from: {verdict.hopeless}"
        return _stop(case, verdict.failure, why, terminal=False)
    if verdict.failure in IN_FLIGHT:
        return Decision(Action.CONTINUE, 0.0, False, None, (), 0, verdict.reason, verdict.failure)
    if TABLE[verdict.failure].retry is Retry.NONE:
        return _stop(case, verdict.failure, verdict.reason)
    return None


def _spent(case: _Case) -> Decision | None:
    for name in sorted(case.policy.limits):
        limit, used = case.policy.limits[name], case.spent.get(name, 0.0)
        if used >= limit:
            return _exceeded(case, name, f"{used:g} of {limit:g}")
    return None


def _launch_over(case: _Case) -> Decision | None:
    """Whoever allows a launch few restarts wants to look at the failure, not to lose the run: so this comes
    before all that would end it by what the journal has counted."""
    allowed, failure = case.policy.launch_restarts, case.verdict.failure
    used = sum(one.charged for one in case.standing)
    if allowed is None or not TABLE[failure].charged or used < allowed:
        return None
    why = f"--max-restarts {allowed}: {used} used without progress; last: {case.verdict.reason}"
    return _stop(case, failure, why, terminal=False)


def _numeric(case: _Case) -> Decision | None:
    """One replay tells the data from the hardware: the same fault at the same step again is the data's (or
    the hyperparameters'); a replay that came past the step has shown that the machine computed wrong
    (SDC-08)."""
    if case.verdict.failure is not F.F12:
        return None
    earlier = [one for one in case.standing if one.failure is F.F12]
    if not earlier:
        return None
    step = case.verdict.step
    if any(one.step == step for one in earlier):
        why = "reproduced by the replay: the data or the hyperparameters, not the machine"
        return _stop(case, F.F12, f"{why}: {case.verdict.reason}")
    first = earlier[0]
    if len(earlier) == 1 and first.place and _passed(first.step, step):
        why = f"the replay passed step {first.step}, so {first.place} computed wrong there"
        return _again(case, F.F13, f"{why}; now {case.verdict.reason}", (Quarantine(Unit.NODE, first.place),))
    return None


def _passed(first: int | None, now: int | None) -> bool:
    return first is not None and now is not None and now > first


def _repeated(case: _Case) -> Decision | None:
    """DETECT-05, DETECT-07: no third attempt at what always fails."""
    verdict, policy = case.verdict, case.policy
    if verdict.failure not in _OF_THE_PROGRAM or not case.equal:
        return None
    if verdict.origin in (Origin.OUTSIDE, Origin.SECONDARY):
        return None
    places = {one.place for one in case.equal if one.place} | ({verdict.place} - {""})
    count = len(case.equal) + 1
    if len(places) >= policy.repeats_elsewhere:
        why = f"the same on {len(places)} placements ({', '.join(sorted(places))})"
    elif count >= policy.repeats:
        why = f"the same {count} times"
    elif verdict.origin is not Origin.INSIDE:
        why = "the same twice, and nothing says what it is"
    else:
        return None
    # Only what the program itself said proves a fault of it. An end that nothing explains proves none, nor
    # does a loop that stands still: it may do what nobody told us of (a validation, a download).
    proven = verdict.origin is Origin.INSIDE and verdict.failure is not F.F5
    terminal = None if proven else False
    return _stop(case, F.F7, f"{why}: {verdict.reason}", terminal=terminal)


def _domain(case: _Case) -> Decision | None:
    """Many hosts of one domain within a while are one incident, the domain's, and charged once: of the
    hosts that it takes within the window of a charged one, the others are not."""
    verdict = case.verdict
    if verdict.failure is not F.F2 or not verdict.domain:
        return None
    recent = [
        one for one in case.before
        if one.failure in (F.F2, F.F3) and one.domain == verdict.domain
        and case.now - one.time <= case.policy.domain_window_s
    ]  # fmt: skip
    lost = {one.place for one in recent}
    charged = verdict.place in lost or not any(one.charged for one in recent)
    count = len(lost | {verdict.place})
    if count < case.policy.domain_losses:
        return _again(case, F.F2, verdict.reason, charged=charged)
    why = f"{count} nodes of {verdict.domain} lost within {case.policy.domain_window_s:g} s"
    return _again(case, F.F3, f"{why}; last: {verdict.reason}", charged=charged)


_RULES: tuple[Callable[[_Case], Decision | None], ...] = (
    _no_retry, _spent, _launch_over, _repeated, _numeric, _domain,
)  # fmt: skip


# --- decisions -------------------------------------------------------------------------------


def _over(case: _Case, failure: F) -> Decision | None:
    """The budget of the class, then the run's."""
    own = case.policy.budget(failure)
    used = sum(one.failure is failure for one in case.standing)
    if own is not None and used >= own:
        if failure is F.F8:
            why = f"memory ran out {used + 1} times without progress: {case.verdict.reason}"
            return _stop(case, F.F7, why)
        ends = TABLE[failure].terminal or failure in case.policy.budgets
        return _exceeded(case, failure.value, f"{used} of {own} restarts used without progress", ends)
    used = sum(one.charged for one in case.standing)
    if TABLE[failure].charged and used >= case.policy.restarts:
        numbers = f"{used} of {case.policy.restarts} used without progress"
        return _exceeded(case, "restarts", numbers, terminal=case.policy.declared)
    return None


def _again(case: _Case, failure: F, reason: str, quarantine: tuple[Quarantine, ...] = (), *,
           charged: bool | None = None) -> Decision:  # fmt: skip
    over = _over(case, failure)
    if over is not None:
        return over
    row = TABLE[failure]
    return Decision(
        _ACTION[row.retry],
        _delay(case, failure),
        row.charged if charged is None else charged,
        _onset(case) if failure in (F.F12, F.F13) else None,
        (*quarantine, *_quarantine(case, failure)),
        row.exit_code,
        reason,
        failure,
        row.restore,
    )


def _stop(case: _Case, failure: F, reason: str, *, terminal: bool | None = None) -> Decision:
    """Given up is not drained: whoever starts again what drained would do so without end."""
    row = TABLE[failure]
    fails = row.terminal if terminal is None else terminal
    action = Action.FAIL if fails else Action.STOP
    onset = _onset(case) if failure in (F.F12, F.F13) else None
    exit_code = 1 if row.exit_code == DRAINED else row.exit_code
    return Decision(
        action, 0.0, False, onset, _quarantine(case, failure), exit_code, reason, failure, Source.NOTHING
    )  # fmt: skip


def _exceeded(case: _Case, name: str, numbers: str, terminal: bool = True) -> Decision:
    """SPEC-05."""
    reason = f"budget_exceeded:{name} ({numbers}); last: {case.verdict.reason}"
    return _stop(case, case.verdict.failure, reason, terminal=terminal)


def _onset(case: _Case) -> int | None:
    """Nothing after any unforgiven numeric fault is trusted."""
    steps = [one.step for one in case.standing if one.failure in (F.F12, F.F13) and one.step is not None]
    if case.verdict.failure in (F.F12, F.F13) and case.verdict.step is not None:
        steps.append(case.verdict.step)
    return min(steps, default=None)


def _quarantine(case: _Case, failure: F) -> tuple[Quarantine, ...]:
    """Of some classes only what fails again is left out: one hang is nobody's fault yet."""
    verdict, unit = case.verdict, TABLE[failure].quarantine
    name = {
        Unit.NODE: verdict.place,
        Unit.DOMAIN: verdict.domain,
        Unit.IMAGE: case.policy.image,
        Unit.DATA: verdict.object,
        Unit.STORAGE: verdict.object,
        Unit.CHECKPOINT: verdict.object,
    }.get(unit, "")
    if failure in (F.F5, F.F17) and not any(
        one.failure is failure and one.place == verdict.place for one in case.standing
    ):
        return ()
    return (Quarantine(unit, name),) if name else ()


def _delay(case: _Case, failure: F) -> float:
    """Bounded, exponential, with jitter (SCHED-11). The first restart in place of a streak does not wait."""
    before = sum(one.charged for one in case.standing)
    at_once = TABLE[failure].retry is Retry.IN_PLACE or failure is F.F4
    doublings = before - 1 if at_once else before
    if doublings < 0:
        return 0.0
    policy = case.policy
    whole = min(policy.backoff_s * 2.0 ** min(doublings, 60), policy.backoff_max_s)
    if policy.jitter == "full":
        return whole * case.jitter
    return whole * (1 + case.jitter) / 2 if policy.jitter == "equal" else whole
