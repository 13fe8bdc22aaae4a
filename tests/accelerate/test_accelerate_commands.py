"""``accelerate-durable launch``: Accelerate's own launcher, and a block in its configuration."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from zero_code_runs import Interpreter, contents, refusal, script

from accelerate_durable import commands
from accelerate_durable.failures import EXIT_CODES, LAUNCHED
from tests.lives import life

CONFIG = """\
distributed_type: 'NO'
use_cpu: true
num_processes: 1
"""
BLOCK = """\
durable_config:
  root: of-the-block
  every_n_steps: 3
  tiers:
    memory: {every_n_steps: 2}
"""
SHOWS = """
import os, sys
from accelerate import Accelerator
from accelerate_durable.options import DurableOptions
found = DurableOptions.gather()
with open("seen", "w") as seen:
    print([found.root, found.every_n_steps, found.tiers.memory.every_n_steps], sys.argv[1:], file=seen)
    print(Accelerator.__module__, os.environ["ACCELERATE_USE_CPU"], file=seen)
"""


def launched(home: Path, *arguments: str, **environ: str) -> tuple[int, str]:
    """In a forked process; what Accelerate starts is a process of its own."""

    def action() -> None:
        os.chdir(home)
        os.environ.update(environ)
        os.environ.pop("OMP_NUM_THREADS", None)
        with Interpreter():
            sys.argv = ["accelerate-durable", *arguments]
            sys.stdout = sys.stderr
            commands.main()

    code = life(home, action)
    return code, (home / "output").read_text()


def config(home: Path, text: str = CONFIG + BLOCK, name: str = "c.yaml") -> str:
    (home / name).write_text(text)
    return name


def test_the_block_reaches_the_script_and_the_rest_accelerate(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    path = script(tmp_path, SHOWS + "\nsys.exit(7)")
    code, told = launched(
        tmp_path, "launch", "--config_file", config(tmp_path), path, "--config_file", "of the script",
        TMPDIR=str(temporary), ACCELERATE_DURABLE_EVERY_N_STEPS="5",
    )  # fmt: skip
    assert code == 7, told  # the script's own, which accelerate launch makes 1 with a traceback
    assert (tmp_path / "seen").read_text().splitlines() == [
        "['of-the-block', 5, 2] ['--config_file', 'of the script']",
        "accelerate_durable.swap True",
    ]
    assert "Traceback" not in told
    assert not list(temporary.iterdir())


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (
            "durable_config:\n  every_n_step: 3\n",
            "c.yaml: durable_config.every_n_step: .*did you mean every_n_steps?",
        ),
        ("durable_config: 3\n", "durable_config: must be an object"),
        ("durable_config: {root: a, root: b}\n", "the key 'root' is there twice"),
        ("durable_conf: {root: a}\n", "c.yaml: durable_conf: no such key.*did you mean durable_config?"),
    ],
    ids=["unknown", "no mapping", "twice", "misspelt"],
)
def test_a_block_that_is_wrong(tmp_path: Path, block: str, said: str) -> None:
    path = script(tmp_path, "raise AssertionError('it was started')")
    name = config(tmp_path, CONFIG + block)
    code, line = refusal(*launched(tmp_path, "launch", "--config_file", name, path))
    assert code == 2
    assert all(part in line for part in said.split(".*"))
    assert sorted(contents(tmp_path)) == ["c.yaml", "output", "script.py"]


def test_without_a_block_accelerate_reads_the_file_itself(tmp_path: Path) -> None:
    aliased = config(tmp_path, "debug: &no false\nuse_cpu: *no\n" + CONFIG, "aliased.yaml")
    assert commands.divided(str(tmp_path / aliased)) == (None, {})
    assert commands.divided(None) == (None, {})


def test_which_keys_were_meant_to_be_the_block() -> None:
    for meant in ("durable", "Durable_config", "durable-config", "durableconfig", "duarble_config"):
        assert commands.misspelt(["debug", meant]) == meant
    theirs = ["dynamo_config", "fsdp_config", "debug", "deepspeed_config", "downcast_bf16", "dynamo_backend"]
    assert commands.misspelt([*theirs, "durable_config", "no_such_key", 3]) is None


def test_what_accelerate_gets_is_all_but_the_block(tmp_path: Path) -> None:
    path = str(tmp_path / config(tmp_path))
    theirs, ours = commands.divided(path)
    assert theirs == {"distributed_type": "NO", "use_cpu": True, "num_processes": 1}
    assert ours["root"] == "of-the-block"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("lunch",), "no such command: lunch"),
        (("launch", "--no_python", "script.py"), "--no_python"),
        (("launch", "--config_file", "nowhere.yaml", "script.py"), "nowhere.yaml: No such file"),
    ],
    ids=["command", "no python", "no file"],
)
def test_a_command_line_that_is_wrong(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    code, line = refusal(*launched(tmp_path, *arguments))
    assert code == 2
    assert said in line


def test_the_help_says_what_is_added_and_every_exit_code() -> None:
    for command in (["accelerate_durable", "--help"], ["accelerate_durable.commands", "launch", "--help"]):
        module, *rest = command
        start = (
            f"import sys; sys.argv = {command!r}; from accelerate_durable import commands; commands.main()"
        )
        call = ["-m", module, *rest] if module == "accelerate_durable" else ["-c", start]
        done = subprocess.run([sys.executable, *call], capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        said = " ".join(done.stdout.split())
        assert "durable_config" in said
        assert "register_for_checkpointing" in said
        for code, meaning in EXIT_CODES.items():
            assert f"{code} {meaning}" in said
        assert LAUNCHED in said
