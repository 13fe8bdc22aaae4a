"""L5. Before anything starts: what the run will need, tried (REQUIREMENTS, table T6).

Each check is a function of its own that answers *ok*, *failed* or *not applicable*, with its evidence and the
way out. The quick ones run before every start and after every replacement, within a second on a healthy host;
the others start processes or move bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from durable_core.errors import DurableError, TierDenied, TierError, UsageError
from durable_core.launch.bounded import Bounded
from durable_core.launch.preflight import devices, host, inputs, running, storage
from durable_core.launch.preflight.report import Found, Outcome, Report, Result, failed
from durable_core.launch.preflight.target import Node, Target

__all__ = ["CHECKS", "QUICK", "THOROUGH", "Check", "Node", "Outcome", "Report", "Result", "Target", "run"]


@dataclass(frozen=True)
class Check:
    """``store``: whether it uses the root. ``needs_s``: seconds it may take before it counts as failed."""

    name: str
    test: Callable[[Target], Found]
    store: bool = False
    needs_s: float = 15.0


QUICK: tuple[Check, ...] = (
    Check("storage access", storage.access, store=True),
    Check("create-exclusive", storage.create_exclusive, store=True),
    Check("links and fsync", storage.posix, store=True),
    Check("journal", running.journal, store=True),
    Check("quarantine", running.quarantine, store=True),
    Check("capacity", storage.capacity, store=True),
    Check("host memory", host.memory, store=True),
    Check("clock skew", host.clock_skew, store=True),
    Check("versions", host.versions),
    Check("membership", running.capabilities),
    Check("standbys", host.standbys),
    Check("deterministic flags", devices.determinism),
    Check("telemetry", inputs.telemetry),
)
THOROUGH: tuple[Check, ...] = (
    Check("state coverage", running.coverage, store=True, needs_s=60.0),
    Check("checkpoint bandwidth", storage.bandwidth, store=True, needs_s=300.0),
    Check("data", inputs.data, needs_s=600.0),
    Check("data cache", inputs.cache, needs_s=600.0),
    Check("device", devices.device, needs_s=120.0),
    Check("collective", devices.collective, needs_s=1800.0),
    Check("link", devices.link, needs_s=1800.0),
)
CHECKS = QUICK + THOROUGH


def run(
    target: Target, *, quick: bool = True, only: Collection[str] = (), patience_s: float | None = None
) -> Report:
    """Every check, or the quick ones, one after the other; ``only``: those of these names.

    Raises nothing for what a check meets: a store that cannot be reached is what they are for. One that does
    not come to an end counts as failed, and is left behind; ``patience_s`` bounds each of them.
    """
    unknown = sorted(set(only) - {check.name for check in CHECKS})
    if unknown:
        raise UsageError(f"no check is called {unknown[0]!r}", hint=", ".join(check.name for check in CHECKS))
    chosen = [check for check in CHECKS if check.name in only] if only else QUICK if quick else CHECKS
    results: list[Result] = []
    hung = ""
    for check in chosen:
        began = target.clock.monotonic()
        if hung and check.store:
            found = failed(f"not tried: {hung} had no answer from the store", "", transient=True)
        else:
            patience = min(check.needs_s, check.needs_s if patience_s is None else patience_s)
            found = _found(check, target, patience)
            if check.store and target.clock.monotonic() - began >= patience:
                hung = check.name
        results.append(Result.of(check.name, found, target.clock.monotonic() - began))
    return Report(tuple(results))


def _found(check: Check, target: Target, patience_s: float) -> Found:
    try:
        return Bounded(check.name).call(lambda _: _tried(check, target), patience_s)
    except TierError as error:
        return failed(error.message, error.hint, transient=not isinstance(error, TierDenied))


def _tried(check: Check, target: Target) -> Found:
    """A fault of the check itself is raised."""
    try:
        return check.test(target)
    except TierError:
        raise
    except DurableError as error:
        return failed(error.message, error.hint)
    except OSError as error:
        return failed(f"{type(error).__name__}: {error}", "")
