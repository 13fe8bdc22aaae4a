"""L3. Whether a state is one of a mixture: one that was edited, or is another's, is told before any draw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from durable_core.data.mixture.policy import Policy
from durable_core.errors import FormatError


def check_state(policy: Policy, state: Any) -> None:
    """Raise ``FormatError``, naming the field, unless ``state`` has the shape that ``policy`` gives it."""
    if not isinstance(state, Mapping):
        raise FormatError("mixture", f"its state is {state!r:.80}")
    for name, holds in _fields(policy, state).items():
        if not holds:
            raise FormatError("mixture", f"{name!r} in its state is {state.get(name, 'missing')!r:.80}")


def _fields(policy: Policy, state: Mapping[str, Any]) -> dict[str, bool]:
    """By name, whether it is there and makes sense."""
    count = len(policy.sources)
    stage: Any = state.get("stage")
    debts: Any = state.get("debts")
    fields = {name: _is_count(state.get(name)) for name in ("batch", "version")}
    fields["stage"] = _is_count(stage) and stage <= len(policy.changes)
    fields["draws"] = _are_counts(state.get("draws"), count)
    fields["debts"] = _are_integers(debts, count) and not sum(debts)
    fields["lanes"] = _is_list(state.get("lanes"), count) and all(map(_is_place, state["lanes"]))
    if policy.counts_tokens:
        fields["units"] = _are_counts(state.get("units"), count)
    if policy.epoch_size is not None:
        fields["left"] = _is_count(state.get("left"))
    if "weights" in state:
        fields["weights"] = _are_weights(state["weights"], count)
    if "pending" in state:
        fields["pending"] = _is_list(state["pending"]) and all(
            _is_list(item, 2) and _is_count(item[0]) and _are_weights(item[1], count)
            for item in state["pending"]
        )
    if "gone" in state:
        fields["gone"] = _is_list(state["gone"]) and all(
            _are_integers(item, 4) and 0 <= item[0] < count for item in state["gone"]
        )
    return fields


def _is_list(value: Any, count: int | None = None) -> bool:
    return isinstance(value, (list, tuple)) and count in (None, len(value))


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _are_integers(values: Any, count: int) -> bool:
    return _is_list(values, count) and all(type(value) is int for value in values)


def _are_counts(values: Any, count: int) -> bool:
    return _are_integers(values, count) and min(values) >= 0


def _are_weights(values: Any, count: int) -> bool:
    return _are_counts(values, count) and any(values)


def _is_place(value: Any) -> bool:
    """Passes over the source, and where in this one: a position, or a sequence's own state."""
    return (
        _is_list(value, 2) and _is_count(value[0]) and (_is_count(value[1]) or isinstance(value[1], Mapping))
    )
