"""Scripts that know nothing of ours, killed and started again: is it the same run?

A life is a forked process that becomes ``python -m accelerate_durable SCRIPT``, and is killed where told.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accelerate.state import AcceleratorState, GradientState

from accelerate_durable import swap  # noqa: F401  # what every life imports, once
from accelerate_durable.__main__ import main
from durable_core.engine.inspect import Reader
from durable_core.session.plain import DurableSession
from tests import lives
from tests.lives import Line, all_ended, free_port, kill_self, life, start

SCRIPTS = Path(__file__).with_name("scripts")
sys.path.append(str(SCRIPTS))

import training_parts  # noqa: E402  # the scripts' own, found as they find it

#: Of a process: told of each line that it has written.
Strike = Callable[[str], None]
#: (what, number): the line with which a life ends.
Kill = tuple[str, int]


@dataclass(frozen=True)
class Case:
    """``script`` with ``arguments``; ``options`` of the run, as the environment gives them."""

    script: str = "never_checkpoints"
    arguments: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    every: int | str = 5

    @property
    def environ(self) -> dict[str, str]:
        told = {"every_n_steps": self.every, "backlog": "delay", **self.options}  # no snapshot is skipped
        return {
            f"ACCELERATE_DURABLE_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
            for name, value in told.items()
        }


def case(
    arguments: str = "", script: str = "never_checkpoints", every: int | str = 5, **options: Any
) -> Case:
    return Case(script, tuple(arguments.split()), options, every)


# --- lives --------------------------------------------------------------------------------------------

_sessions: list[DurableSession] = []


def watch_sessions() -> None:
    """So that a strike can wait until what was staged is durable."""
    begin = DurableSession._begin

    def begun(session: DurableSession, *args: Any) -> None:
        _sessions.append(session)
        begin(session, *args)

    DurableSession._begin = begun  # type: ignore[method-assign]


def at_line(what: str, number: int, act: Callable[[], None] = kill_self, *, settled: bool = True) -> Strike:
    """Acts at the ``number``-th line (from 1) of a kind; ``settled``: when all snapshots are durable."""
    left = [number]

    def strike(kind: str) -> None:
        left[0] -= kind == what
        if kind == what and left[0] == 0:
            for session in _sessions if settled else ():
                session.flush()
            act()

    return strike


def become(case: Case, home: Path, log: str, strike: Strike | None = None, more: Sequence[str] = ()) -> None:
    """In a process of its own: be the script, with its log in ``home/log.RANK``, the run in ``home/run``."""
    os.chdir(home)
    AcceleratorState._reset_state(True)  # of the process that this one was forked from
    GradientState._reset_state()
    os.environ.update({**case.environ, "ACCELERATE_DURABLE_ROOT": str(home / "run")})
    training_parts.strike = strike
    watch_sessions()
    told = ["--log", str(home / log), "--weights", str(home / f"{log}.weights")]
    main([str(SCRIPTS / f"{case.script}.py"), *told, *case.arguments, *more])


def group(home: Path, world: int, action: Callable[[int], Any]) -> list[int]:
    """``action(rank)`` in ``world`` processes, as torchrun starts them; their exit codes."""
    port = free_port()

    def ranked(rank: int) -> None:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        os.environ.update({name: str(value) for name, value in place.items()})
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        action(rank)

    pids = [start(home, lambda rank=rank: ranked(rank)) for rank in range(world)]
    return all_ended(pids)


def run_life(
    case: Case, home: Path, log: str, *, world: int = 1, strikes: Mapping[int, Strike] | None = None,
    more: Sequence[str] = (),
) -> list[int]:  # fmt: skip
    """Exit codes by rank."""
    by_rank = strikes or {}
    if world == 1:
        return [life(home, lambda: become(case, home, log, by_rank.get(0), more))]
    return group(home, world, lambda rank: become(case, home, log, by_rank.get(rank), more))


# --- what they tell -----------------------------------------------------------------------------------


def lines(home: Path, log: str, rank: int = 0) -> list[Line]:
    path = home / f"{log}.{rank}"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def trained(found: Sequence[Line]) -> list[Line]:
    """Without what a restarted script does in the bodies of epochs that are over, before its first batch."""
    first = next((n for n, line in enumerate(found) if line["what"] == "batch"), None)
    return list(found[first:]) if first is not None else [line for line in found if line["what"] == "end"]


def output(home: Path) -> str:
    return (home / "output").read_text()


def sound(home: Path) -> Reader:
    """The run, whose ledger proves that every due sample was consumed once."""
    return lives.sound(home / "run")


class References:
    """Uninterrupted runs, each made once in a session."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._known: dict[tuple[str, int], list[list[Line]]] = {}
        self._made = 0

    def of(self, case: Case, world: int = 1) -> list[list[Line]]:
        """Lines by rank."""
        key = (repr(case), world)
        if key not in self._known:
            self._made += 1
            home = self._home / f"reference-{self._made}"
            home.mkdir()
            assert run_life(case, home, "log", world=world) == [0] * world, output(home)[-3000:]
            self._known[key] = [lines(home, "log", rank) for rank in range(world)]
        return self._known[key]


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
    later: Sequence[str] = (),
    control: Case | None = None,
) -> list[list[int]]:
    """Lives that end at ``kills``, then one to the end; asserts that all are the uninterrupted run, and that
    its ledger proves every due sample consumed once. ``later``: arguments of all lives but the first.
    ``control``: what is run uninterrupted, where it is not ``case``.

    Returns the exit codes of each life by rank.
    """
    expected = references.of(control or case, world)

    def live(number: int, strike: Strike | None) -> list[int]:
        strikes = {} if strike is None else {victim: strike}
        more = later if number else ()
        return run_life(case, home, f"life{number}", world=world, strikes=strikes, more=more)

    strikes = [at_line(what, count, act, settled=settled) for what, count in kills]
    codes = lives.all_lives(live, strikes, victim, home / "output")
    for rank in range(world):
        found = [trained(lines(home, f"life{number}", rank)) for number in range(len(codes))]
        lives.check_stretches(expected[rank], found)
        assert found[-1][0] != expected[rank][0], "the last life began from the start"
    sound(home)
    return codes
