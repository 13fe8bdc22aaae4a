"""Kills of one of two workers, or of one of two agents, again and again, under plain torchrun with the plugin
(level 1) or ``durable launch`` (level 2).

``python tests/torture/launcher_kills.py workers|agents [--level 1] [--kills 20] [--seed 1]`` prints JSON: how
many restarts were clean (one new attempt, all ranks stepping), the seconds from each kill to the first new
step, and whether weights and samples are those of an uninterrupted run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "launch"))
from torchrun_runs import SCRIPT, Logs, agent, children, cleaned, free_port, until

WAIT_S = 120.0


def control(directory: Path, steps: int) -> Logs:
    logs = Logs(directory / "control", 2)
    script = (str(SCRIPT), str(directory / "control-root"), str(steps), str(logs.prefix))
    process = agent(
        directory, "control", "--rdzv-endpoint", "localhost:0", "--nproc-per-node", "2", script=script
    )
    assert process.wait(600) == 0, (directory / "control.out").read_text()
    return logs


class Kills:
    def __init__(self, directory: Path, steps: int, chance: random.Random, level: int) -> None:
        self.directory, self.steps, self.chance, self.level = directory, steps, chance, level
        self.logs = Logs(directory / "run", 2)
        self.script = (str(SCRIPT), str(directory / "root"), str(steps), str(self.logs.prefix), "0.05")
        self.times: list[float] = []
        self.clean = 0

    def stepping(self, not_pids: set[int]) -> float | None:
        """When the last rank made its first step in a process that is not one of ``not_pids``."""
        steps = self.logs.stepping()
        if steps is None or any(line["pid"] in not_pids for line in steps.values()):
            return None
        return max(line["at"] for line in steps.values())

    def one(self, kill: list[int], victim: str) -> None:
        """Kill these processes while all step, and wait for all to step again."""
        before = self.logs.attempts()
        pids = {lines[-1]["pid"] for lines in (self.logs.of(0), self.logs.of(1))}
        killed = time.time()
        for pid in kill:
            os.kill(pid, signal.SIGKILL)
        self.killed(kill)
        try:
            stepped = until(lambda: self.stepping(pids), WAIT_S, "steps after the kill")
        except TimeoutError as error:
            print(f"{victim}: {error}", file=sys.stderr)
            raise
        attempts = len(self.logs.attempts() - before)
        self.times.append(stepped - killed)
        self.clean += attempts == 1
        print(f"{victim}: {stepped - killed:.2f} s, {attempts} attempt(s)", file=sys.stderr)

    def killed(self, pids: list[int]) -> None:
        """Called at once after a kill."""

    def report(self, wanted: Logs, kills: int) -> dict[str, object]:
        return {
            "kills": kills,
            "clean": self.clean,
            "kill_to_first_step_s": {
                "median": round(statistics.median(self.times), 2), "max": round(max(self.times), 2),
            },
            "generations": self.logs.opened()[-1],
            "weights_equal": self.logs.done() == wanted.done() != "",
            "samples_equal": self.logs.samples() == wanted.samples(),
        }  # fmt: skip


class OfWorkers(Kills):
    def run(self, kills: int) -> None:
        process = agent(
            self.directory, "agent", "--rdzv-endpoint", "localhost:0", "--nproc-per-node", "2",
            "--max-restarts", str(kills + 20), script=self.script, level=self.level,
        )  # fmt: skip
        for number in range(kills):
            until(lambda: self.logs.stepping(), WAIT_S, "the first steps")
            time.sleep(self.chance.random() * 0.3)
            rank = number % 2
            self.one([self.logs.of(rank)[-1]["pid"]], f"rank {rank}")
        assert process.wait(600) == 0


class OfAgents(Kills):
    """Each of two agents in turn, so the host of the rendezvous too; then it is started again. Half of the
    times its worker is lost with it, as when the machine is; else the worker goes on until it is fenced."""

    def start(self, node: int) -> None:
        self.agents[node] = agent(
            self.directory, f"agent{node}", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id", "two",
            "--nnodes", "2", "--nproc-per-node", "1", "--local-addr", "127.0.0.1", "--max-restarts", "100",
            script=self.script, level=self.level,
        )  # fmt: skip

    def run(self, kills: int) -> None:
        self.port = free_port()
        self.agents: dict[int, subprocess.Popen[bytes]] = {}
        for node in (0, 1):
            self.start(node)
        for number in range(kills):
            until(lambda: self.logs.stepping(), WAIT_S, "the first steps")
            time.sleep(self.chance.random() * 0.3)
            node, with_worker = number % 2, number // 2 % 2 == 0
            victim = self.agents[node].pid
            workers = children(victim) if with_worker else []
            self.one([victim, *workers], f"agent {node}{' and its worker' if with_worker else ''}")
        for process in self.agents.values():
            assert process.wait(600) == 0

    def killed(self, pids: list[int]) -> None:
        node = next(node for node, process in self.agents.items() if process.pid == pids[0])
        self.agents[node].wait()
        self.start(node)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("workers", "agents"))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--level", type=int, choices=(1, 2), default=1)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="durable-kills-") as name:
        directory = asked.keep or Path(name)
        directory.mkdir(exist_ok=True)
        steps = 40 * asked.kills
        with cleaned(directory):
            wanted = control(directory, steps)
            kind = {"workers": OfWorkers, "agents": OfAgents}[asked.what]
            kills = kind(directory, steps, random.Random(asked.seed), asked.level)
            kills.run(asked.kills)
            told = {"what": asked.what, "level": asked.level, **kills.report(wanted, asked.kills)}
            print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
