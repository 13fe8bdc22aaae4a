"""The arguments of ``DurableCheckpoint``, checked once and turned into the session's own settings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from durable_core.commit.retention import Retention
from durable_core.detect.policy import Integrity
from durable_core.errors import UnsupportedError, UsageError
from durable_core.session.cadence import Cadence
from durable_core.session.places import Tiers
from durable_core.session.settings import Backlog, OnBreach, Resume, Settings
from durable_core.spec import RunSpec
from durable_core.types import Promise

_RUN_KEY = re.compile(r"[a-z0-9][a-z0-9._-]*")


#: What Lightning keeps of rank 0 alone, DDP broadcasts from it, or only reports. Not the gradients of manual
#: optimization: a share of the samples would be lost with them.
FROM_FIRST = (
    "checkpoint/*", "buffers/*", "results/*", "metrics/*", "torchmetrics/*", "model_checkpoints/*",
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """``root``: where this run lives, the run key included."""

    root: str
    run_key: str
    settings: Settings
    spec: RunSpec | None

    @classmethod
    def of(
        cls,
        root: Any,
        *,
        resume: Resume,
        every_n_train_steps: int | str,
        train_time_interval: timedelta | float | None,
        promise: Promise | str | None,
        accept_distribution: str,
        retention: Retention | None,
        tiers: Tiers | None,
        backlog: Backlog,
        on_rpo_breach: OnBreach,
        supply_window: int,
        integrity: Integrity | None,
        spec: RunSpec | None,
        run_key: str | None,
        takeover: bool,
    ) -> Options:
        """Raises ``UsageError`` naming the argument that is at fault."""
        if run_key is not None and not _RUN_KEY.fullmatch(run_key):
            raise UsageError(f"run_key={run_key!r}", hint="letters a-z, digits, '.', '_' and '-'")
        if integrity is not None and integrity.recompute_every is not None:
            raise UnsupportedError(
                "Lightning's loop computes gradients itself, logging included, and cannot do it twice",
                hint="recompute_every is for DurableSession; replicas_every compares replicas here as well",
            )
        if tiers is not None and not isinstance(tiers, Tiers):
            raise UsageError(f"tiers={tiers!r}", hint="Tiers(memory=Memory(every_n_steps=1))")
        interval = train_time_interval
        policy = spec.checkpoint if spec is not None else None
        settings = Settings(
            resume=resume,
            takeover=takeover,
            promise=Promise.BITWISE if promise is None else _promise(promise),
            insist=promise is not None,
            accept_distribution=accept_distribution,
            cadence=Cadence(
                every_n_steps=every_n_train_steps,
                every_seconds=interval.total_seconds() if isinstance(interval, timedelta) else interval,
            ),
            retention=retention or Retention(),
            tiers=tiers or Tiers(),
            backlog=backlog,
            on_rpo_breach=on_rpo_breach,
            supply_window=supply_window,
            integrity=integrity or Integrity(),
            rpo_steps=policy.rpo_steps if policy is not None else None,
            from_first=FROM_FIRST,
        )
        base = str(root).rstrip("/")
        if not base:
            raise UsageError(f"root={root!r}", hint="a directory or URL for this run")
        return cls(base if run_key is None else f"{base}/{run_key}", run_key or "main", settings, spec)


def _promise(value: Promise | str) -> Promise:
    try:
        return Promise(value)
    except ValueError as error:
        known = ", ".join(repr(promise.value) for promise in Promise)
        raise UsageError(f"promise={value!r}", hint=f"one of {known}") from error
