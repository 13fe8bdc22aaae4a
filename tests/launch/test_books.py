"""The journal as a launcher keeps it: claims, failures, the end, and a store that hangs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from durable_core.clock import SystemClock
from durable_core.commit import claim, ending
from durable_core.commit.journal import EMPTY, View, replay
from durable_core.engine import heartbeat, inspect
from durable_core.engine.launched import launch_id
from durable_core.engine.performer import Performer
from durable_core.errors import Fenced, InDoubt, RunBusy, Superseded, TierUnavailable
from durable_core.format import canonical, layout
from durable_core.format.record import Kind
from durable_core.launch.books import Books, Lapse, record_name
from durable_core.tier.base import Buffer
from durable_core.tier.posix import PosixTier
from durable_core.types import Promise, Token

DIGEST = "sha256:" + "0" * 64
CLOCK = SystemClock()


def create(root: Path, roles: tuple[str, ...] = ("dp0", "dp1")) -> View:
    performer = Performer(PosixTier(root), CLOCK)
    return performer.run(
        claim.create_run(
            EMPTY, launch_id="someone", run_id="run", spec={"roles": list(roles)}, spec_digest=DIGEST, seed=1,
            promise=Promise.BITWISE,
        )
    )  # fmt: skip


def lapse(number: int = 1, **changes: Any) -> Lapse:
    made = Lapse(f"{number:032x}", "F2", "kill@step", {"exit": -9}, 7, "restart", True, placement="a,b")
    return replace(made, **changes)


def failures(root: Path) -> list[dict[str, Any]]:
    return [dict(line.payload) for line in inspect.open_run(root).state.failures]


def test_the_name_in_records_is_the_one_that_workers_compute() -> None:
    assert record_name("abc") == launch_id({"DURABLE_LAUNCH_ID": "abc", "TORCHELASTIC_RUN_ID": "other"})


def test_without_a_run_there_is_nothing_to_claim(tmp_path: Path) -> None:
    books = Books(tmp_path, CLOCK, "a")
    assert books.state() is None
    assert books.claim() is None
    assert books.mine() is None


def test_a_claim_is_the_next_generation_and_says_what_it_starts_from(tmp_path: Path) -> None:
    create(tmp_path)
    books = Books(tmp_path, CLOCK, "a")
    first = books.claim()
    assert first is not None
    assert (first.run_id, first.token, first.c, first.step) == ("run", Token(1, record_name("a")), None, None)
    assert first.members == ("dp0", "dp1")
    assert books.mine() == first.token
    second = books.claim(("dp0",))
    assert second is not None
    assert second.token.generation == 2
    assert inspect.open_run(tmp_path).state.members == ("dp0",)


def test_an_ended_run_is_not_claimed_again(tmp_path: Path) -> None:
    create(tmp_path)
    books = Books(tmp_path, CLOCK, "a")
    claimed = books.claim()
    assert claimed is not None
    books.end(claimed.token, "no budget left")
    assert books.end(claimed.token, "again").terminal.detail["reason"] == "no budget left"  # type: ignore[union-attr]
    assert books.claim() is None
    assert books.mine() is None


def test_a_launch_that_was_superseded_claims_no_more_unless_it_takes_over(tmp_path: Path) -> None:
    create(tmp_path)
    Books(tmp_path, CLOCK, "a").claim()
    taken = Books(tmp_path, CLOCK, "b").claim()
    assert taken is not None
    assert taken.token.generation == 2
    with pytest.raises(Superseded):
        Books(tmp_path, CLOCK, "a").claim()
    again = Books(tmp_path, CLOCK, "a").claim(takeover=True)
    assert again is not None
    assert again.token.generation == 3


def test_a_failure_is_recorded_once_and_whole(tmp_path: Path) -> None:
    create(tmp_path)
    books = Books(tmp_path, CLOCK, "a")
    claimed = books.claim()
    assert claimed is not None
    books.failed(claimed.token, lapse())
    books.failed(claimed.token, lapse())
    Books(tmp_path, CLOCK, "a").failed(claimed.token, lapse())
    assert failures(tmp_path) == [
        {
            "class": "F2", "signature": "kill@step", "evidence": {"exit": -9}, "step": 7, "placement": "a,b",
            "action": "restart", "charged": True, "onset": None,
        }
    ]  # fmt: skip


def test_a_failure_of_a_generation_that_is_not_ours_any_more_is_refused(tmp_path: Path) -> None:
    create(tmp_path)
    books = Books(tmp_path, CLOCK, "a")
    claimed = books.claim()
    assert claimed is not None
    assert Books(tmp_path, CLOCK, "b").claim() is not None
    with pytest.raises(Fenced):
        books.failed(claimed.token, lapse())
    assert failures(tmp_path) == []


def test_maintenance_is_under_an_epoch_of_this_launch(tmp_path: Path) -> None:
    create(tmp_path)
    state = Books(tmp_path, CLOCK, "a").maintain(Kind.QUARANTINE, {"kind": "node", "name": "n1"})
    assert state.controller == record_name("a")
    assert [dict(row) for row in state.quarantines] == [{"kind": "node", "name": "n1"}]


# --- a live owner ----------------------------------------------------------------------------


@dataclass
class Ticking:
    """Time that passes only while somebody sleeps; ``then`` is called at each sleep."""

    at: float = 1000.0
    then: Any = None

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds
        if self.then is not None:
            self.then()

    def new_id(self) -> str:
        return CLOCK.new_id()


def owner(root: Path, name: str, *, host: str = "", pid: int = 0, at: float = 1000.0) -> None:
    here = (os.uname().nodename, heartbeat.boot_id())
    where, boot = (host, "elsewhere") if host else here
    pid = pid or os.getpid()
    beat = heartbeat.Owner(name, 1, where, boot, pid, heartbeat.process_start(pid) or 0, at, [])
    PosixTier(root).put(layout.OWNER_HINT, canonical.dumps(vars(beat)))


def test_another_launch_that_trains_is_not_disturbed(tmp_path: Path) -> None:
    create(tmp_path)
    clock = Ticking()
    owner(tmp_path, record_name("b"))
    clock.then = lambda: owner(tmp_path, record_name("b"), at=clock.at)
    books = Books(tmp_path, clock, "a")
    assert "owns the run" in books.busy()
    with pytest.raises(RunBusy):
        books.claim()
    assert clock.at < 1001, "an owner that beats is not waited for"
    assert books.claim(takeover=True) is not None


def test_an_owner_that_vanishes_while_it_is_waited_for_is_followed(tmp_path: Path) -> None:
    create(tmp_path)
    owner(tmp_path, record_name("b"), host="far")
    clock = Ticking()
    claimed = Books(tmp_path, clock, "a").claim()
    assert claimed is not None
    assert 1014 < clock.at < 1017


def test_an_owner_that_stands_still_is_busy_in_the_end(tmp_path: Path) -> None:
    create(tmp_path)
    owner(tmp_path, record_name("b"))
    clock = Ticking()
    with pytest.raises(RunBusy):
        Books(tmp_path, clock, "a").claim(patience_s=3)
    assert 1003 < clock.at < 1004


def test_an_owner_of_the_same_launch_is_no_obstacle(tmp_path: Path) -> None:
    create(tmp_path)
    owner(tmp_path, record_name("a"))
    assert Books(tmp_path, CLOCK, "a").busy() == ""
    assert Books(tmp_path, CLOCK, "a").claim() is not None


def test_the_same_launch_started_twice_does_not_fence_itself(tmp_path: Path) -> None:
    """Its owner is a process that no agent of ours has started, and it beats again and again."""
    create(tmp_path)
    elsewhere = os.getppid()
    owner(tmp_path, record_name("a"), pid=elsewhere)
    clock = Ticking()
    clock.then = lambda: owner(tmp_path, record_name("a"), pid=elsewhere, at=clock.at)
    with pytest.raises(RunBusy):
        Books(tmp_path, clock, "a").claim()
    assert Books(tmp_path, clock, "a").claim(kin=(elsewhere,)) is not None
    assert Books(tmp_path, clock, "a").claim(takeover=True) is not None


def test_what_a_dead_agent_of_the_same_launch_has_left_holds_nothing_up_for_ever(tmp_path: Path) -> None:
    create(tmp_path)
    owner(tmp_path, record_name("a"), pid=os.getppid())
    clock = Ticking()
    assert Books(tmp_path, clock, "a").claim(patience_s=3) is not None
    assert 1003 < clock.at < 1004, "it lives, and is not heard of"


# --- a store that hangs ----------------------------------------------------------------------


class Hanging(PosixTier):
    """Its writes wait for ``go``; ``before`` is where they stand: before or after they were applied."""

    applied = False
    reached: threading.Event
    go: threading.Event
    armed = False

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        if not self.armed:
            return super().put_if_absent(key, data)
        done = super().put_if_absent(key, data) if self.applied else None
        self.reached.set()
        assert self.go.wait(30)
        self.ended.set()
        return super().put_if_absent(key, data) if done is None else done


@pytest.fixture(params=[False, True], ids=["not applied yet", "applied"])
def hanging(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Hanging]:
    create(tmp_path)
    tier = Hanging(tmp_path)
    tier.applied, tier.reached, tier.go, tier.ended = (
        request.param, threading.Event(), threading.Event(), threading.Event(),
    )  # fmt: skip
    yield tier
    tier.go.set()


def keep(tier: Hanging, deadline_s: float = 0.3) -> Books:
    return Books(tier.root, CLOCK, "a", deadline_s=deadline_s, open_tier=lambda root: tier)


def test_a_claim_that_hangs_ends_at_its_deadline_and_never_fences_what_came_after(
    tmp_path: Path, hanging: Hanging
) -> None:
    books = keep(hanging)
    books.state()
    hanging.armed = True
    with pytest.raises(TierUnavailable, match="no answer in"):
        books.claim()
    performer = Performer(PosixTier(tmp_path), CLOCK)
    view = performer.run(replay())
    worker = performer.run(claim.claim_generation(view, launch_id=record_name("a"), members=("dp0", "dp1")))
    assert worker.token.generation == (2 if hanging.applied else 1)
    hanging.armed = False
    hanging.go.set()
    assert books.mine() == worker.token, "the late record lost its slot, and was not sent to another"


def test_a_failure_in_doubt_is_in_the_journal_once(tmp_path: Path, hanging: Hanging) -> None:
    books = keep(hanging)
    claimed = books.claim()
    assert claimed is not None
    hanging.armed = True
    with pytest.raises(TierUnavailable):
        books.failed(claimed.token, lapse())
    hanging.armed = False
    hanging.go.set()
    books.failed(claimed.token, lapse())
    assert len(failures(tmp_path)) == 1
    assert not inspect.open_run(tmp_path).view.voids


def test_while_a_call_hangs_no_other_is_begun(tmp_path: Path, hanging: Hanging) -> None:
    books = keep(hanging, deadline_s=0.1)
    books.state()
    hanging.armed = True
    for _ in range(3):
        with pytest.raises(TierUnavailable):
            books.claim()
    assert sum(thread.name == "durable-books" for thread in threading.enumerate()) == 1


def test_a_signal_that_ends_the_waiting_ends_the_program_too(tmp_path: Path, hanging: Hanging) -> None:
    books = keep(hanging, deadline_s=60)
    books.state()
    hanging.armed = True

    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(Stop):
            books.claim()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    worker = Books(tmp_path, CLOCK, "a").claim()
    assert worker is not None
    hanging.armed = False
    hanging.go.set()
    assert books.mine() == worker.token, "what the signal interrupted was not done afterwards"


class Doubtful(PosixTier):
    """The first write after ``armed`` is applied and its answer lost; then nothing answers for a while."""

    armed = False
    silent = 0

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        if not self.armed:
            return super().put_if_absent(key, data)
        self.armed, self.silent = False, 30
        super().put_if_absent(key, data)
        raise InDoubt("the answer was lost")

    def get(self, key: str, **options: Any) -> bytes:
        if self.silent:
            self.silent -= 1
            raise TierUnavailable("nothing answers")
        return super().get(key, **options)


def test_a_record_in_doubt_is_not_sent_once_more_when_the_doubt_ends(tmp_path: Path) -> None:
    create(tmp_path)
    tier = Doubtful(tmp_path)
    books = Books(tmp_path, CLOCK, "a", open_tier=lambda root: tier)
    claimed = books.claim()
    assert claimed is not None
    tier.armed = True
    with pytest.raises(InDoubt):
        books.failed(claimed.token, lapse())
    tier.silent = 0
    books.failed(claimed.token, lapse())
    assert len(failures(tmp_path)) == 1


def test_the_end_of_another_is_found(tmp_path: Path) -> None:
    create(tmp_path)
    books = Books(tmp_path, CLOCK, "a")
    claimed = books.claim()
    assert claimed is not None
    performer = Performer(PosixTier(tmp_path), CLOCK)
    view = performer.run(replay())
    performer.run(ending.cancel(view, launch_id="o", principal="operator", reason="enough"))
    assert books.claim() is None
    assert books.end(claimed.token, "late").terminal.outcome == "cancelled"  # type: ignore[union-attr]
