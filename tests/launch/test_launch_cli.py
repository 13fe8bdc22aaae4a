"""``durable launch``, ``cancel`` and ``finalize``, as they are typed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from durable_core.cli.app import run
from durable_core.clock import SystemClock
from durable_core.commit import ending
from durable_core.commit.claim import claim_generation
from durable_core.commit.journal import replay
from durable_core.engine.inspect import open_run
from durable_core.engine.performer import Performer
from durable_core.errors import UsageError
from durable_core.launch.agent import flags
from durable_core.tier.posix import PosixTier
from durable_core.types import Token
from tests.launch.launching import launched, new_run

IDS = iter(f"{number:032x}" for number in range(10_000))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return new_run(tmp_path / "root")


def parsed(*arguments: str) -> flags.Flags:
    return flags.parse(arguments, lambda: next(IDS))


def test_help_shows_ours_and_says_that_torchruns_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["launch", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(each.name in shown for each in flags.ADDED)
    assert "Default: 10" in shown and "Default: the controller's, 900." in " ".join(shown.split())
    assert "--max-restarts" in shown and "every flag of torchrun" in shown and "75 drained" in shown


def test_nothing_said_is_one_worker_on_this_node() -> None:
    config = parsed("train.py").config
    assert (config.min_nodes, config.max_nodes, config.nproc_per_node) == (1, 1, 1)
    assert (config.rdzv_backend, config.rdzv_endpoint) == ("c10d", "localhost:0")
    assert config.run_id != parsed("train.py").config.run_id
    assert config.monitor_interval == flags.MONITOR_INTERVAL_S


def test_torchruns_flags_mean_what_they_mean_there() -> None:
    found = parsed(
        "--nnodes", "2:4", "--nproc-per-node=3", "--rdzv-backend", "c10d", "--rdzv-endpoint", "host:29400",
        "--rdzv-id", "job7", "--tee", "3", "--role", "trainer", "-m", "pkg.train", "--lr", "1",
    )  # fmt: skip
    config = found.config
    assert (config.min_nodes, config.max_nodes, config.nproc_per_node) == (2, 4, 3)
    assert (config.run_id, config.rdzv_endpoint, config.role) == ("job7", "host:29400", "trainer")
    assert found.command == (sys.executable, "-u", "-m", flags.RUNNER, "-m", "pkg.train", "--lr", "1")


def test_the_scripts_arguments_are_its_own() -> None:
    found = parsed("--standby", "2", "train.py", "--standby", "7", "--root", "x")
    assert found.standbys == 2 and found.root == ""
    assert found.command[-5:] == ("train.py", "--standby", "7", "--root", "x")


def test_a_program_that_is_no_script_is_started_as_it_is() -> None:
    assert parsed("--no-python", "prog", "-x").command == ("prog", "-x")


def test_ours_are_read() -> None:
    found = parsed(
        "--root", "r", "--kill-grace", "0.5", "--stop-grace", "9", "--max-restarts", "4", "--takeover",
        "--no-preflight", "--on-numeric", "stop", "--step-limit", "3", "train.py",
    )  # fmt: skip
    assert (found.root, found.kill_grace_s, found.stop_grace_s) == ("r", 0.5, 9.0)
    assert (found.max_restarts, found.takeover, found.preflight, found.on_numeric) == (4, True, False, "stop")
    assert found.limits == {"step": 3.0}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--kill-grace", "-1", "x.py"), ("--standby", "-1", "x.py"), ("--step-limit", "0", "x.py"),
        ("--nnodes", "2", "x.py"), ("--no-python", "-m", "x"), ("--max-restarts", "-1", "x.py"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        parsed(*arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing-there.py",), "durable: no such script: nothing-there.py"),
        (("--max-restart", "3", "x.py"), "did you mean --max-restarts?"),
        (("--rot=r", "x.py"), "did you mean --root?"),
        (("--nproc", "2", "x.py"), "did you mean --nproc-per-node?"),
        (("--standby", "two", "x.py"), "'two'  [--standby takes a whole number; durable launch --help]"),
        (("--max-restarts", "x", "x.py"), "[--max-restarts takes a whole number;"),
        (("--root", "r"), "SCRIPT"),
    ],
)  # fmt: skip
def test_wrong_usage_is_told_in_one_line(
    capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert run(["launch", *arguments]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("durable: ") and said in line


# --- cancel ----------------------------------------------------------------------------------


def journal(root: Path) -> int:
    return open_run(root).view.next_seq


def test_cancelling_ends_the_run_and_its_launch(
    tmp_path: Path,
    root: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with launched(tmp_path, "wait", flags=("--root", str(root))) as launcher:
        launcher.seen(2, event="ready")
        assert run(["cancel", str(root), "--as", "operator", "--reason", "enough", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["cancelled"] is True
        assert launcher.ended() == 78, launcher.said()
        assert len(launcher.lines(event="start")) == 2, "nothing is started again"
    state = open_run(root).state
    assert state.terminal is not None and state.terminal.outcome == "cancelled"
    assert state.summary is not None and not state.failures


def test_whoever_the_spec_does_not_name_cannot_cancel(
    root: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = journal(root)
    assert run(["cancel", str(root), "--as", "mallory", "--reason", "why not"]) == 1
    assert "may not cancel" in capsys.readouterr().err
    assert journal(root) == before


def test_cancelling_twice_is_cancelling_once(root: Path) -> None:
    for _ in range(2):
        assert run(["cancel", str(root), "--as", "operator", "--reason", "enough"]) == 0
    ends = [entry for entry in open_run(root).entries() if entry.record.kind.value == "run.cancelled"]
    assert len(ends) == 1


def test_a_run_that_was_cancelled_is_not_started_again(tmp_path: Path, root: Path) -> None:
    assert run(["cancel", str(root), "--as", "operator"]) == 0
    with launched(tmp_path, flags=("--root", str(root))) as launcher:
        assert launcher.ended() == 78
        assert launcher.said() == "durable: the run was cancelled; start another under another root\n"


def test_the_help_of_the_command_that_was_misused_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cancel", "--as"]) == 2
    assert "durable cancel --help" in capsys.readouterr().err


def test_a_run_that_has_succeeded_is_not_cancelled(root: Path) -> None:
    succeed(root)
    assert run(["cancel", str(root), "--as", "operator", "--reason", "late"]) == 4
    assert open_run(root).state.terminal.outcome == "succeeded"


def succeed(root: Path) -> None:
    performer = Performer(PosixTier(root), SystemClock())
    claimed = performer.run(claim_generation(performer.run(replay()), launch_id="L", members=("dp0",)))
    performer.run(ending.succeed(claimed.view, Token(1, "L"), c=None, target=None))


# --- finalize --------------------------------------------------------------------------------


def test_a_run_that_goes_on_has_nothing_to_sum_up(root: Path) -> None:
    before = journal(root)
    assert run(["finalize", str(root)]) == 1
    assert journal(root) == before


def test_twice_is_once(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    succeed(root)
    assert run(["finalize", str(root), "--json"]) == 0
    first, length = json.loads(capsys.readouterr().out), journal(root)
    assert run(["finalize", str(root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert journal(root) == length
    assert first["outcome"] == "succeeded" and first["artifact"] is None
    assert [life["members"] for life in first["generations"]] == [["dp0"]]
    assert run(["status", str(root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["key"].startswith("summaries/")
