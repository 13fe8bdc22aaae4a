"""L3. Errors of the user's own dataset say which record they are about, and stay what they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from durable_core.data.mixture import Mixture
from durable_core.errors import DurableError

SHOWN = 8


class AboutRecords(Exception):
    """Not raised: shown above an error, by a python whose tracebacks show no notes (3.10)."""


def note(error: Exception, text: str) -> None:
    """Shown below the error, also where a worker's traceback is told in the training process.

    Errors of ours name what they are about themselves.
    """
    known = getattr(error, "__notes__", ())
    if isinstance(error, DurableError) or text in known:  # or one object, raised again and again
        return
    if hasattr(error, "add_note"):
        error.add_note(text)
    elif error.__cause__ is None and error.__context__ is None:
        error.__cause__ = AboutRecords(text)


def reading(dataset: Any, ids: Sequence[int], epoch: int, batch: int) -> str:
    """What was asked for when a record, or all of a batch, could not be read or collated."""
    shown = ", ".join(_named(dataset, index) for index in ids[:SHOWN])
    more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
    return f"durable: at record {shown}{more} of the dataset (epoch {epoch}, batch {batch})"


def _named(dataset: Any, index: int) -> str:
    if not isinstance(dataset, Mixture):
        return str(index)
    source, record = dataset.locate(index)
    return f"{index} (record {record} of source {dataset.policy.names[source]!r})"
