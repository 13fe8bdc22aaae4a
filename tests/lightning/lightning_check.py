"""Is a run that was killed the same run? Each life must be a stretch of the uninterrupted one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from lightning_subject import Case, Strike, at_line, fit, group, lines

from tests.lives import Line, all_lives, check_stretches, kill_self, life, sound

#: (what, number, act): where a life ends
Kill = tuple[str, int]


class References:
    """Uninterrupted runs, each made once in a session."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._known: dict[tuple[str, int], list[list[Line]]] = {}

    def of(self, case: Case, world: int = 1) -> list[list[Line]]:
        """Lines by rank."""
        key = (repr(case), world)
        if key not in self._known:
            home = self._home / f"reference-{len(self._known)}"
            home.mkdir()
            assert run_life(case, home, "log", world, {}) == [0] * world, (home / "output").read_text()[
                -3000:
            ]
            self._known[key] = [lines(home, log=f"log{rank}") for rank in range(world)]
        return self._known[key]


def run_life(case: Case, home: Path, log: str, world: int, strikes: dict[int, Strike]) -> list[int]:
    """Exit codes by rank."""
    if world == 1:
        return [life(home, lambda: fit(case, home, strikes.get(0), f"{log}0"))]
    ddp = {"strategy": "ddp", "devices": world}
    return group(home, world, lambda rank: fit(case, home, strikes.get(rank), f"{log}{rank}", **ddp))


def survives(
    references: References,
    home: Path,
    case: Case,
    kills: Sequence[Kill],
    *,
    world: int = 1,
    victim: int = 0,
    act: Callable[[], None] = kill_self,
    settled: bool = True,
) -> list[list[int]]:
    """Lives that end at ``kills``, then one to the end; asserts that all are the uninterrupted run, and that
    its ledger proves every due sample consumed once.

    Returns the exit codes of each life by rank.
    """
    expected = references.of(case, world)

    def live(number: int, strike: Strike | None) -> list[int]:
        return run_life(case, home, f"life{number}-", world, {} if strike is None else {victim: strike})

    strikes = [at_line(what, count, act, settled=settled) for what, count in kills]
    codes = all_lives(live, strikes, victim, home / "output")
    sound(home / "run")
    for rank in range(world):
        check_stretches(expected[rank], [lines(home, log=f"life{n}-{rank}") for n in range(len(codes))])
    return codes
