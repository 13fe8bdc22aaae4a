"""Standbys: what becomes of one is a worker like any other, and nothing that goes wrong with one costs more
than a cold start. Real processes; the test process stands for the agent."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from durable_core.engine.launched import RunFiles
from durable_core.launch.agent import sweeping
from durable_core.launch.agent.starting import Cold, Process
from durable_core.launch.standby import environment, imports, pool, safety, wire, zygote
from durable_core.launch.standby.pool import Warm

DEADLINE_S = 60.0
_PR_SET_CHILD_SUBREAPER = 36

#: Writes what a worker can see of itself to the file that it is given, then does what it is told to.
REPORT = """
import json, os, sys, random
parts = [line.decode() for line in open("/proc/self/environ", "rb").read().split(b"\\0")]
with open(sys.argv[1] + ".part", "w") as file:
    json.dump({
        "pid": os.getpid(), "parent": os.getppid(), "session": os.getsid(0), "argv": sys.argv,
        "original": sys.orig_argv, "environ": dict(os.environ), "shown": parts, "name": __name__,
        "line": open("/proc/self/cmdline", "rb").read().rstrip(b"\\0").decode().split("\\0"),
        "path": sys.path[0], "random": random.random(), "had": "statistics" in sys.modules,
        "files": sorted(os.listdir("/proc/self/fd")), "buffered": sys.stdout.line_buffering,
    }, file)
os.replace(sys.argv[1] + ".part", sys.argv[1])
print("to stdout"); print("to stderr", file=sys.stderr)
if sys.argv[2:] == ["wait"]:
    import signal
    signal.pause()
sys.exit(int(sys.argv[2]) if sys.argv[2:] else 0)
"""


def wait_until(true: Callable[[], object], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < end, f"not in {DEADLINE_S} s: {what}"
        time.sleep(0.005)


def ended(process: Process) -> int:
    wait_until(lambda: process.poll() is not None, f"the end of {process.pid}")
    status = process.poll()
    assert status is not None
    return status


def tended(warm: Warm) -> Warm:
    warm.tend()
    return warm


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except FileNotFoundError:
        return False


class Agent:
    """This process as an agent: what it starts, and that all of it is gone in the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = RunFiles(folder).prepare().root
        self.script = folder / "script" / "train.py"
        self.script.parent.mkdir()
        self.script.write_text(REPORT)
        self.started: list[Process] = []
        self.said: list[str] = []

    def environ(self, **more: str) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
        path = os.pathsep.join(filter(None, (str(self.folder), kept.get("PYTHONPATH"))))
        told = {"RANK": "1", "MASTER_PORT": "4711", "DURABLE_RUN_DIR": str(self.folder)}
        mark = {"DURABLE_ATTEMPT": "launch/7"}
        return {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **told, **mark, **more}

    def command(self, *arguments: str, flags: tuple[str, ...] = ()) -> list[str]:
        return [sys.executable, *flags, "-m", zygote.WORKER, *arguments]

    def start(self, warm: Warm, out: str, *then: str, flags: tuple[str, ...] = (), **more: str) -> Process:
        command = self.command(str(self.script), str(self.folder / out), *then, flags=flags)
        paths = (str(self.folder / f"{out}.{stream}") for stream in ("stdout", "stderr"))
        process = warm.start(command, self.environ(**more), *paths)
        self.started.append(process)
        return process

    def report(self, out: str) -> dict[str, Any]:
        wait_until((self.folder / out).exists, f"{out} is written")
        found = json.loads((self.folder / out).read_text())
        assert isinstance(found, dict)
        return found


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    assert sweeping.become_subreaper()
    before = sweeping.children()
    try:
        yield Agent(tmp_path)
    finally:
        sweeping.sweep(lambda: sweeping.children() - before, time.sleep)
        sweeping.reap_adopted(())
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Choose what standbys import; at first ``statistics``, which comes quickly."""

    def choose(*names: str) -> None:
        monkeypatch.setattr(imports, "wanted", lambda script, folder, extra: (*names, *extra))

    choose("statistics")
    return choose


@pytest.fixture
def warm(agent: Agent, loads: Callable[..., None]) -> Iterator[Warm]:
    made = Warm(Cold(), 2, say=agent.said.append, patience_s=DEADLINE_S)
    yield made
    made.close()


def package(agent: Agent, name: str, source: str) -> str:
    (agent.folder / f"{name}.py").write_text(source)
    return name


# --- a worker like any other ---------------------------------------------------------------------


@pytest.mark.usefixtures("loads")
@pytest.mark.parametrize("flags", [(), ("-u",)], ids=["", "unbuffered"])
def test_a_worker_from_a_standby_sees_what_one_started_cold_sees(
    agent: Agent, warm: Warm, flags: tuple[str, ...]
) -> None:
    processes = {"warm": agent.start(warm, "warm", "3", flags=flags)}
    assert warm.reason == ""
    agent.started.append(process := Cold().start(
        agent.command(str(agent.script), str(agent.folder / "cold"), "3", flags=flags), agent.environ(),
        str(agent.folder / "cold.stdout"), str(agent.folder / "cold.stderr"),
    ))  # fmt: skip
    processes["cold"] = process
    seen = {}
    for name, process in processes.items():
        assert ended(process) == 3
        seen[name] = agent.report(name)
        assert seen[name].pop("pid") == seen[name].pop("session") == process.pid
        assert seen[name].pop("had") is (name == "warm")
        seen[name].pop("random")
        seen[name]["environ"].pop("DURABLE_WORKER", None)  # its number
        line = [str(part) for part in seen[name].pop("line")]
        assert line[: 3 + len(flags)] == agent.command(flags=flags)  # the rest where there is room
        for key in ("argv", "original"):
            seen[name][key] = [str(part).replace(f"/{name}", "/NAME") for part in seen[name][key]]
        marks = [each for each in seen[name].pop("shown") if each.startswith("DURABLE_ATTEMPT=")]
        assert marks == ["DURABLE_ATTEMPT=launch/7"]
        assert (agent.folder / f"{name}.stdout").read_text() == "to stdout\n"
        assert (agent.folder / f"{name}.stderr").read_text() == "to stderr\n"
    assert seen["warm"] == seen["cold"]
    assert seen["warm"]["parent"] == os.getpid()


def test_standbys_are_not_used_up_where_they_may_fork(agent: Agent, warm: Warm) -> None:
    agent.start(warm, "0", "wait")
    standby = warm.pids
    agent.start(warm, "1", "wait")
    assert len(warm.pids) == 1
    assert warm.pids == standby
    assert warm.ready == 2
    assert agent.report("0")["random"] != agent.report("1")["random"]
    os.kill(agent.started[1].pid, signal.SIGTERM)
    assert ended(agent.started[1]) == -signal.SIGTERM
    assert agent.started[0].poll() is None


def test_a_module_can_be_the_script(agent: Agent, warm: Warm) -> None:
    package(agent, "training", REPORT)
    command = agent.command("-m", "training", str(agent.folder / "out"))
    worker = warm.start(command, agent.environ(), "", "")
    assert warm.reason == ""
    assert ended(worker) == 0
    assert agent.report("out")["name"] == "__main__"


def test_what_a_worker_forks_carries_its_mark(agent: Agent, warm: Warm) -> None:
    agent.script.write_text(
        "import os, sys, signal\nif os.fork() == 0:\n    signal.pause()\n"
        "open(sys.argv[1], 'w').write('')\nsignal.pause()"
    )
    agent.start(warm, "out")
    wait_until((agent.folder / "out").exists, "the worker has forked")
    marked = sweeping.marked(sweeping.mark(agent.folder), also=b"DURABLE_ATTEMPT")
    assert len(marked) == 2
    assert not marked & warm.pids
    assert sweeping.marked(sweeping.mark(agent.folder)) == marked | warm.pids


# --- where forking is not safe -------------------------------------------------------------------

UNSAFE = {
    "a thread": "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "a connection": "import socket; kept = socket.socketpair()",
    "a pipe": "import os; kept = os.pipe()",
    "a process": "import subprocess; kept = subprocess.Popen(['sleep', '1000'])",
}


@pytest.mark.parametrize("what", UNSAFE)
def test_what_makes_forking_unsafe_makes_standbys_serve_once(
    agent: Agent, warm: Warm, loads: Callable[..., None], what: str
) -> None:
    loads("statistics", package(agent, "keeps_something", UNSAFE[what]))
    first = agent.start(warm, "0", "4")
    assert warm.reason == ""
    assert (ended(first), agent.report("0")["had"]) == (4, True)
    assert warm.pids == frozenset()
    assert warm.doubts

    warm.tend()  # as many as were asked for, now that it is known that each serves once
    standbys = warm.pids
    assert len(standbys) == 2
    wait_until(lambda: tended(warm).ready == 2, "both standbys are ready")
    workers = [agent.start(warm, name, "wait") for name in "12"]
    assert {worker.pid for worker in workers} == standbys
    assert all(agent.report(name)["had"] for name in "12")
    assert warm.ready == 0

    agent.start(warm, "3", "wait")
    assert warm.reason == "no standby is left"
    assert not agent.report("3")["had"]


def test_threads_that_end_before_a_fork_do_no_harm() -> None:
    code = (
        "import numpy\nfrom durable_core.launch.standby import safety\nbefore = safety.open_files()\n"
        "safety.settle()\nprint(safety.doubts(before))"
    )
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout == "()\n"


# --- where a standby would not be the same -------------------------------------------------------


def test_another_value_of_what_imports_may_have_read_means_a_cold_start(agent: Agent, warm: Warm) -> None:
    assert ended(agent.start(warm, "0")) == 0
    assert ended(agent.start(warm, "1", OMP_NUM_THREADS="2")) == 0
    assert "OMP_NUM_THREADS" in warm.reason
    assert agent.environ(OMP_NUM_THREADS="2").items() <= agent.report("1")["environ"].items()
    assert not agent.report("1")["had"]
    assert ended(agent.start(warm, "2", RANK="5")) == 0
    assert warm.reason == ""
    assert agent.environ(RANK="5").items() <= agent.report("2")["environ"].items()


def test_another_interpreter_means_a_cold_start(agent: Agent, warm: Warm) -> None:
    assert ended(agent.start(warm, "0")) == 0
    assert ended(agent.start(warm, "1", flags=("-O",))) == 0
    assert "-O" in warm.reason
    assert not agent.report("1")["had"]


@pytest.mark.parametrize("reading", ["os.environ.get('RANK')", "'RANK' in os.environ", "os.getenv('RANK')"])
def test_a_package_that_reads_its_rank_when_imported_means_cold_starts(
    agent: Agent, warm: Warm, loads: Callable[..., None], reading: str
) -> None:
    loads("statistics", package(agent, "reads_rank", f"import os; rank = {reading}"))
    assert ended(agent.start(warm, "0")) == 0
    assert warm.reason == "reads_rank reads RANK"
    assert not agent.report("0")["had"]
    assert agent.said == ["a worker is started without a standby: reads_rank reads RANK"]
    warm.tend()
    assert warm.pids == frozenset()


def test_reading_the_whole_environment_is_no_objection(
    agent: Agent, warm: Warm, loads: Callable[..., None]
) -> None:
    loads(package(agent, "reads_all", "import os; kept = {k: v for k, v in os.environ.items() if k == 'X'}"))
    assert ended(agent.start(warm, "0")) == 0
    assert warm.reason == ""


def test_a_module_beside_the_script_is_not_hidden_by_a_package(
    agent: Agent, warm: Warm, loads: Callable[..., None]
) -> None:
    loads(package(agent, "uses_helper", "import helper"))
    package(agent, "helper", "where = 'installed'")
    (agent.script.parent / "helper.py").write_text("where = 'beside'")
    assert ended(agent.start(warm, "0")) == 0
    assert warm.reason == "helper is the name of a module beside the script"


def test_ranks_that_were_read_at_import_are_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    zero = pytest.importorskip("lightning.fabric.utilities.rank_zero").rank_zero_only
    prints = pytest.importorskip("torchmetrics.utilities.prints").rank_zero_only
    for each in (zero, prints):
        monkeypatch.setattr(each, "rank", 0)
    with pytest.MonkeyPatch.context() as context:
        context.setattr(os, "environ", os.environ.copy())
        environment.become({"RANK": "3", "LOCAL_RANK": "1"})
        assert os.environ.items() >= {"RANK": "3", "LOCAL_RANK": "1"}.items()
    assert (zero.rank, prints.rank) == (3, 1)


# --- what dies when ------------------------------------------------------------------------------


def test_a_standby_that_is_killed_leaves_its_workers(agent: Agent, warm: Warm) -> None:
    worker = agent.start(warm, "0", "wait")
    agent.report("0")
    (standby,) = warm.pids
    os.kill(standby, signal.SIGKILL)
    wait_until(lambda: not alive(standby), "the standby is dead")
    assert worker.poll() is None

    second = agent.start(warm, "1", "6")
    assert warm.reason == "no standby is left"
    assert (ended(second), agent.report("1")["had"]) == (6, False)
    warm.tend()
    wait_until(lambda: tended(warm).ready == 2, "another standby is ready")
    third = agent.start(warm, "2", "6")
    assert (warm.reason, ended(third), agent.report("2")["had"]) == ("", 6, True)

    os.kill(worker.pid, signal.SIGKILL)
    assert ended(worker) == -signal.SIGKILL


def test_a_standby_that_does_not_answer_is_given_up(agent: Agent, loads: Callable[..., None]) -> None:
    loads(package(agent, "never_done", "import signal; signal.pause()"))
    warm = Warm(Cold(), 1, patience_s=0.05)
    try:
        for name in "012":
            warm.tend()
            assert ended(agent.start(warm, name)) == 0
            assert warm.reason == "no standby is left"
            assert warm.pids == frozenset()
        warm.tend()
        assert warm.pids == frozenset(), "it is not tried for ever"
    finally:
        warm.close()


LAUNCHER = """
import os, sys
from durable_core.engine.launched import RunFiles
from durable_core.launch.agent import sweeping
from durable_core.launch.agent.starting import Cold, Process
from durable_core.launch.standby import imports
from durable_core.launch.standby.pool import Warm
sweeping.become_subreaper()
imports.wanted = lambda *_: sys.argv[4:]
warm = Warm(Cold(), 1)
command = [sys.executable, "-m", "durable_core.launch.worker", sys.argv[1], sys.argv[2], "wait"]
environ = {**os.environ, "DURABLE_RUN_DIR": sys.argv[3], "DURABLE_ATTEMPT": "launch/1"}
warm.start(command, environ, "", "")
print(next(iter(warm.pids)), flush=True)
sys.stdin.read()
"""


def test_an_agent_that_is_killed_takes_its_standbys_and_workers_with_it(agent: Agent) -> None:
    arguments = [str(agent.script), str(agent.folder / "out"), str(agent.folder)]
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, *arguments], env=agent.environ(),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as launcher:  # fmt: skip
        assert launcher.stdout is not None
        standby = int(launcher.stdout.readline())
        worker = agent.report("out")["pid"]
        assert isinstance(worker, int)
        assert alive(worker)
        assert alive(standby)
        launcher.kill()
        launcher.wait()
        wait_until(lambda: not alive(worker) and not alive(standby), "standby and worker are gone")


def test_an_agent_that_is_killed_takes_a_standby_with_it_that_still_imports(agent: Agent) -> None:
    package(agent, "slow", "import os, signal; print(os.getpid(), flush=True); signal.pause()")
    arguments = [str(agent.script), str(agent.folder / "out"), str(agent.folder), "slow"]
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, *arguments], env=agent.environ(),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as launcher:  # fmt: skip
        assert launcher.stdout is not None
        standby = int(launcher.stdout.readline())
        launcher.kill()
        launcher.wait()
        wait_until(lambda: not alive(standby), "the standby is gone")


@pytest.mark.parametrize("serves", ["forked", "itself"])
def test_a_worker_that_the_agent_does_not_know_never_begins(
    agent: Agent, loads: Callable[..., None], serves: str
) -> None:
    """Killed between the answer and the byte at the gate, or before: it is all the same to the worker."""
    if serves == "itself":
        package(agent, "keeps_something", UNSAFE["a pipe"])
    made = pool._Made.of(agent.command(str(agent.script), str(agent.folder / "out")), agent.environ())
    assert made is not None
    standby = made.spawn(("keeps_something",) if serves == "itself" else (), DEADLINE_S)
    try:
        command = agent.command(str(agent.script), str(agent.folder / "out"))
        document = {"command": command, "rest": command[3:], "environ": agent.environ(), "streams": []}
        reading, gate = os.pipe()
        wire.send(standby.channel, document, (reading,))
        os.close(reading)
        told = 0
        while not told:
            heard = wire.receive(standby.channel)
            assert heard is not None
            told = heard[0].get("pid", 0)
        assert (told == standby.process.pid) is (serves == "itself")
        os.close(gate)  # as the end of the agent would
        worker: Process = standby.process if serves == "itself" else pool.Adopted(told)
        assert ended(worker) == 1
        assert not (agent.folder / "out").exists()
    finally:
        standby.end()


# --- what is imported ----------------------------------------------------------------------------


def looked(tmp_path: Path, script: str, **beside: str) -> list[str]:
    for name, source in {"train": script, **beside}.items():
        path = tmp_path.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    ours = set(imports.wanted(Path("/nowhere/train.py"), Path("/nowhere")))
    return [name for name in imports.wanted(tmp_path / "train.py", tmp_path) if name not in ours]


def test_a_script_is_looked_at_and_not_run(tmp_path: Path) -> None:
    script = "import sys, lightning.pytorch as pl\nfrom transformers import AutoModel\nraise SystemExit"
    assert looked(tmp_path, script) == ["lightning.pytorch", "transformers"]


@pytest.mark.parametrize(
    "script",
    [
        "import wandb, deepspeed, mpi4py, datasets",
        "def f():\n    import lightning",
        "from . import lightning",
        "import",
    ],
    ids=["unknown", "later", "relative", "no Python"],
)
def test_what_is_not_known_to_only_load_code_is_left_to_the_worker(tmp_path: Path, script: str) -> None:
    assert looked(tmp_path, script) == []


def test_what_the_modules_beside_a_script_import_counts(tmp_path: Path) -> None:
    beside = {"models": "from inner.deep import x", "inner__deep": "import lightning, models"}
    assert looked(tmp_path, "from models import Net", **beside) == ["lightning"]


def test_a_module_beside_the_script_is_never_imported_ahead(tmp_path: Path) -> None:
    assert looked(tmp_path, "import lightning", lightning="x = 1") == []
    (tmp_path / "torch.py").write_text("x = 1")
    assert "torch" not in imports.wanted(tmp_path / "train.py", tmp_path)


def test_what_the_user_names_is_imported(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    assert imports.wanted(tmp_path / "train.py", tmp_path, ["mine", "wandb"])[-2:] == ("mine", "wandb")


# --- the parts -----------------------------------------------------------------------------------


def test_a_message_is_whole_or_none() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        long = {"environ": {str(number): "x" * 1000 for number in range(100)}}
        with theirs:
            wire.send(theirs, long, (0,))
            heard = wire.receive(ours)
            assert heard is not None
            assert heard[0] == long
            assert os.fstat(heard[1][0]) == os.fstat(0)
            os.close(heard[1][0])
            theirs.sendall(b"\x10\0\0\0{")
        assert wire.receive(ours) is None
        assert wire.receive(ours) is None


def test_what_each_worker_is_told_is_not_common() -> None:
    environ = {"RANK": "1", "DURABLE_ROOT": "x", "TORCHELASTIC_RUN_ID": "y", "OMP_NUM_THREADS": "1", "A": "b"}
    assert environment.common(environ) == {"OMP_NUM_THREADS": "1", "A": "b"}


def test_a_device_that_is_open_is_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    before = safety.open_files()
    monkeypatch.setattr(safety, "open_files", lambda: {**before, 99: "/dev/nvidiactl", 98: "/etc/hosts"})
    found = [doubt for doubt in safety.doubts(before) if doubt.startswith("descriptor")]
    assert found == ["descriptor 99 is /dev/nvidiactl"]
