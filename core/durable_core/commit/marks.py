"""L3. Known-good marks as records: what ``trust`` decides, carried out. Level-triggered, so a death in
between or a repetition changes nothing in the end."""

from __future__ import annotations

from typing import Any

from durable_core.commit import trust
from durable_core.commit.claim import CLAIM_ROUNDS, maintain
from durable_core.commit.effects import Program
from durable_core.commit.journal import Draft, View, append, replay, settle
from durable_core.commit.state import CheckpointInfo
from durable_core.errors import LostSlot, UsageError
from durable_core.format.record import Kind
from durable_core.types import Token


def record_finding(
    view: View, token: Token, *, failure_class: str, signature: str, onset: int, evidence: Any
) -> Program[View]:
    """``failure``, unless this generation has it already: every role may find the same, a step apart.

    Raises as ``append``; ``LostSlot`` after ``CLAIM_ROUNDS`` lost races.
    """
    payload = {"class": failure_class, "signature": signature, "evidence": evidence, "step": onset}
    draft = Draft.by(token, Kind.FAILURE, payload)
    view = yield from settle(view)
    for _ in range(CLAIM_ROUNDS):
        view = yield from replay(view)
        if trust.is_known(view.state, failure_class, signature, onset):
            return view
        try:
            return (yield from append(view, draft, exact=True))
        except LostSlot:
            continue
    raise LostSlot(f"{signature}: lost {CLAIM_ROUNDS} races for a slot")


def pin(view: View, c: int, launch_id: str, *, pinned: bool) -> Program[View]:
    """Retention spares ``c``, or (not ``pinned``) no longer does; nothing is appended where that is so
    already. Raises as ``claim.maintain``."""
    view = yield from replay(view)
    info = view.state.checkpoints.get(c)
    if info is not None and info.pinned is pinned:
        return view
    kind = Kind.CHECKPOINT_PINNED if pinned else Kind.CHECKPOINT_UNPINNED
    return (yield from maintain(view, kind, {"c": c}, launch_id))


def revoke_tainted(view: View, launch_id: str) -> Program[View]:
    """Revoke every mark that a finding speaks against. Raises as ``claim.maintain``."""
    view = yield from replay(view)
    for c, failure in trust.revocable(view.state).items():
        payload = failure.payload
        reason = (
            f"{payload['class']} {payload['signature']}: nothing from step {payload['step']} on is trusted"
        )
        view = yield from revoke(view, c, launch_id, reason)
    return view


def mark_due(
    view: View, launch_id: str, vindicated: int, evidence: Any
) -> Program[tuple[View, CheckpointInfo | None]]:
    """Mark the newest checkpoint up to step ``vindicated``, unless that was done or a finding speaks against
    it.

    Returns what was marked. Raises as ``claim.maintain``.
    """
    view = yield from replay(view)
    info = trust.due(view.state, vindicated)
    if info is None:
        return view, None
    return (yield from mark(view, info.c, launch_id, evidence)), info


def mark(view: View, c: int, launch_id: str, evidence: Any) -> Program[View]:
    """``checkpoint.known_good``: ``evidence`` says who has judged what. ``UsageError`` without any; else
    raises as ``claim.maintain``."""
    if not evidence:
        raise UsageError(
            f"c{c} is to be known good, on no evidence", hint="say what has been judged, and by whom"
        )
    payload = {"c": c, "evidence": evidence}
    return (yield from maintain(view, Kind.CHECKPOINT_KNOWN_GOOD, payload, launch_id))


def revoke(view: View, c: int, launch_id: str, reason: str) -> Program[View]:
    """``checkpoint.known_good_revoked``. Raises as ``claim.maintain``."""
    return (
        yield from maintain(view, Kind.CHECKPOINT_KNOWN_GOOD_REVOKED, {"c": c, "reason": reason}, launch_id)
    )
