"""L3. How a run ends, goes on after its end, or becomes another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from durable_core.commit.effects import Program
from durable_core.commit.fence import token_error
from durable_core.commit.journal import Draft, View, append, replay
from durable_core.commit.objects import poll
from durable_core.errors import CommitAborted, LostSlot, RunEnded
from durable_core.format.record import Kind
from durable_core.types import Promise, Token


def succeed(view: View, token: Token, *, c: int | None, target: Any) -> Program[View]:
    """``run.succeeded``: ``c``, the final commit, is the head. Raises as ``append``."""
    return (yield from append(view, Draft.by(token, Kind.RUN_SUCCEEDED, {"c": c, "target": target})))


def await_success(view: View, token: Token, *, seconds: float) -> Program[View]:
    """The view in which the coordinator has recorded that the run has succeeded.

    Raises ``CommitAborted`` when that is not seen within ``seconds``, or the reason why ``token`` may not
    write any more.
    """
    seen = view

    def look() -> Program[View | None]:
        nonlocal seen
        seen = yield from replay(seen)
        over = seen.state.terminal
        if over is not None and over.outcome == "succeeded":
            return seen
        if (error := token_error(seen.state, token)) is not None:
            raise error
        return None

    found = yield from poll(look, seconds=seconds)
    if found is None:
        raise CommitAborted(
            f"the coordinator has not recorded within {seconds:g} s that the run has succeeded"
        )
    return found


def fail(view: View, token: Token, *, reason: str) -> Program[View]:
    """``run.failed``: no generation may follow. Raises as ``append``."""
    return (yield from append(view, Draft.by(token, Kind.RUN_FAILED, {"reason": reason})))


def cancel(view: View, *, launch_id: str, principal: str, reason: str) -> Program[View]:
    """``run.cancelled``: revokes the live generation in the same record (FENCE-06); signal it after.

    Raises ``RecordRefused`` when the spec does not name ``principal``, ``RunEnded``, or as ``append``.
    """
    view = yield from replay(view)
    payload = {"principal": principal, "reason": reason}
    draft = Draft(Kind.RUN_CANCELLED, payload, view.state.generation, launch_id)
    return (yield from append(view, draft))


def extend(view: View, *, launch_id: str, target: Any) -> Program[View]:
    """``run.extended``: a run that has succeeded goes on to ``target``, in a new generation.

    If another process extended it first, to whatever target, that stands.
    """
    view = yield from replay(view)
    while view.state.terminal is not None:
        draft = Draft(Kind.RUN_EXTENDED, {"target": target}, view.state.generation, launch_id)
        if view.state.terminal.outcome != "succeeded":
            raise RunEnded(f"the run has {view.state.terminal.outcome}; only success can be extended")
        try:
            view = yield from append(view, draft, exact=True)
        except LostSlot:
            view = yield from replay(view)
    return view


def fork(
    view: View,
    *,
    launch_id: str,
    spec: Mapping[str, Any],
    spec_digest: str,
    diff: Any,
    origin: int | None,
    external: str | None = None,
    takeover: bool = False,
) -> Program[View]:
    """``run.forked``: the next generation of this launch trains under ``spec``, from checkpoint
    ``origin`` of this run or from an ``external`` one (SPEC-08). Follow it with ``claim_generation``.

    Raises ``LostSlot`` when another record came between (look again), or as ``append``.
    """
    view = yield from replay(view)
    payload = {
        "parent_spec": view.state.spec_digest,
        "spec": dict(spec),
        "spec_digest": spec_digest,
        "diff": diff,
        "from": origin,
        "external": external,
        "takeover": takeover,
    }
    token = Token(view.state.generation + 1, launch_id)
    return (yield from append(view, Draft.by(token, Kind.RUN_FORKED, payload)))


def lower_promise(view: View, token: Token, *, to: Promise, reason: str) -> Program[View]:
    """``promise.lowered``, unless the promise is that low already. Raises as ``append``."""
    now = view.state.promise
    if not now.strength > to.strength:
        return view
    payload = {"from": now.value, "to": to.value, "reason": reason}
    return (yield from append(view, Draft.by(token, Kind.PROMISE_LOWERED, payload)))


def record_failure(
    view: View, token: Token, *, failure_class: str, signature: str, evidence: Any, step: int | None,
    op_id: str = "", further: Mapping[str, Any] | None = None,
) -> Program[View]:  # fmt: skip
    """``failure``: one line of the failure history (REC-06), ``further`` fields too. Raises as ``append``."""
    named = {"class": failure_class, "signature": signature, "evidence": evidence, "step": step}
    payload = {**(further or {}), **named}
    draft = Draft(Kind.FAILURE, payload, token.generation, token.launch_id, op_id=op_id)
    return (yield from append(view, draft))


def drain(view: View, token: Token, *, reason: str, step: int) -> Program[View]:
    """``run.draining``: a planned stop has begun at ``step``. Raises as ``append``."""
    return (yield from append(view, Draft.by(token, Kind.RUN_DRAINING, {"reason": reason, "step": step})))
