"""L6. The scenarios (REQUIREMENTS T11): each is a function that plays it, and a row that says what must come
of it.

``play(ground, defended)``: with ``defended`` false the defence that the scenario is about is switched off,
and one of the checks must find that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from durable_core.testing.drills import faults_of_machines as machines
from durable_core.testing.drills import faults_of_storage as storage
from durable_core.testing.drills import faults_of_workers as workers
from durable_core.testing.drills.checks import Expected, Incident
from durable_core.testing.drills.ground import Ground
from durable_core.testing.drills.namespaces import unavailable

Play = Callable[[Ground, bool], Incident]


def _always() -> str:
    return ""


@dataclass(frozen=True)
class Scenario:
    """``without``: in words, what is switched off for the negative control; ``by``: the checks of which one
    must find that. ``missing()``: why it cannot be played on this machine, ``""`` when it can."""

    name: str
    title: str
    play: Play
    without: str
    by: tuple[str, ...]
    expected: Expected = field(default_factory=Expected)
    missing: Callable[[], str] = _always


_ROWS = (
    Scenario(
        "kill-in-compute", "a worker is killed while it computes", workers.kill_in_compute,
        "restarting", ("outcome",), Expected(("F1",)),
    ),
    Scenario(
        "kill-in-save", "a worker is killed at a named instant of a save", workers.kill_in_save,
        "restarting", ("outcome",), Expected(("F1",), lost_steps=10),
    ),
    Scenario(
        "hang", "a worker stands still, its process alive", workers.hang,
        "the limit for a step", ("bounded",), Expected(("F5",), names="rank 1"),
    ),
    Scenario(
        "straggler", "one worker is slower than the others", workers.straggler,
        "the comparison of ranks", ("named",), Expected(generations=1),
    ),
    Scenario(
        "stubborn", "a survivor ignores SIGTERM", workers.stubborn,
        "the bound of the grace", ("bounded",), Expected(("F1",), rto_s=30.0),
    ),
    Scenario(
        "deterministic", "the program fails in the same step every time", workers.deterministic,
        "the memory of signatures", ("classified", "retries"),
        Expected(("F7",), generations=3, outcome="failed"),
    ),
    Scenario(
        "no-final-record", "the workers end with 0 and the run is not done", workers.no_final_record,
        "asking for the final record", ("outcome",), Expected(("F1",)),
    ),
    Scenario(
        "not-a-number", "the loss is not finite", workers.not_a_number,
        "detectors", ("same run",), Expected(("F12",), lost_steps=15),
    ),
    Scenario(
        "gradient-flip", "a bit of one gradient flips on one replica", workers.gradient_flip,
        "detectors", ("same run",), Expected(("F13",), generations=3, lost_steps=20),
    ),
    Scenario(
        "slow-storage", "every write hangs for seconds", storage.slow,
        "saving in the background", ("pace",), Expected(generations=1),
    ),
    Scenario(
        "read-only", "the storage turns read-only, and back", storage.read_only,
        "going on without storage", ("went on",), Expected(("F10",), generations=1), unavailable,
    ),
    Scenario(
        "full-disk", "the storage is full, and has room again", storage.full,
        "going on without storage", ("went on",), Expected(("F10",), generations=1), unavailable,
    ),
    Scenario(
        "damaged-shard", "the newest checkpoint is truncated, or a bit of it flips", storage.damaged_shard,
        "verification", ("stepped down",), Expected(generations=3, lost_steps=15),
    ),
    Scenario(
        "missing-data", "an object of the dataset is gone, and comes back", storage.missing_data,
        "restarting", ("outcome",), Expected(("F9",), generations=4, names="part-"),
    ),
    Scenario(
        "stale-writer", "a frozen group wakes up when another has gone on", machines.stale_writer,
        "fencing", ("stale stop", "nothing counts", "fencing"), Expected(lost_steps=40),
    ),
    Scenario(
        "node-loss", "a host is lost with everything in its memory", machines.node_loss,
        "a tier that survives the host", ("rpo",), Expected(),
    ),
    Scenario(
        "controller-kill", "the controller is killed", machines.controller_kill,
        "starting another", ("taken over",), Expected(generations=1),
    ),
    Scenario(
        "launcher-kill", "the launcher is killed", machines.launcher_kill,
        "the keeper and the parent-death signal", ("no orphans",), Expected(),
    ),
    Scenario(
        "preemption", "the machine is about to be taken away", machines.preemption,
        "the notice", ("rpo",), Expected(lost_steps=0),
    ),
    Scenario(
        "cancel-in-save", "the run is cancelled while a save is under way", machines.cancel_in_save,
        "the record before the signal", ("outcome",), Expected(outcome="cancelled"),
    ),
    Scenario(
        "world-size", "the next start has another number of workers", machines.world_size,
        "the promise that allows it", ("outcome",), Expected(lost_steps=0, generations=3, same="order"),
    ),
    Scenario(
        "network", "the network between two hosts is cut for a while", machines.network,
        "the limit for a step", ("bounded",), Expected(("F1", "F2", "F5", "F17"), generations=4), unavailable,
    ),
)  # fmt: skip

SCENARIOS = {row.name: row for row in _ROWS}
#: Played by name only: they take their time.
LONG = {
    row.name: row
    for row in (
        Scenario(
            "end-to-end", "workers are killed again and again, at any instant", workers.again_and_again,
            "restarting", ("outcome",), Expected(("F1",), generations=workers.KILLS + 1, lost_steps=40),
        ),
    )
}  # fmt: skip
#: Quick ones, for every change.
SHORT = ("kill-in-compute", "hang", "launcher-kill", "damaged-shard")
