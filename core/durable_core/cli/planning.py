"""L6. ``durable plan``: its options, and what they come to."""

from __future__ import annotations

import click

from durable_core.cli.options import size
from durable_core.cli.output import epilog, show
from durable_core.errors import UsageError

_EPILOG = epilog()
_positive = click.FloatRange(min=0, min_open=True)
_count = click.IntRange(min=1)


@click.command("plan", epilog=_EPILOG)
@click.option("--state-bytes", callback=size, help="One complete checkpoint (8GiB).")
@click.option("--parameters", type=_positive, help="Instead of it: of the model, as 700e9.")
@click.option(
    "--recipe", default="mixed-adam", show_default=True, help="How they are trained: bytes of each."
)
@click.option("--bandwidth", type=_positive, required=True, help="Durable writes, bytes/s.")
@click.option(
    "--copy-bandwidth", type=_positive, default=5e9, show_default=True, help="Staging, bytes/s a host."
)
@click.option("--hosts", type=_count, default=1, show_default=True, help="That stage at once.")
@click.option("--mtbf", type=_positive, help="M of the job, seconds. Default: 4 hours.")
@click.option("--unit-mtbf-years", type=_positive, help="Instead of it: of one unit; with --units.")
@click.option(
    "--annual-rate", type=_positive, help="Or so: the part of the units that fails in a year, 0.02."
)
@click.option("--units", type=_count, default=1, show_default=True, help="That each interrupt the job.")
@click.option(
    "--horizon-days", type=_positive, default=7.0, show_default=True, help="For P(an interruption)."
)
@click.option(
    "--restart", type=click.FloatRange(min=0), default=180.0, show_default=True, help="R + D, seconds."
)
@click.option(
    "--changed",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="The part of the state that differs from save to save.",
)
@click.option("--cost", type=_positive, help="C, the exposed seconds of a save. Default: staging the state.")
@click.option(
    "--every", type=_positive, multiple=True, help="An interval to judge, seconds; may be repeated."
)
@click.option(
    "--tier",
    "tiers",
    multiple=True,
    metavar="NAME[:BYTES/S[:EVERY]]",
    help="memory, peer, disk or remote, fastest first; may be repeated. For --goal.",
)
@click.option(
    "--goal",
    "goals",
    multiple=True,
    metavar="DOMAIN:RPO_S[:RTO_S]",
    help="When DOMAIN is lost, at most so much is, and it is back in so much; - for none. May be repeated.",
)
@click.option("--step-seconds", type=_positive, default=1.0, show_default=True, help="One step. For --goal.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def plan(
    state_bytes: int | None, parameters: float | None, recipe: str, bandwidth: float, copy_bandwidth: float,
    hosts: int, mtbf: float | None, unit_mtbf_years: float | None, annual_rate: float | None, units: int,
    horizon_days: float, restart: float, changed: float, cost: float | None, every: tuple[float, ...],
    tiers: tuple[str, ...], goals: tuple[str, ...], step_seconds: float, as_json: bool,
) -> int:  # fmt: skip
    """Say how often to save, and what each way of saving costs.

    Young's, Daly's and the exact interval for C and M, what other intervals cost, and synchronous,
    asynchronous and incremental saving of the same state compared. With --goal, whether the tiers can meet
    it. Ends with 1 when C is at least M/2, or a goal cannot be met.
    """
    from durable_core.cli import plan as planning

    if (state_bytes is None) == (parameters is None):
        raise UsageError("plan needs --state-bytes or --parameters", hint="one of them")
    if sum(value is not None for value in (mtbf, unit_mtbf_years, annual_rate)) > 1:
        raise UsageError("--mtbf, --unit-mtbf-years and --annual-rate say the same", hint="give one of them")
    state = planning.size_of(state_bytes, parameters, recipe)
    how_often = planning.Rate.of(mtbf, unit_mtbf_years, annual_rate, units, horizon_days)
    answer = planning.plan(
        state,
        how_often,
        planning.Figures(bandwidth, copy_bandwidth * hosts, restart, changed, cost, every),
        planning.Asked(tiers, goals, step_seconds),
    )
    return show(answer, as_json=as_json)
