"""``python -m durable_core.testing.cluster``: see the package."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from durable_core.testing.cluster import scenarios

TARGET = 0.98


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m durable_core.testing.cluster", description=__doc__)
    parser.add_argument("--seeds", type=int, default=40, help="runs that each figure is the mean of")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    found = everything(given.seeds)
    sys.stdout.write((json.dumps(found) if given.json else tables(found)) + "\n")
    return 0 if found["incident"]["at_most_one_interval"] and found["incident"]["rto_kept"] else 1


def everything(seeds: int) -> dict[str, Any]:
    return {
        "seeds": seeds,
        "assumptions": scenarios.assumptions(),
        "policies": scenarios.by_policy(seeds),
        "sensitivity": scenarios.sensitivity(max(2, seeds // 4)),
        "interference": scenarios.interference(max(2, seeds // 4)),
        "target": TARGET,
        "needed": scenarios.needed(TARGET),
        "incident": scenarios.incident(seeds),
    }


def tables(found: Mapping[str, Any]) -> str:
    """What ``everything`` found, for people."""
    parts = (_headline, _policies, _sensitivity, _needed, _incident)
    return "\n\n".join("\n".join(part(found)) for part in parts)


def _headline(found: Mapping[str, Any]) -> list[str]:
    plant, machine = found["assumptions"]["plant"], found["assumptions"]["machine"]
    down, up = machine["detect"] + machine["isolate"], machine["rendezvous"] + machine["verify"]
    return [
        f"{plant['cards']} cards, {plant['state'] / 1e12:.1f} TB, M {machine['mtbf'] / 3600:.2f} h, "
        f"D {down:.0f} s, R {up:.0f} s and reading; {found['seeds']} runs of 14 days each"
    ]


def _policies(found: Mapping[str, Any]) -> list[str]:
    columns = ("ettr", "error", "saving", "lost", "down", "idle")
    lines = [f"{'policy':20}" + "".join(f"{name:>8}" for name in (*columns, "1-W")) + "  every"]
    for row in found["policies"]:
        every = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in row["every_s"].items())
        cells = "".join(f"{row[name]:8.2%}" for name in columns)
        lines.append(f"{row['policy']:20}{cells}{1 - row['predicted_waste']:8.2%}  {every}")
    return lines


def _sensitivity(found: Mapping[str, Any]) -> list[str]:
    factors = [f"x{factor:g}" for factor in scenarios.FACTORS]
    lines = [f"{'tiers, standby, with':32}" + "".join(f"{name:>9}" for name in factors)]
    for row in found["sensitivity"]:
        lines.append(f"{row['what']:32}" + "".join(f"{row[name]:9.2%}" for name in factors))
    for row in found["interference"]:
        what = f"steps {row['slower']:.1%} slower while writing"
        lines.append(f"{what:32} async {row['async']:.2%}, tiers {row['tiers']:.2%}")
    return lines


def _needed(found: Mapping[str, Any]) -> list[str]:
    lines = [f"for {found['target']:.0%} (spares not counted), one of these alone has to be"]
    for row in found["needed"]:
        factor = "no factor does" if row["factor"] is None else f"x{row['factor']:.3g}"
        lines.append(f"{row['what']:32}{factor:>9}")
    return lines


def _incident(found: Mapping[str, Any]) -> list[str]:
    was = found["incident"]["as_it_was"]
    lines = [f"the reference incident: {was['lost_s']:.0f} s lost, {was['rto_s']:.0f} s until it ran again"]
    for row in found["incident"]["replays"]:
        bound = f"one interval and its lag: {row['one_interval_s']:.0f} s"
        lines.append(
            f"{row['how']}, out of {row['tier']}: in {row['incidents']} replays "
            f"at most {row['worst_lost_s']:.0f} s ({bound}), {row['mean_rto_s']:.0f} s on average"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
