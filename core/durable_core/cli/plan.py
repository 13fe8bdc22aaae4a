"""L6. How often to save, and what each way of saving costs, before a run exists (``durable plan``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from durable_core.cli.output import FAILED, OK, Answer, Table, human_bytes
from durable_core.errors import UsageError
from durable_core.session import goals as feasibility
from durable_core.session.cadence import arithmetic, model
from durable_core.spec.goals import Goal
from durable_core.types import Traits

#: What is said of each way of saving beside its numbers (REQUIREMENTS T9).
QUALITIES: Mapping[str, tuple[str, str]] = {
    "sync full": ("same step", "the loop stands still"),
    "async full": ("same step", "a write that fails is seen late; backlog"),
    "async incremental": ("same step, if exact by chunks", "chains, more metadata"),
}
#: Minutes that are judged beside the optimum unless others are given.
EVERY_MIN = (5.0, 10.0, 20.0, 40.0, 80.0)
MTBF_S = 4 * 3600.0


def size_of(state_bytes: int | None, parameters: float | None, recipe: str) -> arithmetic.Size:
    if state_bytes is not None:
        return arithmetic.Size({"state": state_bytes})
    return arithmetic.state_size(int(parameters or 0), recipe)


@dataclass(frozen=True)
class Rate:
    """How often the job is interrupted. ``unit_mtbf``: of one of ``units``, ``None`` when M was given."""

    mtbf: float
    units: int
    unit_mtbf: float | None
    horizon: float

    @staticmethod
    def of(mtbf: float | None, years: float | None, annual: float | None, units: int, days: float) -> Rate:
        horizon = days * arithmetic.DAY_S
        if years is None and annual is None:
            return Rate(MTBF_S if mtbf is None else mtbf, units, None, horizon)
        unit = years * arithmetic.YEAR_S if years is not None else arithmetic.of_annual_rate(annual or 0.0)
        return Rate(arithmetic.cluster_mtbf(unit, units), units, unit, horizon)

    def document(self) -> dict[str, Any]:
        likely = arithmetic.at_least_one(self.horizon, self.mtbf)
        return {**asdict(self), "expected": self.horizon / self.mtbf, "at_least_one": likely}

    def tell(self) -> str:
        likely, expected = arithmetic.at_least_one(self.horizon, self.mtbf), self.horizon / self.mtbf
        unit = "" if self.unit_mtbf is None else f"{self.units} units of {self.unit_mtbf / 3600:.4g} h each: "
        days = self.horizon / arithmetic.DAY_S
        return (
            f"{unit}M {self.mtbf / 3600:.4g} h; in {days:g} days {expected:.3g} interruptions, "
            f"at least one with {likely:.1%}"
        )


@dataclass(frozen=True)
class Figures:
    """Rates in bytes per second, times in seconds. ``cost``: C of an asynchronous save, default the copy;
    ``every``: intervals to judge."""

    bandwidth: float
    copy_bandwidth: float
    restart: float
    changed: float
    cost: float | None = None
    every: tuple[float, ...] = ()


@dataclass(frozen=True)
class Asked:
    """Tiers and goals as they stand on the command line."""

    tiers: tuple[str, ...] = ()
    goals: tuple[str, ...] = ()
    step_seconds: float = 1.0


def plan(size: arithmetic.Size, rate: Rate, figures: Figures, asked: Asked) -> Answer:
    """Ends with FAILED when the model does not hold (C >= M/2), or a goal cannot be met."""
    exposed = figures.cost
    if exposed is None:
        exposed = model.sync_full_seconds(size.total, figures.copy_bandwidth)
    valid = exposed < rate.mtbf / 2
    intervals = {name: method(exposed, rate.mtbf) for name, method in model.METHODS.items()}
    verdict = _goals(size, asked, figures, intervals["exact"])
    document, human = _costs(size, rate, figures, exposed, intervals)
    document["valid"] = valid
    if not valid:
        human.append(f"MODEL INVALID: C is at least M/2 = {rate.mtbf / 2:.4g} s; make saving cheaper first")
    if verdict is not None:
        document["feasible"] = verdict.feasible
        document["goals"] = [
            {**asdict(one.goal), "tier": one.tier, "arithmetic": list(one.arithmetic)}
            for one in verdict.findings
        ]
        human.append(verdict.explain())
    feasible = verdict is None or verdict.feasible
    return Answer(document, human, OK if valid and feasible else FAILED)


def _costs(
    size: arithmetic.Size,
    rate: Rate,
    figures: Figures,
    exposed: float,
    intervals: Mapping[model.Method, float],
) -> tuple[dict[str, Any], list[Table | str]]:
    rows = model.strategies(
        size.total,
        bytes_per_second=figures.bandwidth,
        copy_bytes_per_second=figures.copy_bandwidth,
        mtbf=rate.mtbf,
        restart=figures.restart,
        changed=figures.changed,
    )
    judged = figures.every or tuple(60 * minutes for minutes in EVERY_MIN)
    wastes = [_waste(every, exposed, rate.mtbf, figures.restart) for every in judged]
    optima = {name: _waste(each, exposed, rate.mtbf, figures.restart) for name, each in intervals.items()}
    document: dict[str, Any] = {
        "state_bytes": size.total,
        "parts": dict(size.parts),
        "interruptions": rate.document(),
        "cost_seconds": exposed,
        "mtbf_seconds": rate.mtbf,
        "restart_seconds": figures.restart,
        "intervals": {
            name: {"seconds": intervals[name], "waste": found["exact"]} for name, found in optima.items()
        },
        "waste": wastes,
        "strategies": [{**asdict(row), **_qualities(row.name)} for row in rows],
    }
    human: list[Table | str] = [
        rate.tell(),
        f"C {exposed:.4g} s, M {rate.mtbf:.6g} s, R+D {figures.restart:.4g} s",
        _sizes(size),
        _intervals(intervals, optima, wastes),
        _strategies(rows, size.total),
    ]
    return document, human


def _waste(every: float, cost: float, mtbf: float, restart: float) -> dict[str, float]:
    """To first order, and as it is when interruptions may hit a save or a restart."""
    return {
        "seconds": every,
        "first_order": model.waste(every, cost, mtbf, restart=restart),
        "exact": model.exact_waste(every, cost, mtbf, restart=restart),
    }


def _qualities(name: str) -> dict[str, str]:
    return dict(zip(("consistency", "risk"), QUALITIES[name], strict=True))


def _sizes(size: arithmetic.Size) -> Table:
    rows = [*size.parts.items(), ("all", size.total)]
    shown = rows if len(size.parts) > 1 else rows[-1:]
    return Table(
        ("part of the state", "bytes"), [(name, f"{human_bytes(count)} ({count})") for name, count in shown]
    )


def _intervals(
    intervals: Mapping[model.Method, float],
    optima: Mapping[model.Method, Mapping[str, float]],
    wastes: Iterable[Mapping[str, float]],
) -> Table:
    rows = [(name, intervals[name], optima[name]) for name in model.METHODS]
    rows += [("as given", row["seconds"], row) for row in wastes]  # type: ignore[misc]
    shown = [
        (name, f"{seconds:.2f} s", f"{row['first_order']:.2%}", f"{row['exact']:.2%}")
        for name, seconds, row in rows
    ]
    return Table(("method", "save every", "time lost, first order", "exact"), shown)


def _strategies(rows: Iterable[model.Strategy], state_bytes: int) -> Table:
    columns = (
        "strategy", "exposed", "extra memory", "save every", "lag", "RPO", "read back", "time lost",
        "consistency", "risk",
    )  # fmt: skip
    shown = [
        (
            row.name, f"{row.cost:.4g} s", human_bytes(int(row.extra_bytes)), f"{row.interval:.4g} s",
            f"{row.lag:.4g} s", f"{row.rpo:.4g} s", f"{row.restore:.4g} s", f"{row.waste:.2%}",
            *QUALITIES[row.name],
        )
        for row in rows
    ]  # fmt: skip
    return Table(columns, shown, title=f"{human_bytes(state_bytes)} of state")


# --- goals -----------------------------------------------------------------------------------


def _goals(
    size: arithmetic.Size, asked: Asked, figures: Figures, interval: float
) -> feasibility.Verdict | None:
    """Whether the tiers can meet the goals when saved at the exact optimum, or the first of the intervals
    given."""
    if not asked.goals:
        return None
    if not asked.tiers:
        raise UsageError("--goal needs --tier", hint="as --tier memory --tier remote:20e9")
    every = figures.every[0] if figures.every else interval
    terms = feasibility.Figures(
        size.total,
        asked.step_seconds,
        every_steps=max(1, round(every / asked.step_seconds)),
        detection_seconds=figures.restart,
    )
    return feasibility.feasible(map(_goal, asked.goals), dict(map(_tier, asked.tiers)), terms)


def _tier(text: str) -> tuple[str, Traits]:
    name, *rest = text.split(":")
    numbers = [_number(text, cell) for cell in rest]
    if len(numbers) > 2:
        raise UsageError(f"--tier {text}", hint="NAME[:BYTES/S[:EVERY]]")
    traits = feasibility.default_traits(name)
    every = numbers[1] if len(numbers) > 1 else None
    return name, replace(traits, bytes_per_second=numbers[0] if numbers else None, every=int(every or 1))


def _goal(text: str) -> Goal:
    domain, *rest = text.split(":")
    numbers = [_number(text, cell) for cell in rest]
    if not 1 <= len(numbers) <= 2:
        raise UsageError(f"--goal {text}", hint="DOMAIN:RPO_S[:RTO_S], as host:600:900")
    return Goal(domain, rpo_seconds=numbers[0], rto_seconds=numbers[1] if len(numbers) > 1 else None)


def _number(text: str, cell: str) -> float | None:
    if cell in ("", "-"):
        return None
    try:
        return float(cell)
    except ValueError:
        raise UsageError(f"{cell!r} in {text!r} is no number") from None
