"""L5. A run that was launched with a run file: its policy becomes the settings, and what it states of the
script must be so. Every writer reads the same frozen file and comes to the same end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from durable_core.errors import SpecMismatchError
from durable_core.session.settings import Settings
from durable_core.spec import DataSpec, RunSpec, runfile
from durable_core.types import Promise


def declared(settings: Settings, derived: RunSpec, path: Path) -> tuple[Settings, RunSpec]:
    """The settings and the spec to open a run with. Raises what ``runfile.read`` and ``runfile.merge`` do.

    A policy that the file states wins over the script's: who launches a run answers for it.
    """
    file = runfile.read(path)
    spec = runfile.merge(file, derived, said={"promise"} if settings.insist else ())
    return replace(_applied(settings, file), data=file.spec.data, accumulation=spec.accumulation), spec


def require_data(declared: DataSpec | None, accumulation: int, cursor: Mapping[str, Any] | None) -> None:
    """What the script reads is the data that its run file names (``None``: it names none). Known no earlier
    than at the first save, which is made before the first step. ``SpecMismatchError`` with the fields.

    ``accumulation``: batches of a step, where the loader was not told.
    """
    if declared is None or cursor is None:
        return
    found = {name: cursor.get(name) for name in ("dataset_id", "size", "global_batch")}
    if found["global_batch"] is not None:  # a loader counts in batches, the spec in steps
        found["global_batch"] *= cursor.get("accumulate") or accumulation
    wrong = {
        f"data.{name}": f"{getattr(declared, name)}, and the script reads {is_so}"
        for name, is_so in found.items()
        if getattr(declared, name) not in (None, "") and is_so not in (None, getattr(declared, name))
    }
    if wrong:
        raise SpecMismatchError(
            "the run file names other data: " + "; ".join(f"{name}: {told}" for name, told in wrong.items()),
            fields=tuple(wrong),
            hint="mend the file, or give the loader what it names",
        )


def _applied(settings: Settings, file: runfile.Declared) -> Settings:
    policy, recovery = file.spec.checkpoint, file.spec.recovery
    cadence = {
        name: getattr(policy, name)
        for name in ("every_n_steps", "every_seconds", "method", "min_seconds", "max_seconds")
        if file.states(f"checkpoint.{name}")
    }
    retention = {
        name: getattr(policy, name)
        for name in ("keep_last", "keep_every_n_steps")
        if file.states(f"checkpoint.{name}")
    }
    if file.states("recovery.detection_window_steps"):
        retention["detection_window_steps"] = recovery.detection_window_steps
    changes: dict[str, Any] = {
        name: getattr(policy, name)
        for name in ("backlog", "on_rpo_breach", "rpo_steps")
        if file.states(f"checkpoint.{name}")
    }
    if recovery.goals:
        changes["tiers"] = replace(settings.tiers, goals=recovery.goals)
    if file.states("promise"):
        changes |= _promised(settings, file.spec)
    return replace(
        settings,
        cadence=replace(settings.cadence, **cadence),
        retention=replace(settings.retention, **retention),
        **changes,
    )


def _promised(settings: Settings, spec: RunSpec) -> dict[str, Any]:
    """A promise in the file is kept or the start refused, as one that the script insists on."""
    reason = spec.reason if spec.promise is Promise.DISTRIBUTION else settings.accept_distribution
    return {"promise": spec.promise, "insist": True, "accept_distribution": reason}
