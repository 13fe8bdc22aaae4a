"""What follows the end of an attempt: with a journal that does not answer, and with what others have found
out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from durable_core.clock import SystemClock
from durable_core.commit.state import CheckpointInfo, Checkpoints, Failure, Life, RunState, Terminal
from durable_core.commit.vector import Vector
from durable_core.engine.beats import Phase, Writer, read
from durable_core.engine.launched import RunFiles
from durable_core.engine.words import Request, Words, write
from durable_core.errors import Fenced, TierUnavailable
from durable_core.launch.agent import memory
from durable_core.launch.agent.ended import Cause, Ended
from durable_core.launch.agent.judging import Judge
from durable_core.launch.books import Lapse
from durable_core.launch.evidence import Lost
from durable_core.launch.retry import Policy
from durable_core.types import CheckpointState, Token

TOKEN = Token(3, "ours")


class Ledger:
    """The journal as the judge uses it. ``down``: it does not answer."""

    name = "ours"

    def __init__(self, state: RunState | None = None) -> None:
        self.run = state or RunState(run_id="r", generation=3, launch_id="ours", active=True)
        self.down = False
        self.recorded: list[Lapse] = []
        self.ends: list[str] = []
        self.refuses = False

    def state(self) -> RunState:
        self._answer()
        return self.run

    def mine(self) -> Token:
        self._answer()
        return TOKEN

    def failed(self, token: Token, lapse: Lapse) -> RunState:
        self._answer()
        if self.refuses:
            raise Fenced("another launch")
        self.recorded.append(lapse)
        named = {"class": lapse.failure, "signature": lapse.signature, "evidence": lapse.evidence}
        line = Failure(9, 3, lapse.op_id, {**lapse.details(), **named, "step": lapse.step}, 0.0)
        self.run = RunState(**{**vars(self.run), "failures": self.run.failures.append(line)})
        return self.run

    def end(self, token: Token, reason: str) -> RunState:
        self._answer()
        self.ends.append(reason)
        return self.run

    def maintain(self, kind: object, payload: object) -> RunState:
        self._answer()
        return self.run

    def _answer(self) -> None:
        if self.down:
            raise TierUnavailable("no answer")


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    return RunFiles(tmp_path).prepare()


def judged(
    files: RunFiles, ledger: Ledger | None, policy: Policy | None = None, **more: object
) -> tuple[Judge, list[str], list[object]]:
    said: list[str] = []
    done: list[object] = []
    books: Callable[[], object] = lambda: ledger  # noqa: E731
    held: Callable[[RunState], Policy] = lambda run: policy or Policy()  # noqa: E731
    judge = Judge(files, SystemClock(), held, books, done.append, said.append, **more)  # type: ignore[arg-type]
    return judge, said, done


KILLED = Ended(Cause.FAILED, 3, {1: -9}, {0: -15})


def test_a_journal_that_is_down_holds_nothing_up_and_is_told_later(files: RunFiles) -> None:
    ledger = Ledger()
    judge, said, _ = judged(files, ledger)
    ledger.down = True
    assert judge(KILLED).exit_code is None
    assert ledger.recorded == [] and any("not recorded yet" in line for line in said)
    ledger.down = False
    assert judge(KILLED).exit_code is None
    assert len(ledger.recorded) == 2
    assert len({lapse.op_id for lapse in ledger.recorded}) == 2


def test_the_operator_is_told_which_restart_it_is_and_from_where(files: RunFiles) -> None:
    ledger = Ledger()
    judge, _, _ = judged(files, ledger, Policy(restarts=4, backoff_s=0.0, backoff_max_s=0.0))
    assert str(judge(KILLED)).endswith("; starting again (1 of 4) in 0.0 s")
    info = CheckpointInfo(0, 40, 3, None, "0" * 8, CheckpointState.COMMITTED, seq=3)
    ledger.run = replace(ledger.run, checkpoints=Checkpoints().added(info), head=0)
    assert str(judge(KILLED)).endswith("; starting again (2 of 4) in 0.0 s, from step 40")
    stopped = judge(Ended(Cause.STOP, 3, {0: 75, 1: 75}))
    assert (stopped.exit_code, str(stopped)) == (75, "stopped as asked at step 40; start it again to go on")


@pytest.mark.parametrize(
    ("status", "said"), [(3, "exit status 3; its own output says why"), (0, "call run.finish() at the end")]
)
def test_a_script_that_ended_without_words_is_told_in_words(files: RunFiles, status: int, said: str) -> None:
    judge, _, _ = judged(files, Ledger())
    assert said in judge(Ended(Cause.FAILED, 3, {0: status}, {1: -15})).why


def test_what_scheduled_chaos_did_is_in_the_evidence(files: RunFiles) -> None:
    ledger = Ledger()
    judge, _, _ = judged(files, ledger)
    judge(replace(KILLED, provoked="scheduled chaos kills rank 1"))
    judge(KILLED)
    assert [lapse.evidence.get("provoked") for lapse in ledger.recorded] == [
        "scheduled chaos kills rank 1",
        None,
    ]


def test_what_is_not_recorded_counts_all_the_same(files: RunFiles) -> None:
    ledger = Ledger()
    ledger.down = True
    judge, _, _ = judged(files, ledger, Policy(restarts=2))
    assert [judge(KILLED).exit_code for _ in range(3)] == [None, None, 1]


def test_a_run_that_is_anothers_is_not_written_to(files: RunFiles) -> None:
    ledger = Ledger()
    ledger.refuses = True
    judge, said, _ = judged(files, ledger)
    judge(KILLED)
    assert ledger.recorded == [] and any("not this launch's any more" in line for line in said)


def test_the_end_of_the_run_is_recorded_only_when_it_is_decided(files: RunFiles) -> None:
    ledger = Ledger()
    judge, _, _ = judged(files, ledger, Policy(restarts=0))
    assert judge(KILLED).exit_code == 1
    assert len(ledger.ends) == 1 and ledger.ends[0].startswith("budget_exceeded:restarts")
    write(
        files.words(1),
        Words("durable_core.errors.UsageError", "no such flag", branch="UsageError", exit_code=2),
    )
    mended = Ledger()
    judge, _, _ = judged(files, mended)
    assert judge(Ended(Cause.FAILED, 3, {1: 2})).exit_code == 2
    assert mended.ends == [], "a mistake that can be mended does not end the run"


def test_a_planned_stop_is_clean_or_says_what_was_not(files: RunFiles) -> None:
    ledger = Ledger()
    judge, _, _ = judged(files, ledger)
    assert judge(Ended(Cause.STOP, 3, {}, {0: 75, 1: 75})).exit_code == 75
    assert judge(Ended(Cause.TOLD, 3, {0: 75}, {1: 75})).exit_code == 75, "one of several nodes: all stop"
    dirty = judge(Ended(Cause.STOP, 3, {}, {0: 75, 1: -9}, forced=(7,)))
    assert dirty.exit_code == 1 and "1: -9" in dirty.why
    assert ledger.recorded == []


def test_what_has_not_trained_yet_has_nothing_to_drain(files: RunFiles) -> None:
    judge, _, _ = judged(files, Ledger())
    stopped = Ended(Cause.STOP, 3, {}, {0: -15, 1: -15})
    Writer(files.beat(1), 11).beat(1.0, Phase.RESTORE, generation=3, step=-1)
    assert judge(stopped).exit_code == 75, "one imports, one restores"
    Writer(files.beat(1), 11).beat(1.0, Phase.STEP, generation=3, step=4)
    assert judge(stopped).exit_code == 1
    assert judge(replace(stopped, after={0: -9, 1: 75})).exit_code == 1


def test_a_process_that_cannot_be_had_now_is_waited_for(files: RunFiles) -> None:
    ledger = Ledger()
    judge, _, _ = judged(files, ledger)
    for _ in range(4):
        assert judge(Ended(Cause.UNSTARTED, 3)).reason == "F18"
    assert ledger.ends == []


def test_success_is_success_whatever_a_worker_did_afterwards(files: RunFiles) -> None:
    over = Terminal("succeeded", 7, 1, {"c": 1, "target": None})
    ledger = Ledger(RunState(run_id="r", generation=3, launch_id="ours", terminal=over))
    judge, _, done = judged(files, ledger)
    assert judge(KILLED).exit_code == 0
    assert done == [ledger] and ledger.recorded == []


def test_a_success_of_before_excuses_no_script_that_dies(files: RunFiles) -> None:
    over = Terminal("succeeded", 7, 1, {"c": 1, "target": None})
    ledger = Ledger(RunState(run_id="r", generation=3, launch_id="old", terminal=over))
    judge, _, _ = judged(files, ledger)
    verdict = judge(Ended(Cause.FAILED, None, {0: 1}))
    assert verdict.exit_code == 1 and "the run has succeeded" in verdict.why
    assert judge(Ended(Cause.FAILED, None, {0: 2})).exit_code == 2, "a mistake in the command line"
    assert judge(Ended(Cause.DRAINED, None, {0: 75})).exit_code == 1, "no supervisor is to start it again"
    assert judge(Ended(Cause.STOP, None, {}, {0: 75})).exit_code == 75
    assert judge(Ended(Cause.FINISHED, None, {0: 0})).exit_code == 0
    assert ledger.recorded == [] and ledger.ends == []


def test_a_cancelled_run_is_not_started_again(files: RunFiles) -> None:
    over = Terminal("cancelled", 7, None, {"principal": "me", "reason": "enough"})
    ledger = Ledger(RunState(run_id="r", generation=3, launch_id="ours", terminal=over))
    judge, _, done = judged(files, ledger)
    verdict = judge(Ended(Cause.FAILED, 3, {0: 4, 1: 4}))
    assert verdict.exit_code == 78 and "cancelled by me" in verdict.why
    assert done == [ledger] and ledger.recorded == []


def test_what_another_node_recorded_is_told_to_the_next_workers(files: RunFiles) -> None:
    line = Failure(
        9, 3, "f" * 32, {"class": "F12", "signature": "s", "step": 8, "evidence": {}, "onset": 8}, 0.0
    )
    state = RunState(run_id="r", generation=3, failures=Vector[Failure]().append(line))
    judge, _, _ = judged(files, Ledger(state))
    verdict = judge(Ended(Cause.REGROUP, 3))
    assert (verdict.exit_code, verdict.reason, verdict.onset) == (None, "F12", 8)
    older = RunState(**{**vars(state), "generation": 4})
    judge, _, _ = judged(files, Ledger(older))
    assert judge(Ended(Cause.REGROUP, 4)).reason == ""
    judge, _, _ = judged(files, Ledger())
    assert judge(Ended(Cause.REGROUP, 3)).reason == "", "nothing has failed yet"


def test_a_hang_is_what_the_controller_has_seen(files: RunFiles) -> None:
    stall = {"phase": "STEP", "age_s": 9.0, "limit_s": 3.0, "rank": 1, "place": "h", "frames": ["a.py:wait"]}
    request = Request("o" * 32, "restart", 3, "F5", "it stands", {"stall": stall})
    ledger = Ledger()
    judge, _, _ = judged(files, ledger)
    verdict = judge(Ended(Cause.REQUESTED, 3, {}, {0: -15, 1: -9}, request))
    assert (verdict.exit_code, verdict.reason) == (None, "F5")
    assert ledger.recorded[0].evidence["culprit"] == 1


def test_what_the_controller_asks_for_is_the_cause(files: RunFiles) -> None:
    late = Request("o" * 32, "restart", 3, "F18", "0 of 2 members joined within 600 s", {"limit_s": 600.0})
    undrained = Request("p" * 32, "restart", 3, "F4", "no boundary within 300 s")
    ledger = Ledger()
    judge, _, _ = judged(files, ledger)
    for request in (late, undrained):
        assert judge(Ended(Cause.REQUESTED, 3, {}, {0: -15, 1: -9}, request)).reason == request.failure
    assert [lapse.charged for lapse in ledger.recorded] == [True, False]


def test_that_nothing_is_known_proves_nothing_however_often(files: RunFiles) -> None:
    ledger = Ledger()
    judge, _, _ = judged(files, ledger)
    for _ in range(5):
        assert judge(Ended(Cause.REQUESTED, 3, {}, {0: -15, 1: -9})).exit_code is None
    assert [lapse.failure for lapse in ledger.recorded] == ["F1"] * 5


@pytest.mark.parametrize(("attempt", "status"), [(17, 2), (16, None)])
def test_only_a_workers_own_words_are_listened_to(files: RunFiles, attempt: int, status: int | None) -> None:
    mistake = Words("durable_core.errors.UsageError", "no such flag", branch="UsageError", exit_code=2)
    write(files.words(1), replace(mistake, attempt=attempt))
    judge, _, _ = judged(files, Ledger())
    assert judge(replace(KILLED, exits={1: 1}, attempt=17)).exit_code == status


def test_what_a_killed_writer_has_left_is_no_beat(files: RunFiles) -> None:
    (files.root / "beats" / ".0.17").write_bytes(b"half")
    judge, _, _ = judged(files, Ledger())
    assert judge(KILLED).exit_code is None


def test_a_node_that_is_lost_explains_what_its_peers_say(files: RunFiles) -> None:
    asked: list[bool] = []

    def lost() -> tuple[Lost, ...]:
        asked.append(True)
        return (Lost("b"),)

    ledger = Ledger()
    judge, _, _ = judged(files, ledger, lost=lost)
    judge(KILLED)
    assert not asked and ledger.recorded[-1].failure == "F1", "nothing is asked where the cause is known"
    write(files.words(0), Words("builtins.RuntimeError", "gloo/transport: Connection closed by peer"))
    judge(Ended(Cause.FAILED, 3, {0: 1}))
    assert asked and (ledger.recorded[-1].failure, ledger.recorded[-1].placement) == ("F2", "b")


def test_nothing_secret_is_recorded(files: RunFiles) -> None:
    write(files.words(1), Words("builtins.ValueError", "cannot log in with hunter2hunter2"))
    ledger = Ledger()
    judge, _, _ = judged(files, ledger, secrets=("hunter2hunter2",))
    judge(Ended(Cause.FAILED, 3, {1: 1}))
    assert "hunter2" not in str(ledger.recorded)


def test_what_counts_against_budgets_of_the_run_file_is_asked_for(files: RunFiles) -> None:
    lives = Vector[Life]().append(Life(1, 0.0))
    ledger = Ledger(RunState(run_id="r", generation=3, launch_id="ours", lives=lives))
    policy = Policy(limits={"wall_s": 10.0})
    judge, _, _ = judged(files, ledger, policy, spent=lambda run: {"wall_s": 11.0})
    assert "budget_exceeded:wall_s" in judge(KILLED).why


def test_how_long_a_worker_was_quiet_and_what_the_kernel_killed_it_for(files: RunFiles) -> None:
    clock, ledger = SystemClock(), Ledger()
    Writer(files.beat(1), 77).beat(clock.monotonic(), Phase.STEP, generation=3, step=4)
    judge, _, _ = judged(files, ledger)
    beat = read(files.beat(1))
    assert beat is not None
    judge(Ended(Cause.FAILED, 3, {1: -9}, {0: -15}, oom=True, at=beat.time + 0.25))
    (lapse,) = ledger.recorded
    assert lapse.failure == "F8"
    assert lapse.further["detect_s"] == pytest.approx(0.25)


def test_kills_for_memory_are_counted_where_the_kernel_tells(tmp_path: Path) -> None:
    group, groups = tmp_path / "cgroup", tmp_path / "fs"
    assert memory.kills(group, groups) is None
    group.write_text("1:cpu:/old\n0::/slice/job\n")
    assert memory.kills(group, groups) is None, "version 1, or a kernel that does not tell"
    (groups / "slice" / "job").mkdir(parents=True)
    (groups / "slice" / "job" / "memory.events").write_text("low 0\noom 7\noom_kill 3\noom_group_kill 0\n")
    assert memory.kills(group, groups) == 3
    assert [memory.killed(2, 3), memory.killed(3, 3), memory.killed(None, 3)] == [True, False, False]
