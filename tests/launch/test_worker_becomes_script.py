"""``launch.worker``: the script runs as python would run it, dies with its parent, leaves last words."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from durable_core.engine.launched import DUMP_SIGNAL, RunFiles
from durable_core.engine.words import Words, read_words

RUNNER = (sys.executable, "-m", "durable_core.launch.worker")
DEADLINE_S = 120.0

SHOW = """
'''Its doc.'''
import __main__, json, sys
names = {k: v if isinstance(v, str) else None for k, v in globals().items() if k[:2] == "__"}
names.pop("__annotations__", None)
print(json.dumps([names, sys.argv, sys.path[:2], __main__.__dict__ is globals(), "torch" in sys.modules]))
"""

SPAWNS = """
import multiprocessing, sys

class Here:
    value = 7

def work(queue, here):
    queue.put((here.value, __name__, sys.argv[1:]))

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=work, args=(queue, Here()))
    process.start()
    print(queue.get(timeout=60))
    process.join(60)
    sys.exit(process.exitcode)
"""


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    return RunFiles(tmp_path / "run").prepare()


def script(folder: Path, text: str, name: str = "script.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def environment(files: RunFiles, **more: str) -> dict[str, str]:
    bare = {k: v for k, v in os.environ.items() if not k.startswith(("DURABLE_", "TORCHELASTIC_"))}
    return {**bare, "DURABLE_RUN_DIR": str(files.root), "RANK": "1", "OMP_NUM_THREADS": "1", **more}


def start(files: RunFiles, *argv: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUNNER, *map(str, argv)], env=environment(files), cwd=cwd, capture_output=True, text=True,
        timeout=DEADLINE_S, check=False,
    )  # fmt: skip


@contextlib.contextmanager
def running(files: RunFiles, path: Path, **env: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*RUNNER, str(path)], env=environment(files, **env), stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(DEADLINE_S)
        assert process.stdout is not None
        process.stdout.close()


def said(files: RunFiles, text: str, tmp_path: Path) -> tuple[int, Words | None, str]:
    done = start(files, script(tmp_path, text))
    return done.returncode, read_words(files.words(1)), done.stderr


def test_the_script_sees_what_python_would_show_it(files: RunFiles, tmp_path: Path) -> None:
    script(tmp_path, SHOW, "show.py")
    for argv in (["show.py", "a", "-m"], [f"../{tmp_path.name}/show.py"], ["-m", "show", "x"]):
        ours = start(files, *argv, cwd=tmp_path)
        plain = subprocess.run(
            [sys.executable, *argv], cwd=tmp_path, env=environment(files), capture_output=True, text=True,
            check=True, timeout=DEADLINE_S,
        )  # fmt: skip
        assert ours.returncode == 0, ours.stderr
        assert json.loads(ours.stdout) == json.loads(plain.stdout)
    assert not json.loads(ours.stdout)[-1], "torch is imported by the script, or by nobody"


def test_a_folder_with_a_main_is_a_script_too(files: RunFiles, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    script(tmp_path / "app", "import helper, sys; print(helper.VALUE, sys.argv[1])", "__main__.py")
    script(tmp_path / "app", "VALUE = 3", "helper.py")
    assert start(files, tmp_path / "app", "x").stdout == "3 x\n"


def test_spawned_processes_find_what_the_script_defines(files: RunFiles, tmp_path: Path) -> None:
    done = start(files, script(tmp_path, SPAWNS), "-v")
    assert done.stdout == "(7, '__mp_main__', ['-v'])\n", done.stderr
    assert done.returncode == 0
    assert read_words(files.words(1)) is None


def test_what_runs_at_exit_still_finds_its_main(files: RunFiles, tmp_path: Path) -> None:
    text = "import atexit, sys\nX = 1\natexit.register(lambda: print(sys.modules['__main__'].X))\n"
    assert start(files, script(tmp_path, text)).stdout == "1\n"


def test_no_script_is_said_so(files: RunFiles) -> None:
    done = start(files)
    assert done.returncode == 1
    assert "no script" in done.stderr


# --- last words ------------------------------------------------------------------------------


def test_an_uncaught_error_leaves_words_and_the_scripts_own_traceback(
    files: RunFiles, tmp_path: Path
) -> None:
    text = "def f():\n    raise ValueError('it')\ndef g():\n    f()\ng()\n"
    status, words, stderr = said(files, text, tmp_path)
    folder = tmp_path.name
    frames = tuple(f"{folder}/script.py:{name}" for name in ("<module>", "g", "f"))
    assert words is not None
    assert (status, words) == (1, Words("ValueError", "it", frames=frames))
    plain = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, check=False,
        timeout=DEADLINE_S,
    )  # fmt: skip
    assert stderr == plain.stderr


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("import no_such_thing", "ModuleNotFoundError"),
        ("def f(:", "SyntaxError"),
        ("1/0", "ZeroDivisionError"),
    ],
)
def test_errors_before_any_line_of_ours_leave_words(
    files: RunFiles, tmp_path: Path, text: str, kind: str
) -> None:
    status, words, _ = said(files, text, tmp_path)
    assert status == 1
    assert words is not None
    assert (words.kind, words.branch, words.step) == (kind, "", None)


def test_a_script_that_is_not_there_leaves_words(files: RunFiles, tmp_path: Path) -> None:
    assert start(files, tmp_path / "none.py").returncode == 1
    words = read_words(files.words(1))
    assert words is not None
    assert words.kind == "FileNotFoundError"


@pytest.mark.parametrize(
    ("code", "status", "message"),
    [
        ("0", 0, None), ("None", 0, None), ("75", 75, None), ("76", 76, None), ("3", 3, "exit status 3"),
        ("'no GPU'", 1, "no GPU"), ("True", 1, "exit status 1"),
    ],
)  # fmt: skip
def test_an_exit_that_was_not_meant_leaves_words(
    files: RunFiles, tmp_path: Path, code: str, status: int, message: str | None
) -> None:
    found, words, _ = said(files, f"import sys; sys.exit({code})", tmp_path)
    assert found == status
    assert (None if words is None else words.message) == message
    assert words is None or (words.kind, words.exit_code) == ("SystemExit", status)


def test_our_errors_are_named_by_what_is_done_about_them(files: RunFiles, tmp_path: Path) -> None:
    text = (
        "from durable_core.errors import DigestMismatchError\n"
        "raise DigestMismatchError('shards/3', 'differs', hint='another copy')\n"
    )
    _, words, _ = said(files, text, tmp_path)
    assert words is not None
    assert (words.kind, words.branch, words.object, words.hint) == (
        "durable_core.errors.DigestMismatchError", "CorruptError", "shards/3", "another copy",
    )  # fmt: skip


def test_a_foreign_error_from_one_of_ours_says_what_that_was_about(files: RunFiles, tmp_path: Path) -> None:
    text = (
        "from durable_core.errors import DataUnavailableError\n"
        "try:\n"
        "    raise DataUnavailableError('part-7', 'gone')\n"
        "except DataUnavailableError as error:\n"
        "    raise RuntimeError('worker 3 died') from error\n"
    )
    status, words, _ = said(files, text, tmp_path)
    assert status == 1
    assert words is not None
    assert (words.kind, words.message, words.branch, words.object) == (
        "RuntimeError", "worker 3 died", "DataUnavailableError", "part-7",
    )  # fmt: skip


@pytest.mark.parametrize("ends", ["raise error", "raise SystemExit(76) from error"])
def test_a_fenced_worker_exits_76_and_says_so(files: RunFiles, tmp_path: Path, ends: str) -> None:
    text = (
        "import atexit\n"
        "from durable_core.errors import Superseded\n"
        "atexit.register(print, 'cleaned up')\n"
        "error = Superseded('another launch has it')\n"
        f"{ends}\n"
    )
    done = start(files, script(tmp_path, text))
    words = read_words(files.words(1))
    assert (done.returncode, done.stdout) == (76, "cleaned up\n")
    assert words is not None
    assert (words.branch, words.exit_code) == ("FencedError", 76)


def test_a_forked_child_leaves_no_words_for_its_parent(files: RunFiles, tmp_path: Path) -> None:
    text = (
        "import os, sys\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    raise ValueError('the child')\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    sys.exit(9)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9\n"
    )
    assert said(files, text, tmp_path)[:2] == (0, None)


def test_what_a_worker_starts_leaves_no_words_for_it(files: RunFiles, tmp_path: Path) -> None:
    """It has the worker's whole environment, rank and run directory included, and uses the library."""
    opens = (
        "from durable_core.session import Run, Settings; Run.open('none', settings=Settings(resume='must'))"
    )
    text = (
        "import os, subprocess, sys\n"
        f"opens = {opens!r}\n"
        "for each in ([sys.executable, '-c', opens], [sys.executable, *sys.argv[1:], __file__, 'again']):\n"
        "    if 'again' in sys.argv:\n"
        "        raise ValueError('the child')\n"
        "    done = subprocess.run(each, stdout=subprocess.DEVNULL)\n"
        "    print(done.returncode)\n"
    )
    done = start(files, script(tmp_path, text), "-m", "durable_core.launch.worker", cwd=tmp_path)
    assert done.stdout == "1\n1\n", done.stderr
    assert "RunNotFoundError" in done.stderr and "the child" in done.stderr
    assert read_words(files.words(1)) is None
    assert not files.beat(1).exists()
    assert files.stacks(1).exists(), "the worker's own"


def test_words_that_cannot_be_written_change_no_exit_status(files: RunFiles, tmp_path: Path) -> None:
    shutil.rmtree(files.root)
    done = start(files, script(tmp_path, "from durable_core.errors import Fenced\nraise Fenced('it')\n"))
    assert done.returncode == 76
    assert "the launcher is not told" in done.stderr
    assert not files.root.exists()


def test_a_hook_of_the_scripts_own_still_comes_after_ours(files: RunFiles, tmp_path: Path) -> None:
    """It may replace ours; one that chains keeps both."""
    text = (
        "import sys\n"
        "before = sys.excepthook\n"
        "def hook(*what):\n"
        "    print('mine', flush=True)\n"
        "    before(*what)\n"
        "sys.excepthook = hook\n"
        "1/0\n"
    )
    done = start(files, script(tmp_path, text))
    words = read_words(files.words(1))
    assert done.stdout == "mine\n"
    assert words is not None
    assert words.kind == "ZeroDivisionError"


# --- stacks, and the parent's end --------------------------------------------------------------


def test_every_threads_stack_is_written_when_asked_for(files: RunFiles, tmp_path: Path) -> None:
    text = (
        "import threading\n"
        "def waits_for_ever():\n"
        "    threading.Event().wait()\n"
        "threading.Thread(target=waits_for_ever, daemon=True).start()\n"
        "print('up', flush=True)\n"
        "threading.Event().wait()\n"
    )
    with running(files, script(tmp_path, text)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(DUMP_SIGNAL)
        until = time.monotonic() + DEADLINE_S
        while "<module>" not in (found := files.stacks(1).read_text()):
            assert time.monotonic() < until
        assert "waits_for_ever" in found
        assert process.poll() is None


PARENT = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[2:], stdout=int(sys.argv[1]), pass_fds=[int(sys.argv[1])])
os.close(int(sys.argv[1]))
print(child.pid, flush=True)
child.wait()
"""


def test_a_worker_dies_with_whoever_started_it(files: RunFiles, tmp_path: Path) -> None:
    worker = script(tmp_path, "import threading\nprint('up', flush=True)\nthreading.Event().wait()\n")
    reading, writing = os.pipe()
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(writing), *RUNNER, str(worker)],
        env=environment(files, DURABLE_ATTEMPT="x/1"), pass_fds=[writing], stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(writing)
    pid = 0
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        with open(reading, closefd=False) as told:
            assert told.readline() == "up\n"
            parent.kill()
            parent.wait(DEADLINE_S)
            assert select.select([told], [], [], DEADLINE_S)[0]
            assert told.read() == "", "its end of the pipe is closed: it is gone"
    finally:
        parent.kill()
        parent.wait(DEADLINE_S)
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            if pid:
                os.kill(pid, signal.SIGKILL)
        parent.stdout.close()


def test_a_worker_whose_parent_is_gone_already_does_not_begin(tmp_path: Path) -> None:
    text = (
        "import os\n"
        "from durable_core.engine.parent import die_with\n"
        "die_with(os.getppid() + 1)\n"
        "print('it lives')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")


@pytest.mark.parametrize("end", ["", "raise SystemExit(3)", "raise ValueError"])
def test_that_the_script_has_ended_is_there_for_the_launcher(
    files: RunFiles, tmp_path: Path, end: str
) -> None:
    watch = "import pathlib, sys; print(list(pathlib.Path(sys.argv[1]).iterdir()))\n"
    done = start(files, script(tmp_path, watch + end), files.ended(1).parent)
    assert done.stdout.startswith("[]"), "not before its end"
    assert files.ended(1).exists()
