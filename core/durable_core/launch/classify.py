"""L5. Which class of failure ended a group, whose it is, and when it is the same as another. Pure.

A group is one: when one worker dies the others end too, by errors that tell of it or by our own signals. What
ended the group is therefore looked for among those that were neither stopped by us nor tell of a peer; of
several causes the class that comes first in ``classes.PRECEDENCE`` counts, of one class the earliest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from durable_core.launch.causes import Cause, Origin, cause_of
from durable_core.launch.classes import PRECEDENCE, F
from durable_core.launch.evidence import Evidence, Exit, Lost, Numeric, Stall, Unfit
from durable_core.launch.signature import signature

__all__ = ["Evidence", "Exit", "Lost", "Numeric", "Origin", "Stall", "Unfit", "Verdict", "classify"]

#: So many nodes of one domain at once are the loss of the domain.
DOMAIN_LOSSES = 3


@dataclass(frozen=True)
class Verdict:
    """``step``: where it happened (the onset, for numeric findings), ``None`` when unknown. ``culprit``:
    the rank, if one is to blame; ``place``, ``domain``: where it ran; ``object``: the data object,
    checkpoint object or path it is about; ``also``: the other classes that fit; ``hopeless``: why no
    restart helps, ``""`` when one may; ``detect_s``: from the last sign of life until it was seen."""

    failure: F
    signature: str
    step: int | None
    culprit: int | None
    reason: str
    also: tuple[F, ...] = ()
    origin: Origin = Origin.UNKNOWN
    place: str = ""
    domain: str = ""
    object: str = ""
    hopeless: str = ""
    detect_s: float | None = None


@dataclass(frozen=True)
class _Found:
    cause: Cause
    at: float = 0.0
    rank: int | None = None
    place: str = ""
    domain: str = ""
    quiet_s: float | None = None

    @property
    def order(self) -> tuple[object, ...]:
        weak = self.cause.origin is Origin.SECONDARY
        return weak, PRECEDENCE.index(self.cause.failure), self.cause.origin, self.at, self.rank or 0


def classify(evidence: Evidence) -> Verdict:
    """Never undecided: evidence that says nothing is an unknown failure, F1, whose repetition proves nothing.

    A worker that we stopped is a cause of nothing, whatever its status, except what its last words say of
    objects or numbers: it may have been about to end of those when we came.
    """
    found = sorted((*_facts(evidence), *_ends(evidence)), key=lambda one: one.order)
    if not found:
        kind = "nothing that is known of"
        return Verdict(
            F.F1, signature(kind, step=evidence.step), evidence.step, None,
            "the group ended, and neither statuses nor facts say why", origin=Origin.OUTSIDE,
        )  # fmt: skip
    best = _placed(found[0], found)
    also = tuple(dict.fromkeys(f.cause.failure for f in found if f.cause.failure is not best.cause.failure))
    alone = best.cause.origin is Origin.SECONDARY
    return Verdict(
        best.cause.failure,
        best.cause.signature,
        best.cause.step,
        None if alone else best.rank,
        best.cause.reason + ("; every end tells of a peer, and none of a cause" if alone else ""),
        also,
        best.cause.origin,
        "" if alone else best.place,
        best.domain,
        best.cause.object,
        best.cause.hopeless,
        best.quiet_s,
    )


def _placed(best: _Found, found: list[_Found]) -> _Found:
    """A numeric finding in the journal says what; the worker that ended of it, where."""
    if best.place or best.cause.failure is not F.F12:
        return best
    ended = next((one for one in found if one.cause.failure is F.F12 and one.place), best)
    return replace(best, rank=ended.rank, place=ended.place)


def _ends(evidence: Evidence) -> Iterator[_Found]:
    for exit in evidence.exits:
        cause = cause_of(exit, step=evidence.step, known=evidence.known)
        if exit.stopped and cause.failure not in (F.F9, F.F11, F.F12, F.F13):
            continue
        if exit.status == 0 and evidence.finished:
            continue
        yield _Found(cause, exit.at, exit.rank, exit.place, quiet_s=exit.quiet_s)


def _facts(evidence: Evidence) -> Iterator[_Found]:
    """What is known beside statuses and words."""
    step = evidence.step
    if evidence.cancelled:
        yield _fact(F.F19, "cancelled", f"cancelled by {evidence.cancelled}", step)
    if evidence.newer:
        yield _fact(F.F14, "taken over", f"launch {evidence.newer} has taken the run over", step)
    if evidence.refused:
        yield _fact(F.F14, "refused", f"a record of ours was refused: {evidence.refused}", step)
    if evidence.numeric is not None:
        yield _numeric(evidence.numeric)
    if evidence.notice:
        yield _fact(F.F4, "notice", evidence.notice, step)
    yield from _losses(evidence.lost, step)
    if evidence.waited:
        yield _fact(F.F18, "deadline", f"no {evidence.waited} in time", step, position=evidence.waited)
    if evidence.stall is not None:
        yield _stall(evidence.stall, step)
    if evidence.unfit is not None:
        yield _unfit(evidence.unfit, step)


def _fact(failure: F, kind: str, reason: str, step: int | None, *, position: str = "") -> _Found:
    return _Found(Cause(failure, Origin.OUTSIDE, signature(kind, step=step, position=position), reason, step))


def _numeric(found: Numeric) -> _Found:
    failure = F.F13 if found.proof else F.F12
    who = "" if found.rank is None else f" on rank {found.rank}"
    proof = ", proved to be the hardware's" if found.proof else ""
    reason = f"{found.kind}{who} at step {found.step}{proof}"
    cause = Cause(failure, Origin.INSIDE, signature(found.kind, step=found.step), reason, found.step)
    return _Found(cause, rank=found.rank, place=found.place)


def _losses(lost: tuple[Lost, ...], step: int | None) -> Iterator[_Found]:
    domains = Counter(node.domain for node in lost if node.domain)
    for domain, count in domains.most_common():
        if count >= DOMAIN_LOSSES:
            reason = f"{count} nodes of {domain} are lost at once"
            cause = Cause(F.F3, Origin.OUTSIDE, signature("domain lost", step=step), reason, step)
            yield _Found(cause, domain=domain)
    for node in lost:
        reason = f"node {node.place} is lost" if node.place else "the agent of another node is lost"
        cause = Cause(F.F2, Origin.OUTSIDE, signature("node lost", step=step), reason, step)
        yield _Found(cause, place=node.place, domain=node.domain)


def _stall(stall: Stall, step: int | None) -> _Found:
    who = "no rank can be named" if stall.rank is None else f"rank {stall.rank}"
    where = f" in {stall.frames[-1]}" if stall.frames else ""
    numbers = f"{stall.age_s:.1f} s, more than {stall.limit_s:.1f} s"
    reason = f"no progress in phase {stall.phase} for {numbers}: {who}{where}"
    sign = signature("hang", "", stall.frames, step, stall.phase)
    cause = Cause(F.F5, Origin.INSIDE, sign, reason, step)
    return _Found(cause, rank=stall.rank, place=stall.place, quiet_s=stall.age_s)


def _unfit(unfit: Unfit, step: int | None) -> _Found:
    cause = Cause(F.F6, Origin.OUTSIDE, signature("unfit", step=step), f"{unfit.place}: {unfit.reason}", step)
    return _Found(cause, rank=unfit.rank, place=unfit.place)
