"""SIGKILLs of processes of a job drawn at random, under a launcher; the job is a script that uses Accelerate
and knows nothing of durable training.

``python tests/torture/accelerate_kills.py accelerate|torchrun|durable [--script never|documented] [--resume]
[--kills 20] [--seed 1]`` prints JSON: what was killed, and whether weights and samples are those of a run
that was left alone. What a launcher does not start again (itself, above all) is started again here, with the
same command; ``--resume`` adds the flag that the script's documentation asks for.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
from durable_core.engine.audit import audit
from durable_core.engine.inspect import open_run
from tests.launch.torchrun_runs import children, cleaned, marked

SCRIPTS = Path(__file__).parents[1] / "accelerate" / "scripts"
PYTHON = sys.executable
#: Seconds without a new line, or until the end, after which the job is said to hang.
WAIT_S = 300.0
#: Part of the kills that come while processes still start, and the longest that these wait, in seconds.
EARLY, EARLY_S = 0.25, 6.0

#: launcher -> what comes before the script. Without ``--`` torchrun takes the script's flags for its own.
#: Its own rendezvous would let a restarted gloo group connect to the dead one, and hang.
LAUNCHERS = {
    "accelerate": ("accelerate.commands.launch", "--cpu", "--num_processes", "1", "-m", "accelerate_durable"),
    "torchrun": (
        "torch.distributed.run", "--rdzv-backend", "durable", "--rdzv-endpoint", "localhost:0",
        "--nproc-per-node", "2", "--max-restarts", "1000", "-m", "accelerate_durable", "--",
    ),
    "durable": (
        "durable_core.cli", "launch", "--nproc-per-node", "2", "--max-restarts", "1000", "--no-preflight",
        "-m", "accelerate_durable",
    ),
}  # fmt: skip
STYLES = {
    "never": ("never_checkpoints.py",),
    "documented": ("documented_style.py", "--checkpointing-steps", "7", "--output-dir", "out"),
}


@dataclass
class Job:
    """``script`` under ``launcher`` in ``directory``, started again for as long as it does not end well."""

    directory: Path
    launcher: str
    script: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    killed: collections.Counter[str] = field(default_factory=collections.Counter)
    starts: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def root(self) -> Path:
        return self.directory / "out" / "durable"

    def start(self) -> None:
        name, *flags = self.script
        again = self.again if self.starts and list((self.directory / "out").glob("step_*")) else ()
        files = ("--log", f"{self.directory}/log", "--weights", f"{self.directory}/weights")
        env = {
            **os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true",
            "ACCELERATE_DURABLE_ROOT": str(self.root), "ACCELERATE_DURABLE_EVERY_N_STEPS": "5",
            "ACCELERATE_DURABLE_BACKLOG": "delay",
        }  # fmt: skip
        script = (str(SCRIPTS / name), *flags, *files, *self.arguments, *again)
        with (self.directory / "output").open("ab") as out:
            self.process = subprocess.Popen(
                [PYTHON, "-m", *LAUNCHERS[self.launcher], *script],
                cwd=self.directory, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.starts += 1

    def lines(self) -> int:
        with contextlib.suppress(FileNotFoundError):
            return (self.directory / "log.0").read_bytes().count(b"\n")
        return 0

    def ended(self) -> bool:
        """The job has ended well. When it ended otherwise, or is not there yet, it is started again, and what
        is left of it is ended first: whoever runs jobs does that."""
        code = None if self.process is None else self.process.poll()
        if code == 0:
            return True
        if self.process is None or code is not None:
            if self.starts > self.killed.total():
                raise RuntimeError(f"ended with {code} unasked; {self.directory}/output says why")
            self.sweep()
            self.start()
        return False

    def sweep(self) -> None:
        while left := marked(self.directory):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def until(self, reached: Callable[[], bool]) -> bool:
        """``False``: the job has ended before."""
        deadline, seen = time.monotonic() + WAIT_S, self.lines()
        while not reached():
            if self.ended():
                return False
            if self.lines() != seen:
                deadline, seen = time.monotonic() + WAIT_S, self.lines()
            if time.monotonic() > deadline:
                raise TimeoutError(f"no new line in {WAIT_S:g} s; {self.directory}/output says why")
            time.sleep(0.01)
        return True

    def kill(self, chance: random.Random, stretch: int) -> bool:
        """Kill one process of the job, after up to ``stretch`` further lines or while it still starts.
        ``False``: it has ended before."""
        if chance.random() < EARLY:
            instant = time.monotonic() + chance.random() * EARLY_S
            alive = self.until(lambda: time.monotonic() > instant)
        else:
            wanted = self.lines() + chance.randint(1, stretch)
            alive = self.until(lambda: self.lines() >= wanted)
        found = marked(self.directory)
        if not alive or not found:
            return alive
        victim = chance.choice(sorted(found))
        self.killed[self.kind(victim)] += 1
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        return True

    def kind(self, pid: int) -> str:
        assert self.process is not None
        if pid == self.process.pid:
            return "launcher"
        return "worker" if pid in children(self.process.pid) else "other"

    def weights(self) -> list[dict[str, torch.Tensor]]:
        return [torch.load(path) for path in sorted(self.directory.glob("weights.*"))]


def equal(found: Sequence[dict[str, torch.Tensor]], wanted: Sequence[dict[str, torch.Tensor]]) -> bool:
    return len(found) == len(wanted) > 0 and all(
        one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
        for one, other in zip(found, wanted, strict=True)
    )


def campaign(
    directory: Path, launcher: str, style: str, *, kills: int, seed: int, stretch: int = 60,
    resume: bool = False, arguments: tuple[str, ...] = (),
) -> dict[str, object]:  # fmt: skip
    chance = random.Random(seed)
    again = ("--resume-from-checkpoint", "latest") if resume else ()
    control, job = (
        Job(directory / name, launcher, STYLES[style], arguments, more)
        for name, more in (("control", ()), ("job", again))
    )
    for each in (control, job):
        (each.directory / "out").mkdir(parents=True)
    control.until(lambda: False)
    while job.killed.total() < kills and job.kill(chance, stretch):
        print(f"{job.killed.total()} killed, {job.lines()} lines", file=sys.stderr)
    job.until(lambda: False)
    reader = open_run(job.root)
    found = audit(reader).to_json()
    return {
        "launcher": launcher, "script": style, "resume": resume, "kills": job.killed.total(),
        "killed": dict(job.killed), "starts": job.starts, "starts_of_control": control.starts,
        "generations": reader.state.generation, "weights_equal": equal(job.weights(), control.weights()),
        **{name: found[name] for name in ("steps", "samples", "repeated", "skipped")},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("launcher", choices=LAUNCHERS)
    parser.add_argument("--script", choices=STYLES, default="never")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="durable-kills-") as name:
        directory = asked.keep or Path(name)
        samples = ("--samples", str(asked.kills * 120), "--workers", "2", "--accumulate", "2")
        with cleaned(directory):
            told = campaign(
                directory, asked.launcher, asked.script, kills=asked.kills, seed=asked.seed,
                resume=asked.resume, arguments=samples,
            )  # fmt: skip
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
