"""L3. A mixture's sequence from its description alone, for whoever has no data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from durable_core.data.mixture.lanes import UNIFORM, Lane, OrderLane, UniformLane
from durable_core.data.mixture.policy import Policy
from durable_core.data.mixture.sequence import MixedSequence
from durable_core.data.order import order_from
from durable_core.errors import FormatError, UnsupportedError


def remake(description: Mapping[str, Any], *, seed: int) -> MixedSequence:
    """The sequence that ``description`` was taken from: the same draws, for any seed.

    Raises ``UnsupportedError`` where lengths of records are needed (weighed by tokens, or packed by
    source), and ``FormatError`` for what is not the description of a mixture.
    """
    policy = Policy.from_json(description)
    if policy.counts_tokens or policy.unit == "packed":
        raise UnsupportedError(
            f"the draws of a mixture weighed by {policy.unit} follow from the lengths of its records, which "
            "its description does not hold",
            hint="give the datasets, with their lengths",
        )
    try:
        lanes = [_lane(lane, seed) for lane in description["lanes"]]
        return MixedSequence(policy, lanes, seed=seed)
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError("mixture", f"{error!r} in {description!r:.200}") from error


def _lane(description: Mapping[str, Any], seed: int) -> Lane:
    if description["name"] != UNIFORM:
        return OrderLane(order_from(description, seed=seed))
    context = {key: description[key] for key in ("dataset_id", "source")}
    return UniformLane(description["size"], **context, seed=seed)
