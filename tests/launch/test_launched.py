"""What a launcher tells its workers, and what they leave for it: environment, beats, last words."""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path
from typing import Any

import pytest

from durable_core.engine import beats, launched, words
from durable_core.engine.beats import OWN_TIMES, Phase
from durable_core.engine.launched import Launched, RunFiles, launch_id
from durable_core.errors import FormatError, UsageError

# --- environment -----------------------------------------------------------------------------


def test_the_launch_is_its_supervisors() -> None:
    assert launch_id({}) is None
    assert launch_id({"TORCHELASTIC_RUN_ID": "none"}) is None
    assert launch_id({"TORCHELASTIC_RUN_ID": "a", "SLURM_JOB_ID": "7"}) == "torchelastic_run_id:a"
    assert launch_id({"SLURM_JOB_ID": "7"}) == "slurm_job_id:7"
    assert launch_id({"DURABLE_LAUNCH_ID": "x", "SLURM_JOB_ID": "7"}) == "durable_launch_id:x"


def test_without_a_launcher_nothing_is_told() -> None:
    assert Launched.of({}) == Launched()
    assert Launched.of({}).files is None


def test_what_a_launcher_tells(tmp_path: Path) -> None:
    told = Launched.of(
        {
            "DURABLE_GENERATION": "7", "DURABLE_RUN_ID": "r", "DURABLE_RUN_DIR": str(tmp_path), "RANK": "3",
            "DURABLE_ATTEMPT": "x/2", "DURABLE_RESTART_REASON": "F12", "DURABLE_RESTART_ONSET": "40",
            "DURABLE_SPEC": "/s.json",
        }
    )  # fmt: skip
    assert told == Launched(7, "r", tmp_path, 3, "x/2", "F12", 40, Path("/s.json"))
    assert told.files == RunFiles(tmp_path)


@pytest.mark.parametrize("name", ["DURABLE_GENERATION", "RANK", "DURABLE_RESTART_ONSET"])
def test_a_number_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        Launched.of({"DURABLE_RUN_DIR": "/run", name: "-1"})


def test_without_a_launcher_nobody_knows_what_a_rank_is() -> None:
    assert Launched.of({"RANK": "first"}).rank == 0


def test_a_claim_serves_one_process(tmp_path: Path) -> None:
    files = RunFiles(tmp_path).prepare()
    assert [files.take(3), files.take(3), files.take(4)] == [True, False, True]


def test_what_is_left_of_a_launch_does_not_bring_its_directory_back(tmp_path: Path) -> None:
    files = RunFiles(tmp_path / "gone")
    with pytest.raises(FileNotFoundError):
        beats.Writer(files.beat(0), 1)
    with pytest.raises(FileNotFoundError):
        words.write(files.words(0), words.Words("ValueError", "it"))
    assert not files.take(1)
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_a_worker_starts_is_no_worker(tmp_path: Path) -> None:
    environ = {"DURABLE_RUN_DIR": str(tmp_path), "RANK": "0"}
    assert Launched.of(environ).told == RunFiles(tmp_path)
    launched.mark(environ)
    assert Launched.of(environ).told == RunFiles(tmp_path), (
        "the worker itself, also after it has become another"
    )
    environ["DURABLE_WORKER"] = str(os.getppid())
    there = Launched.of(environ)
    assert (there.told, there.files) == (None, RunFiles(tmp_path))


def test_a_launcher_that_a_worker_starts_begins_a_launch_of_its_own(tmp_path: Path) -> None:
    told = dict.fromkeys(launched.IDENTITY, "1") | {"RANK": "0", "HOME": "/"}
    mine = {**told, "DURABLE_WORKER": str(os.getpid())}
    assert not launched.leave(mine)
    assert mine["DURABLE_LAUNCH_ID"] == "1"
    assert launched.leave(told)
    assert told == {"RANK": "0", "HOME": "/"}
    assert not launched.leave(told)


def test_a_rank_taken_over_starts_with_nothing_of_the_one_before(tmp_path: Path) -> None:
    files = RunFiles(tmp_path).prepare()
    beats.Writer(files.beat(1), 1).beat(1.0, Phase.INIT, generation=1, step=-1)
    words.write(files.words(1), words.Words("ValueError", "it"))
    files.stacks(1).write_text("stack")
    words.write(files.words(0), words.Words("ValueError", "other"))
    files.clear(1)
    files.clear(1)
    assert beats.read(files.beat(1)) is None
    assert words.read_words(files.words(1)) is None
    assert not files.stacks(1).exists()
    assert words.read_words(files.words(0)) is not None


# --- beats -----------------------------------------------------------------------------------


def test_a_beat_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = RunFiles(tmp_path).prepare().beat(0)
    assert beats.read(path) is None
    writer = beats.Writer(path, 17)
    assert beats.read(path) is None, "no beat yet"
    writer.beat(10.0, Phase.INIT, generation=0, step=-1)
    writer.beat(11.0, Phase.STEP, generation=3, step=5, durable=4)
    writer.beat(12.5, Phase.STEP, generation=3, step=6, durable=4)
    assert beats.read(path) == beats.Beat(17, Phase.STEP, 3, 6, 3, 4, 12.5, 11.0, pid=os.getpid())
    writer.close()


def test_a_beats_memory_is_there_before_the_first_beat(tmp_path: Path) -> None:
    writer = beats.Writer(tmp_path / "0", 1)
    assert (tmp_path / "0").stat().st_blocks * 512 >= beats.SIZE, "where memory is full, a beat is SIGBUS"
    assert beats.read(tmp_path / "0") is None
    writer.close()


def test_the_newest_own_times_are_kept_in_order(tmp_path: Path) -> None:
    path = tmp_path / "0"
    writer = beats.Writer(path, 1)
    for step in range(OWN_TIMES + 5):
        writer.own(float(step))
        writer.beat(float(step), Phase.STEP, generation=1, step=step)
        found = beats.read(path)
        assert found is not None
        assert found.own == tuple(map(float, range(max(0, step + 1 - OWN_TIMES), step + 1)))


def test_a_beat_half_written_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "0"
    writer = beats.Writer(path, 1)
    writer.beat(1.0, Phase.STEP, generation=1, step=1)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), beats.SIZE) as mapped:
        mapped[0] |= 1  # killed within a beat
    assert beats.read(path) is None
    writer.beat(2.0, Phase.STEP, generation=1, step=2)
    assert beats.read(path) is not None


def test_who_had_the_rank_before_cannot_disturb_the_next(tmp_path: Path) -> None:
    path = tmp_path / "0"
    zombie = beats.Writer(path, 1)
    zombie.beat(1.0, Phase.STEP, generation=1, step=9)
    heir = beats.Writer(path, 2)
    heir.beat(2.0, Phase.INIT, generation=2, step=-1)
    zombie.beat(3.0, Phase.STEP, generation=1, step=10)
    found = beats.read(path)
    assert found is not None
    assert (found.attempt, found.generation, found.step) == (2, 2, -1)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("what", [b"", b"x", bytes(beats.SIZE + 1)])
def test_a_file_that_is_no_beat_is_named(tmp_path: Path, what: bytes) -> None:
    (tmp_path / "0").write_bytes(what)
    with pytest.raises(FormatError, match="0"):
        beats.read(tmp_path / "0")


@pytest.mark.parametrize("at", [4, 12])
def test_another_version_or_phase_is_refused(tmp_path: Path, at: int) -> None:
    path = tmp_path / "0"
    beats.Writer(path, 1).beat(1.0, Phase.STEP, generation=1, step=1)
    data = bytearray(path.read_bytes())
    data[at] = 99
    path.write_bytes(data)
    with pytest.raises(FormatError, match="version 2"):
        beats.read(path)


# --- documents -------------------------------------------------------------------------------

DOCUMENTS: list[tuple[words.Document, Any]] = [
    (
        words.Words("a.B", "why", "TierError", ("f.py:g", "f.py:h"), 3, "key", "do that", 2, 17),
        words.read_words,
    ),
    (words.Opened("/root", "run", 2, "launch", ("dp0", "dp1")), words.read_opened),
    (
        words.Facts(
            "l", 1, "up", 1.0, 2.0, 3, 2, (words.Member(0, 10, "h", 0), words.Member(1, 11, "h", 0, -9))
        ),
        words.read_facts,
    ),
    (words.Request("op", "restart", 3, "F7", "hangs", {"rank": 1}), words.read_request),
]


@pytest.mark.parametrize(("document", "read"), DOCUMENTS)
def test_documents_come_back_whole(tmp_path: Path, document: words.Document, read: Any) -> None:
    path = tmp_path / "document.json"
    assert read(path) is None
    words.write(path, document)
    assert read(path) == document
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(("document", "read"), DOCUMENTS)
@pytest.mark.parametrize("damage", ["", "[]", "{", "{}", "more"])
def test_a_document_that_is_something_else_is_named(
    tmp_path: Path, document: words.Document, read: Any, damage: str
) -> None:
    path = tmp_path / "document.json"
    words.write(path, document)
    if damage == "more":
        damage = json.dumps({**json.loads(path.read_text()), "more": 1})
    path.write_text(damage)
    with pytest.raises(FormatError, match=r"document\.json"):
        read(path)
