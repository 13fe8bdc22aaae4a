"""``python -m durable_core.testing.simulate``: run the deterministic simulator and print its figures.

``--seeds N`` runs N schedules; ``--seed S --trace`` runs one again and tells it line by line;
``--zombies N`` stops and wakes writers; ``--adoption N`` runs N schedules of hosts that remember, with
``--seed`` that one; ``--plants`` shows that planted bugs are found. Ends with 1 when an invariant was
violated, or a planted bug was not found.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence

from durable_core.clock import SystemClock
from durable_core.testing.planted import PLANTS, Plant
from durable_core.testing.planted_adoption import ADOPTION_PLANTS
from durable_core.testing.sim.harbour import MemoryWorld
from durable_core.testing.sim.world import World
from durable_core.testing.sim.zombies import ZombieWorld
from durable_core.testing.simulator import search


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m durable_core.testing.simulate")
    parser.add_argument("--seeds", type=int, default=0, metavar="N", help="run N schedules")
    parser.add_argument("--start", type=int, default=0, metavar="S", help="first seed (default 0)")
    parser.add_argument("--seed", type=int, metavar="S", help="run one schedule")
    parser.add_argument("--trace", action="store_true", help="with --seed: tell every event")
    parser.add_argument("--zombies", type=int, default=0, metavar="N", help="run N zombie interleavings")
    parser.add_argument("--adoption", type=int, default=0, metavar="N", help="run N schedules with memory")
    parser.add_argument("--plants", action="store_true", help="look for every planted bug")
    options = parser.parse_args(arguments)
    good = True
    if options.seed is not None:
        world = MemoryWorld if options.adoption else World
        return 0 if _one(world(options.seed, trace=options.trace)) else 1
    if options.seeds:
        good &= _many(range(options.start, options.start + options.seeds), World)
    if options.adoption:
        good &= _many(range(options.start, options.start + options.adoption), MemoryWorld)
    if options.zombies:
        good &= _zombies(range(options.start, options.start + options.zombies))
    if options.plants:
        good &= _plants(PLANTS, World)
        good &= _plants(ADOPTION_PLANTS, MemoryWorld)
    return 0 if good else 1


def _one(world: World) -> bool:
    for line in world.run().log:
        _say(line)
    _report(world)
    return not world.violations


def _many(seeds: range, kind: type[World]) -> bool:
    clock = SystemClock()
    begin = clock.monotonic()
    bad = 0
    totals: Counter[str] = Counter()
    for seed in seeds:
        world = kind(seed).run()
        totals.update(world.counts())
        if world.violations:
            bad += 1
            _report(world)
    seconds = clock.monotonic() - begin
    _say(f"{len(seeds)} seeds, {bad} with violations, {len(seeds) / seconds:.1f} seeds/s")
    _say(", ".join(f"{name} {count}" for name, count in sorted(totals.items())))
    return bad == 0


def _zombies(seeds: range) -> bool:
    accepted = refused = broken = 0
    for seed in seeds:
        world = ZombieWorld(seed).run()
        accepted += world.accepted
        refused += world.refused_zombies
        broken += bool(world.violations)
        if world.violations:
            _report(world)
    _say(f"{len(seeds)} zombie interleavings, {accepted} accepted, {refused} refused while writing")
    return accepted == 0 and broken == 0


def _plants(plants: Sequence[Plant], kind: type[World]) -> bool:
    good = True
    for plant in plants:
        finding = search(range(plant.seeds), plant.subject, plant.sign, kind)
        good &= finding is not None
        where = f"MISSED in {plant.seeds} seeds"
        if finding is not None:
            where = f"seed {finding.seed}: {finding.violations[0]}"
        _say(f"a protocol that {plant.subject.name}: {where}")
    return good


def _report(world: World) -> None:
    for violation in world.violations:
        _say(f"seed {world.seed}: {violation}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
