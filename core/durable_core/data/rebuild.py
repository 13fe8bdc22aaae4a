"""L3. A sequence from its description alone, for whoever has no dataset: the audit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from durable_core.data.mixture.policy import NAMES
from durable_core.data.mixture.remake import remake
from durable_core.data.order import order_from
from durable_core.data.order.buffered import BUFFERED, BufferedSequence
from durable_core.data.sequence import OrderedSequence, Sequence
from durable_core.errors import FormatError, UnsupportedError

STREAM = "stream_v1"  # names a cursor has for what only the user's dataset or sampler knows
SAMPLER = "sampler_v1"


def sequence_of(description: Mapping[str, Any], seed: int) -> Sequence | None:
    """The sequence that ``description`` (a ``Sequence.description``) was taken from, under the run's seed.

    None when a description does not hold all that it needs (lengths of records, for one), or names a
    sequence that this version does not know. Raises ``FormatError`` for what is not a description.
    """
    name = description.get("name")
    if not isinstance(name, str):
        raise FormatError("sequence", f"not a description: {description!r:.200}")
    if "inner" in description:
        return None  # packs follow from lengths
    try:
        if name in NAMES.values():
            return remake(description, seed=seed)
        if name.partition(":")[0] == BUFFERED:
            return BufferedSequence.from_description(description, seed=seed)
        return OrderedSequence(order_from(description, seed=seed)) if "size" in description else None
    except UnsupportedError:
        return None
