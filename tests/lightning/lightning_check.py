"""Is a run that was killed the same run? Each life must be a stretch of the uninterrupted one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from lightning_subject import Case, Strike, at_line, fit, group, lines

from durable_core.engine.audit import audit
from durable_core.engine.inspect import open_run
from tests.lives import Line, check_stretches, life

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
    act: Callable[[], None] | None = None,
    settled: bool = True,
) -> list[list[int]]:
    """Lives that end at ``kills``, then one to the end; asserts that all are the uninterrupted run, and that
    its ledger proves every due sample consumed once.

    Returns the exit codes of each life by rank.
    """
    expected = references.of(case, world)
    codes = []
    for number, (what, count) in enumerate(kills):
        strike = (
            at_line(what, count, settled=settled)
            if act is None
            else at_line(what, count, act, settled=settled)
        )
        codes.append(run_life(case, home, f"life{number}-", world, {victim: strike}))
        assert codes[-1][victim] != 0, "the life was to be killed"
    codes.append(run_life(case, home, f"life{len(kills)}-", world, {}))
    assert codes[-1] == [0] * world, (home / "output").read_text()[-3000:]
    found = audit(open_run(home / "run"))
    assert found.sound, found.to_json()
    for rank in range(world):
        lives = [lines(home, log=f"life{number}-{rank}") for number in range(len(kills) + 1)]
        check_stretches(expected[rank], lives)
    return codes
