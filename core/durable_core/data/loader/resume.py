"""L3. What a saved state holds, and whether a loader can go on from it: decisions, with the way out."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from durable_core.data.cursor import BESIDE, Cursor
from durable_core.data.loader.plan import Plan
from durable_core.data.loader.settings import Settings
from durable_core.data.loader.updates import Updates, is_listed
from durable_core.data.mixture.changed import changes
from durable_core.data.sequence import Sequence
from durable_core.errors import FormatError, SpecMismatchError
from durable_core.types import Promise


@dataclass(frozen=True)
class Saved:
    """A loader's state in parts: ``source`` {"workers", "state"}; ``plan`` where the cursor does not say all;
    ``updates``: all weights ever given to a mixture, by the number of the batch they begin with."""

    cursor: Cursor
    source: Mapping[str, Any] | None
    plan: Mapping[str, Any] | None
    updates: Updates
    replicas: int | None
    """Of a dataset whose draws depend on the share."""
    draws: Mapping[str, Any] | None
    """See ``drawn``; None: not recorded, as by earlier versions."""

    @classmethod
    def read(cls, state: Mapping[str, Any]) -> Saved:
        """A copy of ``state``. Raises ``FormatError`` (``UnknownVersionError``) for what is no such state."""
        if not isinstance(state, Mapping):
            raise FormatError("cursor", f"a loader's state is a mapping, not {state!r:.80}")
        fields = copy.deepcopy(dict(state))
        source, plan, updates, replicas, draws = (fields.pop(name, None) for name in BESIDE)
        known = {
            "source": source is None or (isinstance(source, Mapping) and set(source) == {"workers", "state"}),
            "plan": plan is None or isinstance(plan, Mapping),
            "updates": updates is None or is_listed(updates),
            "replicas": replicas is None or type(replicas) is int,
            "draws": draws is None or (isinstance(draws, Mapping) and set(draws) == _DRAWS),
        }
        for name, right in known.items():
            if not right:
                raise FormatError("cursor", f"{name} is {state[name]!r:.80}")
        return cls(Cursor.from_dict(fields), source, plan, Updates(updates or ()), replicas, draws)

    @property
    def state(self) -> Any:
        """The source's own."""
        return None if self.source is None else self.source["state"]


def written(cursor: Cursor, own: Any, plan: Plan, settings: Settings, updates: Updates) -> dict[str, Any]:
    """What ``Saved.read`` reads; ``own``: the source's own state, of which this has a copy."""
    beside = {
        "source": {"workers": settings.counted_workers, "state": copy.deepcopy(own)}
        if plan.stateful
        else None,
        "plan": None if plan.description is None else copy.deepcopy(dict(plan.description)),
        "updates": updates.listed() if updates else None,
        "replicas": settings.replicas if settings.draws_by_share else None,
        "draws": drawn(settings),
    }
    return cursor.to_dict() | {name: value for name, value in beside.items() if value is not None}


_DRAWS = {"transform_version", "seeded"}


def drawn(settings: Settings) -> dict[str, Any]:
    """What random numbers depend on beside the cursor, as JSON: ``_DRAWS``."""
    return {"transform_version": settings.transform_version, "seeded": settings.sample_rng is not False}


def check_draws(recorded: Mapping[str, Any] | None, settings: Settings) -> None:
    """Raise ``SpecMismatchError``, naming both values, where other numbers would be drawn from here on.

    Under a promise that allows it, warn. What was not recorded is not compared: to take it for any
    setting would refuse the very script that a run of an earlier version was started with.
    """
    differing = [] if recorded is None else differences(recorded, drawn(settings))
    if not differing:
        return
    names = {"transform_version": "transform_version", "seeded": "sample_rng"}
    what = "; ".join(f"{name} was {old!r} and is now {new!r}" for name, old, new in differing)
    what = f"samples would be made with other random numbers from here on: {what}"
    if not settings.promise.implies(Promise.EXACT_ORDER):
        warnings.warn(f"data: {what}", stacklevel=3)
        return
    raise SpecMismatchError(
        what,
        fields=tuple(names[name] for name, _, _ in differing),
        hint='restore transform_version and sample_rng, or accept promise="coverage"',
    )


def accepted(saved: Saved, plan: Plan, *, promise: Promise, workers: int | None) -> Cursor:
    """The position to go on from, as a loader of ``plan`` counts it; ``workers``: see ``check_workers``.

    Raises ``SpecMismatchError`` when the data differs, ``FormatError`` for what cannot be a position in it.
    """
    cursor = continued(saved, plan, promise, workers)
    check_workers(saved.source, workers)
    if saved.plan is not None or plan.sequence is not None:  # of an order the name in the cursor suffices
        check_plan(saved.plan, plan.description)
    check_state(saved.state, cursor, plan.sequence)
    estimated = plan.layout is None and plan.sequence is None
    batches = None if estimated else plan.batches_in(cursor.epoch)
    if batches is not None and cursor.batch >= batches:
        raise FormatError("cursor", f"batch {cursor.batch} of an epoch of {batches}")
    return cursor


def continued(saved: Saved, plan: Plan, promise: Promise, workers: int | None) -> Cursor:
    """The saved position, as this loader counts it. Raises ``SpecMismatchError`` when it cannot go on.

    The batch may change where the optimizer step keeps its samples, the promise is exact order or weaker,
    the position is a whole number of the new batches, an epoch uses the same samples, nothing is stamped with
    a number of batches, and they are not gathered by several workers, each of a stream of its own.
    """
    recorded, now = saved.cursor, plan.start
    if recorded.global_batch != now.global_batch and promise is not Promise.BITWISE:
        if saved.updates or _has_changes(saved.plan):
            raise SpecMismatchError(
                f"weights that change at a numbered batch would change elsewhere: global_batch was "
                f"{recorded.global_batch} and is now {now.global_batch}",
                fields=("global_batch",),
                hint="keep batch_size x replicas as it was",
            )
        if workers is not None and workers > 1:
            raise SpecMismatchError(
                f"{workers} workers take turns at making batches of a stream, so its items would come in "
                f"another order: global_batch was {recorded.global_batch} and is now {now.global_batch}",
                fields=("global_batch",),
                hint="keep batch_size x replicas as it was, or read the stream by one worker from the start",
            )
        recorded = recorded.rescaled(now.global_batch, now.accumulate, plan.samples)
    recorded.check_continues(now, "; ".join(changes(saved.plan, plan.description)))
    return dataclasses.replace(recorded, accumulate=now.accumulate)


def _has_changes(plan: Any) -> bool:
    """Whether a mixture anywhere in the description has a schedule of weights."""
    if isinstance(plan, Mapping):
        return bool(plan.get("changes")) or any(_has_changes(value) for value in plan.values())
    return isinstance(plan, (list, tuple)) and any(_has_changes(value) for value in plan)


def check_state(state: Any, cursor: Cursor, sequence: Sequence | None) -> None:
    """Raise ``FormatError`` unless a sequence has the state that its position needs."""
    if sequence is None:
        return
    needed = cursor.batch > 0 or (sequence.carries and cursor.epoch > 0)
    if (state is None and needed) or not (state is None or _is_state(state)):
        raise FormatError(
            "cursor",
            f"epoch {cursor.epoch} batch {cursor.batch} of {sequence.name} has the state {state!r:.80}",
        )


def _is_state(state: Any) -> bool:
    if not (isinstance(state, Mapping) and set(state) == {"batches", "sequence"}):
        return False
    return type(state["batches"]) is int and state["batches"] >= 0 and isinstance(state["sequence"], Mapping)


def check_shares(recorded: int | None, now: int, promise: Promise) -> None:
    """Raise ``SpecMismatchError`` where draws depend on shares, which are others, and more is promised."""
    if recorded in (None, now) or not promise.implies(Promise.EXACT_ORDER):
        return
    raise SpecMismatchError(
        f"a dataset with __getitems__ draws for the share of a replica at once, and {recorded} replicas are "
        f"now {now}: it would make other samples of the same records",
        fields=("replicas",),
        hint=f'keep {recorded} replicas, or accept promise="coverage"',
    )


def check_workers(source: Mapping[str, Any] | None, workers: int | None) -> None:
    """Raise ``SpecMismatchError`` unless a stream is read by as many workers as before; none is one."""
    if source is None or source["workers"] == workers:
        return
    if source["workers"] == 0 and workers == 1:  # as was written before the two were the same
        return
    raise SpecMismatchError(
        f"the stream was read by {source['workers']} workers and now by {workers}",
        fields=("num_workers",),
        hint=f"set num_workers={source['workers']}: each worker has its own position",
    )


def check_plan(recorded: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> None:
    """Raise ``SpecMismatchError``, naming what differs, unless both describe one sequence."""
    if recorded is None and now is None:
        return
    if recorded is None or now is None:
        which = "an order, and is now a sequence" if recorded is None else "a sequence, and is now an order"
        raise SpecMismatchError(f"the data was {which}", fields=("plan",), hint=_RESTORE)
    differing = tuple(differences(recorded, now))
    if not differing:
        return
    what = "; ".join(f"{name} was {old!r:.80} and is now {new!r:.80}" for name, old, new in differing[:8])
    raise SpecMismatchError(
        f"the sequence of the data differs from the run's: {what}",
        fields=tuple(name for name, _, _ in differing),
        hint=_RESTORE,
    )


_RESTORE = "restore the settings and data the run was started with, or start another run under another root"
_ABSENT = "absent"


def differences(old: Any, new: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """(dotted name, old value, new value) of every leaf in which two JSON trees differ."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        pairs = {str(key): (old.get(key, _ABSENT), new.get(key, _ABSENT)) for key in [*old, *new]}
    elif isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)) and len(old) == len(new):
        pairs = {str(index): pair for index, pair in enumerate(zip(old, new, strict=True))}
    else:
        return [] if old == new else [(path or "plan", old, new)]
    found: list[tuple[str, Any, Any]] = []
    for name, (before, after) in pairs.items():
        found += differences(before, after, f"{path}.{name}" if path else name)
    return found
