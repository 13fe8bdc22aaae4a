"""L6. ``durable plan``: how often to save, and what each way of saving costs, before a run exists."""

from __future__ import annotations

from dataclasses import asdict

from durable_core.cli.output import FAILED, OK, Answer, Table, human_bytes
from durable_core.session.cadence import model


def plan(
    state_bytes: int,
    *,
    bandwidth: float,
    copy_bandwidth: float,
    mtbf: float,
    restart: float,
    changed: float,
    cost: float | None,
) -> Answer:
    """Rates in bytes per second, times in seconds. ``cost``: C of an asynchronous save, default the copy.

    Ends with FAILED when the model does not hold: C >= M/2.
    """
    rows = model.strategies(
        state_bytes,
        bytes_per_second=bandwidth,
        copy_bytes_per_second=copy_bandwidth,
        mtbf=mtbf,
        restart=restart,
        changed=changed,
    )
    exposed = model.sync_full_seconds(state_bytes, copy_bandwidth) if cost is None else cost
    intervals = {name: method(exposed, mtbf) for name, method in model.METHODS.items()}
    wastes = {
        name: model.exact_waste(interval, exposed, mtbf, restart=restart)
        for name, interval in intervals.items()
    }
    valid = exposed < mtbf / 2
    document = {
        "state_bytes": state_bytes,
        "cost_seconds": exposed,
        "mtbf_seconds": mtbf,
        "restart_seconds": restart,
        "valid": valid,
        "intervals": {name: {"seconds": intervals[name], "waste": wastes[name]} for name in model.METHODS},
        "strategies": [asdict(row) for row in rows],
    }
    human: list[Table | str] = [
        f"C {exposed:.4g} s, M {mtbf:.6g} s, R+D {restart:.4g} s",
        Table(
            ("method", "save every", "time lost"),
            [(name, f"{intervals[name]:.2f} s", f"{wastes[name]:.2%}") for name in model.METHODS],
        ),
        Table(
            ("strategy", "exposed", "extra memory", "save every", "lag", "RPO", "read back", "time lost"),
            [
                (
                    row.name, f"{row.cost:.4g} s", human_bytes(int(row.extra_bytes)), f"{row.interval:.4g} s",
                    f"{row.lag:.4g} s", f"{row.rpo:.4g} s", f"{row.restore:.4g} s", f"{row.waste:.2%}",
                )
                for row in rows
            ],
            title=f"{human_bytes(state_bytes)} of state",
        ),
    ]  # fmt: skip
    if not valid:
        human.append(f"MODEL INVALID: C is at least M/2 = {mtbf / 2:.4g} s; make saving cheaper first")
    return Answer(document, human, OK if valid else FAILED)
