"""L3. What differs between the mixture of a run and one of now, in words: from their two descriptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Plan = Mapping[str, Any]

_SETTINGS = {
    "name": "schedule",
    "unit": "unit",
    "exhaustion": "exhaustion",
    "changes": "weight_schedule",
    "epoch_size": "epoch_size",
    "loss_weights": "loss_weights",
}
"""What a description calls them -> what ``Mixture`` does. (``window`` draws nothing, and may change.)"""


def changes(recorded: Plan | None, now: Plan | None) -> list[str]:
    """One sentence for each difference of the mixtures inside two plans; none where either has no mixture."""
    old, new = _mixture(recorded), _mixture(now)
    return (
        [] if old is None or new is None else [*_sources(old, new), *_weights(old, new), *_settings(old, new)]
    )


def _mixture(plan: Plan | None) -> Plan | None:
    while plan is not None and "sources" not in plan:
        inner = plan.get("inner")
        plan = inner if isinstance(inner, Mapping) else None
    return plan


def _sources(old: Plan, new: Plan) -> Iterator[str]:
    before, after = ({source["name"]: source for source in plan["sources"]} for plan in (old, new))
    yield from (f"there was a source {name}" for name in before if name not in after)
    yield from (f"source {name} is new" for name in after if name not in before)
    if set(before) == set(after) and list(before) != list(after):
        yield f"the sources were in the order {', '.join(before)} and are now in {', '.join(after)}"
    for name in before:
        if name not in after:
            continue
        was, now = before[name], after[name]
        if was["size"] != now["size"]:
            yield f"source {name} had {was['size']} records and has {now['size']}"
        elif was["dataset_id"] != now["dataset_id"]:
            yield f"the content of source {name} changed"
        if was["replacement"] != now["replacement"]:
            yield f"replacement of {name} was {was['replacement']} and is now {now['replacement']}"


def _weights(old: Plan, new: Plan) -> Iterator[str]:
    before, after = _shares(old), _shares(new)
    for name in before:
        if name in after and before[name] != after[name]:
            way = "use update_weights, or restore the setting"
            yield f"weight of {name} was {before[name]} and is now {after[name]} ({way})"


def _shares(plan: Plan) -> dict[str, str]:
    """Of all weights together, by source, as people write them."""
    total = sum(plan["weights"]) or 1
    pairs = zip(plan["sources"], plan["weights"], strict=True)
    return {source["name"]: f"{weight / total:.6g}" for source, weight in pairs}


def _settings(old: Plan, new: Plan) -> Iterator[str]:
    for field, name in _SETTINGS.items():
        if old.get(field) != new.get(field):
            yield f"{name} was {old.get(field)!r:.80} and is now {new.get(field)!r:.80}"
