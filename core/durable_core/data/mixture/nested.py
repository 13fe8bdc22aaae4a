"""L3. Mixtures inside of other datasets, where their weights would be ignored."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from durable_core.errors import UnsupportedError

_DEPTH = 8
"""Of datasets around datasets; one may be an attribute of itself."""


def is_mixture(dataset: Any) -> bool:
    """Whether the dataset says itself, by ``sequence(seed=, packing=, order=)``, what a batch holds."""
    make = getattr(dataset, "sequence", None)
    if not callable(make) or isinstance(make, type):
        return False
    try:
        return {"seed", "packing", "order"} <= set(inspect.signature(make).parameters)
    except ValueError:  # one of C, that does not say
        return False


def check_none_inside(what: str, dataset: Any) -> None:
    """Raise ``UnsupportedError`` if a mixture is read by its records alone, by ``what`` around it.

    Looked into are the attributes ``dataset`` and ``datasets``, as torch's ``Subset`` and ``ConcatDataset``
    have them.
    """
    if any(is_mixture(part) for part in (dataset, *_inside(dataset))):
        raise UnsupportedError(
            f"{what} reads a mixture record by record, so its weights would be ignored",
            hint="give all of the sources to one Mixture, each wrapped as it needs to be",
        )


def _inside(dataset: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """What it is made of."""
    for part in _parts(dataset) if depth else ():
        yield part
        yield from _inside(part, depth - 1)


def _parts(dataset: Any) -> list[Any]:
    inner = getattr(dataset, "datasets", None)
    many = list(inner.values()) if isinstance(inner, Mapping) else inner
    one = getattr(dataset, "dataset", None)
    return [*(many if isinstance(many, (list, tuple)) else ()), *(() if one is None else (one,))]
