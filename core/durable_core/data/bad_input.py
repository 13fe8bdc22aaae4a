"""L3. Bad input: what may be declared about it, and errors that say where it is and the way out."""

from __future__ import annotations

from typing import Literal

from durable_core.data.files import LocalLocation, Location
from durable_core.errors import (
    CorruptError,
    DigestMismatchError,
    DurableError,
    ObjectNotFoundError,
    SkippedRecord,
)

OnBad = Literal["fail", "refetch", "quarantine", "skip"]
POLICIES: tuple[OnBad, ...] = ("fail", "refetch", "quarantine", "skip")

BAD = (CorruptError, ObjectNotFoundError)
"""What a policy is about. A store that does not answer (``DataUnavailableError``) is not bad input."""


def placed(error: DurableError, location: Location, dataset_id: str) -> DurableError:
    """``error`` of an object; of one that is missing or something else, with where it should be."""
    if isinstance(error, ObjectNotFoundError):
        return ObjectNotFoundError(
            error.key,
            location.url,
            hint=f"names are relative to the root that dataset {dataset_id[:19]} was built with: pass it as "
            f"where=, or see where the objects are with `durable data verify MANIFEST --root {location.url}`",
        )
    if isinstance(error, DigestMismatchError):
        return DigestMismatchError(
            error.key,
            f"{error.reason}; it is at {location.url}",
            hint="run `durable data verify`, or declare on_bad=",
        )
    return error


def left_out(name: str, id: int, ordinal: int, policy: OnBad, why: str) -> SkippedRecord:
    """Of record ``ordinal`` of the object, ``id`` of the dataset."""
    return SkippedRecord(
        name,
        f"record {ordinal} (id {id}) is left out by on_bad={policy!r}: {why}",
        id=id,
        ordinal=ordinal,
        why=why.removeprefix(f"{name}: "),
        hint="a DurableLoader goes on without it; another loader would have to handle SkippedRecord",
    )


def root_is_gone(error: BaseException, location: Location) -> bool:
    """A directory that is not mounted is no reason to leave out every record of it."""
    missing = isinstance(error, ObjectNotFoundError)
    return missing and isinstance(location, LocalLocation) and not location.root.is_dir()
