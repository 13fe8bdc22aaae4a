"""L5. What a cluster and a model come to: how often something breaks, how large a state is. Pure; times in
seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from durable_core.errors import UsageError

YEAR_S = 365 * 86400.0
DAY_S = 86400.0


def of_annual_rate(fraction: float) -> float:
    """The mean time between failures of a unit of which ``fraction`` fails in a year: 0.02 is 50 years."""
    return YEAR_S / _positive("annual rate", fraction)


def cluster_mtbf(unit_mtbf: float, units: int) -> float:
    """``M_unit / N``, for units that fail independently and each of which interrupts the job. A prior: what
    the job really suffers (software, preemption, correlated faults) is measured (``history``)."""
    if units < 1:
        raise UsageError(f"{units} units", hint="at least one")
    return _positive("unit MTBF", unit_mtbf) / units


def at_least_one(horizon: float, mtbf: float) -> float:
    """The probability of an interruption within ``horizon``: ``1 - e^(-t/M)``."""
    return -math.expm1(-horizon / _positive("MTBF", mtbf))


def effective_rate(useful: float, allocated: float) -> float:
    """ETTR: accepted steps' time over all the time that was allocated."""
    return useful / _positive("allocated time", allocated)


# --- sizes -----------------------------------------------------------------------------------

#: Bytes a parameter takes in what a checkpoint must hold, by what is trained how. Gradients and communication
#: buffers are made anew.
PER_PARAMETER: Mapping[str, Mapping[str, int]] = {
    "mixed-adam": {"bf16 parameters": 2, "fp32 master": 4, "Adam m": 4, "Adam v": 4},
    "bf16-adam": {"bf16 parameters": 2, "Adam m": 4, "Adam v": 4},
    "fp32-adam": {"fp32 parameters": 4, "Adam m": 4, "Adam v": 4},
    "fp32-sgd": {"fp32 parameters": 4, "momentum": 4},
    "bf16-weights": {"bf16 parameters": 2},
}


@dataclass(frozen=True)
class Size:
    """``parts``: bytes of each part, in order."""

    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())


def state_size(parameters: int, recipe: str = "mixed-adam") -> Size:
    """What a checkpoint of a model of so many parameters holds. 700 billion under ``mixed-adam``, 14 bytes
    each: 9.8 TB."""
    if recipe not in PER_PARAMETER:
        raise UsageError(f"recipe {recipe!r}", hint="one of " + ", ".join(PER_PARAMETER))
    if parameters < 1:
        raise UsageError(f"{parameters} parameters", hint="at least one")
    return Size({name: parameters * size for name, size in PER_PARAMETER[recipe].items()})


def _positive(name: str, value: float) -> float:
    if not value > 0 or math.isinf(value):
        raise UsageError(f"{name} is {value}", hint="a positive number")
    return value
