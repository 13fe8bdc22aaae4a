"""Bad input under zero code: one line that names the thing and the way out, the documented exit code, and
nothing written."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import training_parts
from accelerate_lives import SCRIPTS
from zero_code_runs import SMALL, contents, refusal, run, script, trained

from accelerate_durable.__main__ import main
from tests.launch.torchrun_runs import until
from tests.lives import ended, start

NEVER = str(SCRIPTS / "never_checkpoints.py")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a run of ``never_checkpoints`` in ``run``. Not to be changed."""
    home = tmp_path_factory.mktemp("finished")
    code, told = trained(home, *SMALL)
    assert code == 0, told
    return home


def refused(home: Path, *more: str, script: str = "never_checkpoints", root: str = "run") -> tuple[int, str]:
    """As ``trained``, which must not write anything below ``home``; its exit code and one line."""
    (home / "output").touch()
    before = contents(home)
    found = refusal(*trained(home, *more, script=script, root=root))
    after = contents(home)
    assert {**after, "output": ""} == {**before, "output": ""}
    return found


# --- the root ---------------------------------------------------------------------------------------------


def test_a_root_of_another_script(finished: Path) -> None:
    code, line = refused(finished, "--epochs", "1", script="two_networks")
    assert code == 2
    assert "holds another model" in line
    assert "model/first.weight is not in the script's" in line
    assert "model/0.weight is not in it" in line
    assert "use another root" in line


WIDER = f"""
import sys
sys.path.insert(0, {str(SCRIPTS)!r})
import never_checkpoints, torch

class Net(never_checkpoints.Net):
    def __init__(self, **options):
        super().__init__(**options)
        self.last = torch.nn.Linear(12, 3)

never_checkpoints.Net = Net
never_checkpoints.main()
"""


def test_a_checkpoint_of_another_model_says_which_keys_and_shapes_differ(finished: Path) -> None:
    path = script(finished, WIDER)
    before = contents(finished / "run")
    told = run(finished, "--root", "run", path, "--log", "log", "--weights", "weights", *SMALL)
    code, line = refusal(*told)
    assert code == 2
    assert "model/last.bias is 1 there and 3 in the script" in line
    assert "model/last.weight is 1x12 there and 3x12 in the script" in line
    assert "first" not in line
    assert contents(finished / "run") == before


def test_a_root_of_other_options_names_what_differs(finished: Path) -> None:
    code, line = refused(finished, *SMALL, "--accumulate", "3")
    assert code == 2
    assert "accumulation" in line


def test_a_journal_of_a_newer_version(finished: Path, tmp_path: Path) -> None:
    code, told = trained(tmp_path, *SMALL)
    assert code == 0, told
    last = max((tmp_path / "run" / "journal").iterdir())
    document = json.loads(last.read_bytes())
    last.write_text(json.dumps({**document, "v": document["v"] + 1}, sort_keys=True, separators=(",", ":")))
    code, line = refused(tmp_path, *SMALL)
    assert code == 5
    assert re.search(r"record version 2.*upgrade", line)


@pytest.mark.parametrize("root", ["file", "file/below"])
def test_a_root_that_cannot_be_written(tmp_path: Path, root: str) -> None:
    """A file where a directory should be: root may write anywhere."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "log.0").touch()  # the script opens it before it trains
    code, line = refused(tmp_path, *SMALL, root=root)
    assert code == 1
    assert str(tmp_path / "file") in line
    assert "check the mount, the permissions" in line


def test_nobody_says_where_the_run_lives(tmp_path: Path) -> None:
    files = ("--log", str(tmp_path / "log"), "--weights", str(tmp_path / "weights"))
    code, line = refusal(*run(tmp_path, NEVER, *files, *SMALL))
    assert code == 2
    for way in ("ACCELERATE_DURABLE_ROOT", "--root", "durable.yaml", "durable_config", "project_dir"):
        assert way in line
    assert sorted(contents(tmp_path)) == ["log.0", "output"]


def test_a_run_that_another_process_has(tmp_path: Path) -> None:
    def first() -> None:
        training_parts.strike = lambda kind: signal.pause() if kind == "stepped" else None
        files = ("--log", str(tmp_path / "log"), "--weights", str(tmp_path / "weights"))
        main(("--root", str(tmp_path / "run"), NEVER, *files, *SMALL))

    pid = start(tmp_path, first)
    try:
        until(lambda: "stepped" in log_of(tmp_path), 60, "a step of the first process")
        before = contents(tmp_path / "run" / "journal")
        code, line = refusal(*trained(tmp_path, *SMALL))
    finally:
        os.kill(pid, signal.SIGKILL)
        ended(pid)
    assert code == 76
    assert "takeover" in line
    assert contents(tmp_path / "run" / "journal") == before  # the owner's heartbeat goes on


def log_of(home: Path) -> str:
    path = home / "log.0"
    return path.read_text() if path.exists() else ""


# --- options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("EVERY_N_STEP", "3", "did you mean ACCELERATE_DURABLE_EVERY_N_STEPS?"),
        ("EVERY_N_STEPS", "0", "every_n_steps=0"),
        ("FILE", "nowhere.yaml", "nowhere.yaml: No such file"),
        ("RESUME", "perhaps", "'auto', 'never', 'must', 'fork'"),
    ],
)
def test_a_variable_that_is_wrong(tmp_path: Path, variable: str, value: str, said: str) -> None:
    told = run(tmp_path, NEVER, environ={f"ACCELERATE_DURABLE_{variable}": value})
    code, line = refusal(*told)
    assert code == 2
    assert said in line
    assert list(contents(tmp_path)) == ["output"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no script"),
        (("--rot", "x", NEVER), "did you mean --root?"),
        (("nowhere.py",), "no such script: nowhere.py"),
        (("--root",), "--root"),
        (("--resume", "perhaps", NEVER), "perhaps"),
    ],
)
def test_a_command_line_that_is_wrong(tmp_path: Path, arguments: Sequence[str], said: str) -> None:
    code, line = refusal(*run(tmp_path, *arguments))
    assert code == 2
    assert said in line


# --- what is missing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "extra", "does"),
    [
        ("accelerate", "accelerate", "import accelerate_durable.__main__ as m; m.main(['script.py'])"),
        (
            "accelerate",
            "accelerate",
            "import accelerate_durable.commands as c; c.run(['launch', 'script.py'])",
        ),
        (
            "transformers",
            "transformers",
            "import accelerate_durable.failures as f; f.install(); import accelerate_durable.transformers",
        ),
    ],
    ids=["python -m", "accelerate-durable launch", "transformers"],
)
def test_an_extra_that_is_not_installed(tmp_path: Path, package: str, extra: str, does: str) -> None:
    script(tmp_path, "")
    code = f"import sys; sys.modules[{package!r}] = None; {does}"
    whole = f"import accelerate_durable.failures as f; f.install(); {code}"
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", whole],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    code_, line = refusal(process.returncode, process.stderr)
    assert code_ == 2
    assert line == f"durable: {package} is not installed  [pip install 'durable-training[{extra}]']"
    assert list(contents(tmp_path)) == ["script.py"]
