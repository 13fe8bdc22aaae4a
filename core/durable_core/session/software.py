"""L5. What is promised when the software changed, or less is asked for: a pure decision with its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from durable_core.errors import PromiseError
from durable_core.state import fingerprint
from durable_core.types import Promise


@dataclass(frozen=True)
class Promised:
    """What this generation promises; ``reason`` says why less than before, and is empty if it is not."""

    promise: Promise
    reason: str = ""


def described(found: Mapping[str, str], roles: Sequence[str]) -> dict[str, str]:
    """All that bits depend on besides the state: the software and the replicas that add up gradients."""
    return {**found, "roles": ", ".join(roles)}


def promised(
    run: Promise, *, asked: Promise | None, why: str = "", was: Mapping[str, str], now: Mapping[str, str]
) -> Promised:
    """The promise of a generation that goes on from a checkpoint made under ``was``, running under ``now``.

    ``run`` is the run's promise so far, ``asked`` what the user insists on (``None``: on nothing); less than
    the run promised lowers it. ``why``: the user's reason for the weakest. Bits depend on the software, the
    order of samples does not. Raises ``PromiseError`` when what is insisted on cannot be kept.
    """
    changed = fingerprint.compare(was, now) if run is Promise.BITWISE else ()
    reason = ", ".join(f"{name} was {was.get(name)!r} and is {now.get(name)!r}" for name in changed)
    held = Promise.EXACT_ORDER if changed else run
    if asked is not None and not held.implies(asked):
        raise PromiseError(
            f"{asked.value} cannot be kept: "
            + (reason or f"this run has promised no more than {run.value} since an earlier restart"),
            hint=f"run it with what it ran with, or ask for {held.value!r}",
        )
    if asked is not None and asked is not held:
        reasons = (f"{asked.value} was asked for", why if asked is Promise.DISTRIBUTION else "", reason)
        return Promised(asked, "; ".join(filter(None, reasons)))
    return Promised(held, reason)
