"""A worker is killed: how often, and how quickly, does its group train on? Ours beside torchrun and
accelerate.

Each launcher runs the same job (``restarts_job.py``: two gloo workers, state in memory and on disk) and one
of its workers is killed (SIGKILL) again and again, in blocks that alternate between the launchers. Prints one
JSON document; times are seconds after the kill, medians of the clean restarts with their spread.

    restarted    seconds until the first new process was at the first line of the script
    clean        the first new group trained on, within --deadline
    orphans      processes of an older group, its helpers included, that lived when the new one trained, or
                 after the launcher had ended
    detection    the launcher knows (ours: its facts; torch's: its log)
    teardown     nothing of the old group is left (torch's: together with the rendezvous)
    rendezvous   the nodes have met, and the generation is claimed
    process      the last worker is at the first line of the script
    imports      ... has imported what the script imports
    group        ... has joined the process group
    restore      ... has restored
    step         ... has made the first new step; ``total`` is the time of that

    python tests/bench/restarts.py [--kills 20] [--per-launch 4] [--only durable-standby,torchrun] [--job
    plain] python tests/bench/restarts.py --stubborn       # a survivor that ignores SIGTERM: one kill each
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

JOB = Path(__file__).with_name("restarts_job.py")
BIN = Path(sys.executable).parent
WORKERS = 2
PHASES = ("detection", "teardown", "rendezvous", "process", "imports", "group", "restore", "step")
_TORCH = ["--standalone", f"--nproc-per-node={WORKERS}", "--max-restarts=100000", "--monitor-interval=0.1"]
_ACCELERATE = [
    "launch", "--multi_gpu", "--num_processes", str(WORKERS), "--num_machines", "1", "--mixed_precision",
    "no", "--dynamo_backend", "no", "--max_restarts", "100000", "--monitor_interval", "0.1",
]  # fmt: skip
LAUNCHERS: dict[str, list[str]] = {
    "durable": [f"{BIN}/durable", "launch", f"--nproc-per-node={WORKERS}"],
    "durable-standby": [f"{BIN}/durable", "launch", f"--nproc-per-node={WORKERS}", f"--standby={WORKERS}"],
    "torchrun": [f"{BIN}/torchrun", *_TORCH],
    "torchrun-durable": [
        f"{BIN}/torchrun", *_TORCH[1:], "--rdzv-backend=durable", "--rdzv-endpoint=localhost:0",
    ],
    "accelerate": [f"{BIN}/accelerate", *_ACCELERATE],
    "accelerate-durable": [
        f"{BIN}/accelerate", *_ACCELERATE, "--rdzv_backend", "durable", "--main_process_port", "0",
    ],
}  # fmt: skip
#: What torch's agent logs when it has seen a failure.
_SEEN = re.compile(rb"Sending process|failed \(exitcode|Received Signals")

Seconds = float
Marks = list[dict[str, Any]]


def started(pid: int) -> Seconds | None:
    """When a process was made, by the monotonic clock; to 10 ms."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    ticks = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return ticks - time.clock_gettime(time.CLOCK_BOOTTIME) + time.monotonic()


def carrying(mark: str) -> dict[int, Seconds]:
    """Living processes that inherited ``RESTARTS_ID=mark``, and when they were made."""
    wanted, found = f"RESTARTS_ID={mark}".encode(), {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                state = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0]
                at = started(int(entry.name))
                if state not in (b"Z", b"X") and at is not None:
                    found[int(entry.name)] = at
    return found


@dataclass
class Launch:
    """One launcher with its workers, from start to end."""

    name: str
    args: argparse.Namespace
    folder: Path
    mark: str
    memory: tempfile.TemporaryDirectory[str]
    process: subprocess.Popen[bytes] = field(init=False)
    seen: list[Seconds] = field(default_factory=list)
    facts: list[tuple[Seconds, str]] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)
    stale: set[int] = field(default_factory=set)
    _marks: Marks = field(default_factory=list)
    _read: int = 0

    def start(self) -> None:
        job = [
            str(JOB),
            self.args.job,
            "--root",
            str(self.folder / "run"),
            "--state-mb",
            str(self.args.state_mb),
        ]
        job += ["--memory", self.memory.name, *(["--stubborn"] if self.args.stubborn else [])]
        environ = {
            **os.environ, "OMP_NUM_THREADS": "1", "RESTARTS_MARKS": str(self.folder / "marks"),
            "RESTARTS_ID": self.mark, "TORCH_CPP_LOG_LEVEL": "ERROR", "TMPDIR": str(self.folder),
        }  # fmt: skip
        self.process = subprocess.Popen(
            [*LAUNCHERS[self.name], *job], env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        for target in (self._read_log, self._read_facts):
            threading.Thread(target=target, daemon=True).start()

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    def marks(self) -> Marks:
        """All so far; only what is new is read, for this process shares the machine it measures."""
        with contextlib.suppress(FileNotFoundError), (self.folder / "marks").open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
            self._read += len(whole + newline)
            self._marks += map(json.loads, whole.splitlines())
        return self._marks

    def stop(self) -> int:
        """As an operator would, then by force; how many processes were left by the launcher itself."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(90)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._ended.set()
        time.sleep(0.3)
        left = carrying(self.mark)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(left)

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        with (self.folder / "log").open("ab", buffering=0) as log:
            for line in self.process.stderr:
                log.write(b"%.3f " % time.monotonic() + line)
                if _SEEN.search(line):
                    self.seen.append(time.monotonic())

    def _read_facts(self) -> None:
        """Phases of ``durable launch`` as they come; polled, for the file is replaced at each change."""
        if not self.name.startswith("durable"):
            return
        path, last = None, None
        while not self._ended.wait(0.002):
            if path is None:
                path = self._facts_path()
                continue
            with contextlib.suppress(OSError):
                stat = path.stat()
                if last != (stat.st_ino, stat.st_mtime_ns):
                    last = (stat.st_ino, stat.st_mtime_ns)
                    found = json.loads(path.read_bytes())
                    at = found["since"] - time.time() + time.monotonic()
                    self.facts.append((at, found["phase"]))

    def _facts_path(self) -> Path | None:
        for pid in carrying(self.mark):
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    if line.startswith(b"DURABLE_RUN_DIR="):
                        return Path(os.fsdecode(line.partition(b"=")[2])) / "facts.json"
        return None


def until(true: Callable[[], Any], seconds: Seconds) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = true()
        if found:
            return found
        time.sleep(0.02)
    return None


def trains(launch: Launch, since: Seconds, steps: int) -> Marks | None:
    """The marks of the newest group, once each of its ranks has made ``steps`` steps since then."""
    fresh = list(itertools.takewhile(lambda each: each["at"] > since, reversed(launch.marks())))[::-1]
    done = {rank: [e for e in fresh if e["rank"] == rank and e["what"] == "step"] for rank in range(WORKERS)}
    return fresh if all(len(lines) >= steps for lines in done.values()) else None


def one_kill(launch: Launch, chance: random.Random) -> dict[str, Any]:
    """Kill one worker; what came of it. ``clean`` is false when another try was needed, or none helped."""
    steps = [each for each in launch.marks() if each["what"] == "step"]
    victim = 1 if launch.args.stubborn else chance.randrange(WORKERS)
    pid = next(each["pid"] for each in reversed(steps) if each["rank"] == victim)
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    old = {each["pid"] for each in steps[-2 * WORKERS :]}
    fresh = until(lambda: trains(launch, killed, 1), launch.args.deadline)
    new = [e["at"] for e in launch.marks() if e["what"] == "script" and e["pid"] not in old]
    restarted = next((at - killed for at in new if at > killed), None)
    if fresh is None:
        return {"clean": False, "why": "no new step within the deadline", "restarted": restarted}
    groups = {
        rank: {e["pid"] for e in fresh if e["rank"] == rank and e["pid"] != pid} for rank in range(WORKERS)
    }
    workers = {e["pid"]: e for e in fresh if e["what"] == "step" and e["pid"] not in old}
    tries = max(len(pids - old) for pids in groups.values())
    made = {each: started(each) for each in workers}
    first = min((at for at in made.values() if at is not None), default=killed)
    stale = {each for each, at in carrying(launch.mark).items() if at < killed - 0.02} - {launch.process.pid}
    stale -= {*_helpers(launch), *launch.stale}
    launch.stale |= stale
    total = max(_first(fresh, rank, "step", old)["at"] for rank in range(WORKERS)) - killed
    lost = max(e["step"] for e in steps) - min(
        _first(fresh, rank, "restored", old)["step"] for rank in range(WORKERS)
    )
    return {
        "clean": tries == 1, "tries": tries, "orphans": len(stale), "total": total, "steps_lost": lost,
        "restarted": restarted,
        **_split(launch, fresh, old, killed, first),
    }  # fmt: skip


def _helpers(launch: Launch) -> Iterator[int]:
    """The launcher's own processes, which outlive its groups."""
    for pid in carrying(launch.mark):
        with contextlib.suppress(OSError):
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"\0RANK=" not in environ and b"DURABLE_ATTEMPT=" not in environ and b"sleep" not in line:
                yield pid


def _first(marks: Marks, rank: int, what: str, old: set[int]) -> dict[str, Any]:
    return next(e for e in marks if e["rank"] == rank and e["what"] == what and e["pid"] not in old)


def _split(launch: Launch, fresh: Marks, old: set[int], killed: Seconds, made: Seconds) -> dict[str, Seconds]:
    """When each phase was over, the slowest rank counting; then the differences."""
    over = {
        phase: max(_first(fresh, rank, what, old)["at"] for rank in range(WORKERS))
        for phase, what in (
            ("process", "script"), ("imports", "imported"), ("group", "group"), ("restore", "restored"),
            ("step", "step"),
        )
    }  # fmt: skip
    phases = {phase: at for at, phase in reversed(launch.facts) if at > killed - 0.001}
    if phases:
        over["detection"] = phases.get("stopping", killed)
        over["teardown"] = phases.get("rendezvous", phases.get("backoff", over["detection"]))
        over["rendezvous"] = phases.get("starting", made)
    else:
        over["detection"] = next((at for at in launch.seen if at > killed), killed)
        over["rendezvous"] = over["teardown"] = made
    at, split = killed, {}
    for phase in PHASES:
        split[phase] = over[phase] - at
        at = over[phase]
    return split


def block(
    name: str, args: argparse.Namespace, kills: int, chance: random.Random
) -> tuple[list[dict[str, Any]], int]:
    """``kills`` kills of one launch, or of more where it does not come back: what each gave, and how many
    processes launchers left."""
    results: list[dict[str, Any]] = []
    left = 0
    while len(results) < kills:
        with tempfile.TemporaryDirectory(
            prefix="restarts-", dir=args.dir, ignore_cleanup_errors=True
        ) as folder:
            memory = tempfile.TemporaryDirectory(prefix="restarts-", dir=args.memory)
            mark = f"{os.getpid()}-{chance.getrandbits(32):x}"
            launch = Launch(name, args, Path(folder), mark, memory)
            launch.start()
            try:
                results += _kills(launch, kills - len(results), chance)
            finally:
                left += launch.stop()
                memory.cleanup()
                if args.keep:
                    shutil.copytree(
                        folder, Path(args.keep) / f"{name}-{launch.mark}",
                        ignore=lambda folder, names: [n for n in names if n not in ("log", "marks")],
                    )  # fmt: skip
    return results, left


def _ready(launch: Launch, since: Seconds) -> bool:
    return not launch.lives or trains(launch, since, launch.args.steps) is not None


def _kills(launch: Launch, kills: int, chance: random.Random) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    since = 0.0
    while len(results) < kills and (not results or results[-1]["clean"]):
        if not until(functools.partial(_ready, launch, since), 300) or not launch.lives:
            raise SystemExit(f"{launch.name} does not train:\n{(launch.folder / 'log').read_text()[-4000:]}")
        results.append(one_kill(launch, chance))
        print(launch.name, results[-1], file=sys.stderr, flush=True)
        since = time.monotonic()
    return results


def summed(results: list[dict[str, Any]], left: int) -> dict[str, Any]:
    clean = [each for each in results if each["clean"]]

    def spread(key: str) -> dict[str, float]:
        values = sorted(each[key] for each in clean)
        return {
            "median": round(statistics.median(values), 3),
            "least": round(values[0], 3),
            "most": round(values[-1], 3),
        }

    found: dict[str, Any] = {
        "clean": f"{len(clean)} of {len(results)}",
        "orphans": sum(each.get("orphans", 0) for each in results),
        "left_by_the_launcher": left,
    }
    if clean:
        found.update({key: spread(key) for key in ("total", "steps_lost", *PHASES)})
    known = [each["restarted"] for each in results if each.get("restarted") is not None]
    if known:
        found["restarted"] = round(statistics.median(known), 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--per-launch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=26, help="steps of each rank before a kill")
    parser.add_argument("--job", choices=("lightning", "plain"), default="lightning")
    parser.add_argument("--state-mb", type=float, default=100.0)
    parser.add_argument("--deadline", type=float, default=60.0)
    parser.add_argument("--only", default=",".join(LAUNCHERS))
    parser.add_argument("--memory", default="/dev/shm")
    parser.add_argument("--dir", default=None)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stubborn", action="store_true")
    parser.add_argument("--keep", default="", help="a directory that logs and marks are copied to")
    args = parser.parse_args()
    if args.stubborn:
        args.kills, args.per_launch, args.state_mb, args.deadline = 1, 1, 1.0, 90.0
    chance = random.Random(args.seed)
    names = args.only.split(",")
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    left: dict[str, int] = dict.fromkeys(names, 0)
    load = [os.getloadavg()[0]]
    while any(len(found) < args.kills for found in results.values()):
        for name in names:
            wanted = min(args.per_launch, args.kills - len(results[name]))
            found, behind = block(name, args, wanted, chance)
            results[name] += found
            left[name] += behind
            load.append(os.getloadavg()[0])
    document: Mapping[str, Any] = {
        "job": args.job, "state_mb": args.state_mb, "workers": WORKERS, "stubborn": args.stubborn,
        "load": {"first": load[0], "median": statistics.median(load), "most": max(load)},
        "launchers": {name: summed(results[name], left[name]) for name in names},
    }  # fmt: skip
    ours, theirs = (
        document["launchers"].get(name, {}).get("total") for name in ("durable-standby", "torchrun")
    )
    if ours and theirs:
        document = {**document, "torchrun_over_standby": round(theirs["median"] / ours["median"], 2)}
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
