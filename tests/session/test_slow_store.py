"""A store that is too slow: memory is bounded, what it costs is counted, and training goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from session_helpers import check, restored, start, state_at

from durable_core import Disk, Goal, Memory, Tiers, events
from durable_core.clock import SystemClock
from durable_core.engine.inspect import open_run
from durable_core.engine.verify import verify
from durable_core.errors import MemoryShortageError
from durable_core.session import Run
from durable_core.session import run as session_run
from durable_core.session.tiers import open_tier
from durable_core.state.snapshots import leftovers
from durable_core.state.staging.buffer import Buffer
from durable_core.tier.base import Tier
from durable_core.tier.limit import RateLimit, RateLimited

SIZE = 64 * 1024  # 256 KiB a checkpoint
SLOT = 5 * SIZE  # bytes of a slot at most: the state, and what else is saved with it
DEADLINE = 60.0


class Gate(RateLimit):
    """Lets objects into the store when it is open; until then whoever writes one waits."""

    def __init__(self) -> None:
        super().__init__(1.0, SystemClock())
        self.open = threading.Event()
        self.open.set()
        self.waiting = threading.Event()

    def take(self, nbytes: int) -> None:
        if not self.open.is_set():
            self.waiting.set()
            assert self.open.wait(DEADLINE), "nobody opened the gate"


def stand_before_every_store(monkeypatch: pytest.MonkeyPatch, limit: RateLimit) -> None:
    def limited(root: str | Path) -> Tier:
        return RateLimited(open_tier(root), limit)

    monkeypatch.setattr(session_run, "open_tier", limited)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate()
    stand_before_every_store(monkeypatch, made)
    yield made
    made.open.set()


def listen(run: Run) -> list[events.Event]:
    seen: list[events.Event] = []
    run.board.listeners.append(seen.append)
    return seen


def train(run: Run, first: int, last: int) -> None:
    for step in range(first, last + 1):
        run.boundary(step)
        run.save(state_at(step, SIZE), {}, step=step)
        run.settle()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def breached(seen: list[events.Event]) -> list[str]:
    return [event.domain for event in seen if isinstance(event, events.GoalBreached)]


def test_saves_that_find_every_slot_in_use_are_left_out_and_counted(tmp_path: Path, gate: Gate) -> None:
    run = start(tmp_path, tiers=Tiers(goals=(Goal("cluster", rpo_steps=4),)))
    seen = listen(run)
    gate.open.clear()
    train(run, 1, 20)  # returns although nothing reaches the store
    status = run.status()
    assert (status.committed, status.pending, status.skipped) == (1, 2, 18)
    left_out = {event.step for event in seen if isinstance(event, events.SaveSkipped)}
    first, second = set(range(1, 21)) - left_out  # the second once the first is done with its parent's slot
    assert run._stores.pool.nbytes <= 2 * SLOT
    assert breached(seen) == ["cluster"]
    assert [event.step for event in seen if isinstance(event, events.GoalBreached)] == [0]
    gate.open.set()
    run.flush()
    assert run.status().newest_step == max(first, second)
    train(run, 21, 21)
    run.close()
    assert restored(tmp_path)[0] == 21


def test_with_delay_the_loop_waits_for_a_slot_and_nothing_is_left_out(tmp_path: Path, gate: Gate) -> None:
    run = start(tmp_path, backlog="delay")
    gate.open.clear()
    training = threading.Thread(target=train, args=(run, 1, 6))
    training.start()
    until(lambda: run.status().delayed == 1)
    assert run.status().current_step in (2, 3)  # one or two are staged, the next waits
    assert run._stores.pool.nbytes <= 2 * SLOT
    gate.open.set()
    training.join(DEADLINE)
    assert not training.is_alive()
    run.flush()
    status = run.status()
    assert (status.newest_step, status.committed, status.skipped) == (6, 7, 0)
    run.close()
    assert restored(tmp_path)[0] == 6


def test_snapshots_in_memory_go_on_beside_a_store_that_takes_nothing(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    goals = (Goal("process", rpo_steps=1), Goal("cluster", rpo_steps=4))
    tiers = Tiers(memory=Memory(every_n_steps=1, directory=memory), goals=goals)
    run = start(tmp_path / "root", tiers=tiers)
    seen = listen(run)
    gate.open.clear()
    for step in range(1, 13):
        train(run, step, step)
        recoverable = run.status().recoverable
        assert (recoverable["process"], recoverable["cluster"]) == (step, 0)
    assert breached(seen) == ["cluster"]
    status = run.status()
    assert (status.pending, status.skipped) == (1, 11)  # one slot of three is always left for the next step
    assert run._stores.pool.nbytes <= 3 * (SLOT + (1 << 20))  # a seal has room of its own
    gate.open.set()
    run.save(state_at(13, SIZE), {}, step=13, wait=True)
    run.boundary(13)
    assert run.status().recoverable["cluster"] == 13
    run.close()
    step, state = restored(tmp_path / "root", tiers=tiers)
    assert step == 13
    check(13, state)


def test_closing_waits_for_the_save_under_way_and_leaves_nothing_in_memory(
    tmp_path: Path, gate: Gate
) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    tiers = Tiers(memory=Memory(every_n_steps=1, directory=memory))
    run = start(tmp_path / "root", tiers=tiers)
    gate.open.clear()
    train(run, 1, 1)
    assert gate.waiting.wait(DEADLINE)
    closing = threading.Thread(target=run.close)
    closing.start()
    until(lambda: run._saver is None)
    gate.open.set()
    closing.join(DEADLINE)
    assert not closing.is_alive()
    assert [info.step for info in open_run(tmp_path / "root").committed()] == [0, 1]
    assert leftovers(memory) == []


def test_a_slow_root_behind_a_disk_gets_the_newest_and_no_queue(tmp_path: Path, gate: Gate) -> None:
    tiers = Tiers(disk=Disk(tmp_path / "disk"), goals=(Goal("cluster", rpo_steps=4),))
    run = start(tmp_path / "root", tiers=tiers, backlog="delay")
    run.flush()
    seen = listen(run)
    gate.open.clear()
    train(run, 1, 1)
    assert gate.waiting.wait(DEADLINE)  # the copy of the first one is under way
    train(run, 2, 12)
    until(lambda: run.status().newest_step == 12)  # commits do not wait for the root
    assert run._saver is not None and run._saver.copier is not None
    assert run._saver.copier._errands.pending == 1
    assert run._stores.pool.nbytes <= 2 * SLOT
    assert breached(seen) == ["cluster"]
    gate.open.set()
    run.flush()
    assert run.status().recoverable["cluster"] == 12
    run.close()
    copied = [event.step for event in seen if isinstance(event, events.CopyAdded)]
    assert copied == [1, 12]
    state = open_run(tmp_path / "root").state
    assert state.head is not None and set(state.checkpoints[state.head].tiers) == {"disk", "remote"}
    assert not verify(open_run(tmp_path / "root")).findings


def test_a_store_of_low_bandwidth_gets_what_it_can_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_before_every_store(monkeypatch, RateLimit(32 * 4 * SIZE, SystemClock(), burst_s=0.0))
    run = start(tmp_path)
    seen = listen(run)
    step = 0
    while run.status().committed < 5 or run.status().skipped < 5:
        step += 1
        train(run, step, step)
        assert run._stores.pool.nbytes <= 2 * SLOT
        assert run.status().pending <= 2
    run.close()
    made = [event.step for event in seen if isinstance(event, events.SaveCommitted)]
    left_out = [event.step for event in seen if isinstance(event, events.SaveSkipped)]
    assert sorted(made + left_out) == [*range(1, step + 1)]
    newest, state = restored(tmp_path)
    assert newest == made[-1]
    check(newest, state)


def test_memory_that_runs_out_costs_the_snapshot_and_not_the_training(tmp_path, monkeypatch) -> None:
    run = start(tmp_path)
    told: list[events.Event] = []
    run.board.listeners.append(told.append)
    with monkeypatch.context() as full:
        full.setattr(Buffer, "prepare", lambda *_, **__: (_ for _ in ()).throw(MemoryShortageError("2 of 1")))
        assert run.save(state_at(1), {}, step=1) is False
        with pytest.raises(MemoryShortageError):
            run.save(state_at(1), {}, step=1, wait=True)
    assert [event.reason for event in told if isinstance(event, events.SaveSkipped)] == ["2 of 1"]
    run.save(state_at(2), {}, step=2, wait=True)
    run.close()
