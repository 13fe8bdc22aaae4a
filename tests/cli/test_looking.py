"""ls, show, status, journal: what they say, and that they touch nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from cli_runs import EPOCHS, SIZE, Durable, manifests, train

from durable_core import DurableSession, errors
from durable_core.cli import output, views
from durable_core.cli.app import app
from durable_core.cli.launch import LAUNCH_EXIT_CODES
from durable_core.commit.state import CheckpointInfo, RunState, Terminal
from durable_core.data import DurableLoader
from durable_core.types import CheckpointState

READING = ("ls", "show", "status", "journal", "verify", "audit")
#: Every command; those of a group with its name before theirs.
COMMANDS = tuple(
    (name, *inner)
    for name, command in sorted(app.commands.items())
    for inner in (
        [(each,) for each in sorted(command.commands)] if isinstance(command, click.Group) else [()]
    )
)
OF_NO_RUN = {"plan", "agent", "secret", "data", "pilot"}


def snapshot(root: Path) -> dict[str, tuple[int, int, int]]:
    return {
        str(path.relative_to(root)): (path.stat().st_size, path.stat().st_mtime_ns, path.stat().st_ino)
        for path in [root, *sorted(root.rglob("*"))]
        if path != root
    } | {".": (0, root.stat().st_mtime_ns, root.stat().st_ino)}


def test_ls_has_the_published_shape(root: Path, durable: Durable) -> None:
    found = durable("ls", root, "--json")
    assert found.code == 0 and found.err == ""
    assert {"run", "generation", "checkpoints"} <= found.document.keys()
    rows = found.document["checkpoints"]
    assert [row["step"] for row in rows] == [0, 3, 6, 9, 10]
    assert [row["state"] for row in rows] == ["retired", "retired", "committed", "committed", "committed"]
    wanted = {"c", "step", "generation", "state", "tiers", "bytes", "bytes_written", "manifest", "time"}
    assert all(wanted <= row.keys() for row in rows)


def test_ls_for_people_has_a_line_for_each_checkpoint(root: Path, durable: Durable) -> None:
    lines = durable("ls", root).out.splitlines()
    assert "head c4 at step 10" in lines[0]
    assert len(lines) == 2 + 5 and lines[-1].split()[:4] == ["4", "10", "1", "committed"]


def test_show_names_tensors_and_objects(root: Path, durable: Durable) -> None:
    newest = durable("show", root, "--json").document
    assert newest["c"] == 4 and newest["integrity_level"] == "byte-verified"
    shapes = {tensor["key"]: tensor["shape"] for tensor in newest["tensors"]}
    assert shapes["state/model/weight"] == [3, 4]
    assert durable("show", root, 2, "--json").document["step"] == 6
    assert "state/model/weight" in durable("show", root).out


@pytest.mark.parametrize("c", [0, 99])
def test_show_of_what_is_not_there_is_not_found(root: Path, durable: Durable, c: int) -> None:
    found = durable("show", root, c)
    assert found.code == output.NOT_FOUND and found.out == "" and len(found.err.splitlines()) == 1


def test_status_and_journal(root: Path, durable: Durable) -> None:
    status = durable("status", root, "--json").document
    assert (status["state"], status["step"], status["head"]) == ("succeeded", 10, 4)
    records = durable("journal", root, "--json").document["records"]
    assert [record["seq"] for record in records] == list(range(len(records)))
    assert records[0]["kind"] == "run.created" and records[-1]["kind"] == "run.succeeded"
    assert all(record["void"] is None for record in records)


@pytest.mark.parametrize("command", READING)
def test_reading_commands_write_nothing(root: Path, durable: Durable, command: str) -> None:
    before = snapshot(root)
    assert durable(command, root).code == 0
    assert durable(command, root, "--json").code == 0
    assert snapshot(root) == before


def test_a_live_run_can_be_looked_at(tmp_path: Path, durable: Durable) -> None:
    loader = DurableLoader(list(range(8)), batch_size=4, seed=0)
    with DurableSession.open(tmp_path / "live", state={"loader": loader}, every_n_steps=1) as session:
        for _ in loader:
            session.step()
        session.flush()
        for command in READING:
            assert durable(command, tmp_path / "live", "--json").code == 0, command
        status = durable("status", tmp_path / "live", "--json").document
        assert status["state"] == "running" and status["owner"]["alive"]


def test_file_urls_are_paths(root: Path, durable: Durable) -> None:
    assert durable("ls", f"file://{root}", "--json").document == durable("ls", root, "--json").document


@pytest.mark.parametrize("command", READING)
@pytest.mark.parametrize(
    ("where", "code"), [("missing", 3), ("empty", 3), ("a-file", 3), ("ftp://host/run", 2)]
)
def test_a_root_without_a_run_is_a_typed_error(
    tmp_path: Path, durable: Durable, command: str, where: str, code: int
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a-file").write_text("x")
    place = where if "://" in where else str(tmp_path / where)
    plain = durable(command, place)
    assert plain.code == code and plain.out == "" and plain.err.startswith("durable: ")
    assert len(plain.err.splitlines()) == 1
    told = durable(command, place, "--json")
    assert told.code == code and told.err == ""
    assert told.document["error"]["exit_code"] == code and told.document["error"]["hint"]
    assert not list((tmp_path / "empty").iterdir())


def test_foreign_files_disturb_nothing(root: Path, durable: Durable) -> None:
    before = [durable(command, root, "--json").out for command in ("ls", "verify", "audit")]
    for place in ("journal/README", "journal/1.json", "checkpoints/x", "ledger/notes.txt", "lost+found"):
        (root / place).write_bytes(b"\x00{")
    (root / "checkpoints/UPPER case").mkdir()
    assert [durable(command, root, "--json").out for command in ("ls", "verify", "audit")] == before


@pytest.mark.parametrize("command", READING)
@pytest.mark.parametrize("seq", [0, 5])
def test_a_truncated_record_is_named(root: Path, durable: Durable, command: str, seq: int) -> None:
    record = root / f"journal/{seq:020d}.json"
    record.chmod(0o644)
    record.write_bytes(record.read_bytes()[:-7])
    found = durable(command, root, "--json")
    assert found.code == output.CORRUPT
    assert found.document["error"]["key"] == f"journal/{seq:020d}.json"


def test_a_missing_first_record_is_not_an_empty_root(root: Path, durable: Durable) -> None:
    (root / "journal/00000000000000000000.json").unlink()
    assert durable("ls", root).code == output.CORRUPT


def test_a_damaged_manifest_stops_show_but_not_ls(root: Path, durable: Durable) -> None:
    path = manifests(root)[-1]
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b"byte-verified", b"byte-perfect!"))
    assert durable("ls", root).code == 0
    found = durable("show", root, "--json")
    assert found.code == output.CORRUPT and found.document["error"]["key"].endswith("manifest.json")


def test_a_stepped_down_run_tells_what_was_corrupt(tmp_path: Path, durable: Durable) -> None:
    train(tmp_path / "run", steps=6)
    path = manifests(tmp_path / "run")[-1]
    path.chmod(0o644)
    path.write_bytes(b"{}")  # c2 is damaged: the next start steps down to c1, and leaves at step 5
    train(tmp_path / "run", steps=5)
    rows = durable("ls", tmp_path / "run", "--json").document["checkpoints"]
    assert [(row["step"], row["state"]) for row in rows] == [
        (0, "committed"), (3, "committed"), (6, "corrupt"), (5, "committed"),
    ]  # fmt: skip
    assert durable("verify", tmp_path / "run").code == output.CORRUPT
    train(tmp_path / "run")
    assert durable("audit", tmp_path / "run", "--json").document["samples"] == SIZE * EPOCHS
    assert durable("verify", tmp_path / "run").code == 0


def test_a_commit_off_the_lineage_is_abandoned() -> None:
    info = CheckpointInfo(
        c=3, step=9, generation=1, parent=2, nonce="0" * 8, state=CheckpointState.COMMITTED, seq=7
    )
    assert views.checkpoint_state(info, frozenset({0, 1, 4})) == "abandoned"
    assert views.checkpoint_state(info, frozenset({0, 3})) == "committed"


# --- the frame ------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_tells_the_exit_codes_the_code_uses(durable: Durable, command: tuple[str, ...]) -> None:
    text = " ".join(durable(*command, "--help").out.split())
    launches = command == ("launch",)
    for code, meaning in (LAUNCH_EXIT_CODES if launches else output.EXIT_CODES).items():
        assert f"{code} {meaning}" in text
    assert launches or "--json" in text
    assert "ROOT" in text or command[0] in OF_NO_RUN


def test_the_overview_has_a_whole_line_for_each_command(durable: Durable) -> None:
    text = durable("--help").out
    listed = text[text.index("Commands:") : text.index("Exit codes")]
    lines = re.findall(r"^  ([a-z-]+) {2,}(\S.*)$", listed, re.M)
    assert [name for name, _ in lines] == sorted(app.commands)
    assert [line for line in lines if line[1].endswith("...")] == []


def test_the_documented_codes_are_those_of_the_errors() -> None:
    used = {
        cls.exit_code
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, errors.DurableError)
    }
    assert used <= {*output.EXIT_CODES, *LAUNCH_EXIT_CODES}


@pytest.mark.parametrize(
    "arguments", [("ls",), ("nonsense",), ("ls", "x", "--no-such"), ("show", "x", "abc"), ("pin", "x"), ()]
)
def test_usage_errors_are_two(durable: Durable, arguments: tuple[str, ...]) -> None:
    assert durable(*arguments).code == output.USAGE
    if arguments:
        told = durable(*arguments, "--json")
        assert told.code == output.USAGE and told.document["error"]["type"] == "UsageError"


@pytest.mark.parametrize(
    "command", ["--version", "--help", *(f"{name} ROOT" for name in ("ls", "status", "journal"))]
)
def test_quick_commands_import_nothing_heavy(trained: Path, command: str) -> None:
    code = (
        "import sys\n"
        "from durable_core.cli.app import run\n"
        "assert run(sys.argv[1:]) == 0\n"
        "heavy = {'torch', 'numpy', 'rich', 'lightning', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    arguments = [str(trained) if word == "ROOT" else word for word in command.split()]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_reader_that_has_seen_enough_is_no_error(trained: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "durable_core.cli", "journal", str(trained)],
        stdout=write, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("changes", "alive", "word"),
    [
        ({}, False, "created"),
        ({"generation": 1, "active": True}, True, "running"),
        ({"generation": 1, "active": True}, False, "stopped"),
        ({"generation": 1, "draining": {"reason": "SIGTERM", "step": 3}}, True, "running"),
        ({"generation": 1, "draining": {"reason": "SIGTERM", "step": 3}}, False, "stopped"),
        ({"generation": 1, "terminal": Terminal("failed", 9, None, {"reason": "x"})}, False, "failed"),
    ],
)
def test_one_word_for_where_a_run_stands(changes: dict[str, Any], alive: bool, word: str) -> None:
    assert views.run_state(RunState(run_id="r", **changes), alive) == word


def test_history_is_answered_without_the_data_and_its_loss_is_found(root: Path, durable: Durable) -> None:
    before = durable("ls", root, "--json").document
    shutil.rmtree(root / "checkpoints")
    assert durable("ls", root, "--json").document == before
    assert durable("journal", root).code == 0
    assert durable("audit", root, "--json").document["samples"] == SIZE * EPOCHS
    found = durable("verify", root, "--json")
    assert found.code == output.CORRUPT
    assert [finding["kind"] for finding in found.document["findings"]] == ["missing"] * 3
    assert durable("show", root).code == output.NOT_FOUND


def test_a_terminal_gets_drawn_tables(root: Path, durable: Durable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    drawn = durable("ls", root)
    assert drawn.code == 0 and "committed" in drawn.out and "step" in drawn.out


def test_a_project_directory_stands_for_the_run_below_it(root: Path, durable: Durable) -> None:
    project = root.parent / "project"
    project.mkdir()
    shutil.move(root, project / "durable")
    for command in ("ls", "show", "status", "verify", "audit", "doctor", "known-good", "quarantine"):
        found = durable(command, project, "--json")
        assert found.code == durable(command, project / "durable", "--json").code != 3, command
        assert f"its run is in {project}/durable" in found.err and found.document
    out = root.parent / "out"
    assert durable("export", project, out).code == 0 and out.is_dir()
    assert durable("ls", project / "durable").err == ""


def test_where_there_is_no_run_those_below_and_all_ways_to_name_one_are_told(
    root: Path, durable: Durable
) -> None:
    found = durable("ls", root.parent)
    assert (found.code, found.out) == (3, "") and f"runs are in {root}" in found.err
    empty = root.parent / "empty"
    empty.mkdir()
    for place in (empty, root.parent / "nowhere"):
        found = durable("ls", place)
        assert found.code == 3
        for way in ("DurableSession.open", "ACCELERATE_DURABLE_ROOT", "durable_config:", "project directory"):
            assert way in found.err
