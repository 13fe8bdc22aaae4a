"""The main job, shown: the example trained uninterrupted, under SIGKILL, and over damaged checkpoints.

Three histories of one training script must end in the same bits. Every figure in the table is read from
what the runs left behind (their journals, ledgers and metrics), nothing from what they claim. Exits 1 if
any final weight or optimizer bit differs, or any sample was repeated or skipped.

    python tools/demo.py [--steps 120] [--kills 8] [--seed N] [--json OUT]
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HOME = Path(__file__).parents[1]
EXAMPLE = HOME / "examples" / "lightning_code_lm.py"
#: instants inside a save at which the process kills itself; the count leaves each life some progress.
INSIDE_SAVES = ("K6:2", "K3:3", "K12:2", "K13:3", "K7:3", "K1:3", "K10:2", "K15:2")
LIFE_LIMIT_S = 120.0


@dataclass
class Outcome:
    """One history, from its first process to the one that finished."""

    name: str
    kills: list[str] = field(default_factory=list)
    steps_lost: list[int] = field(default_factory=list)
    restore_s: list[float] = field(default_factory=list)
    back_s: list[float] = field(default_factory=list)
    checkpoints: int = 0
    bytes: int = 0
    damaged: str = ""
    found: bool | None = None  # whether the damage was; None: there was none
    audit: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)


class Run:
    """The example under one root; lives of it are started, killed and started again."""

    def __init__(self, name: str, base: Path, steps: int, every: int) -> None:
        self.root, self.logs, self.result = base / name, base / f"{name}-logs", base / f"{name}.json"
        self.log = base / f"{name}.log"
        self.outcome = Outcome(name)
        self._lives = 0
        self._command = [
            sys.executable, "-m", "durable_core.testing.crash", str(EXAMPLE), "--root", str(self.root),
            "--steps", str(steps), "--every", str(every), "--workers", "2",
            "--logs", str(self.logs), "--result", str(self.result),
        ]  # fmt: skip

    def live(self, *, crash: str = "", kill_after: float | None = None) -> int:
        """One process from start to death; the exit status (negative: the signal it died of).

        ``crash`` names the instant at which it kills itself; ``kill_after`` the seconds from its first
        commit until it is killed from outside.
        """
        environ = {**os.environ, "DURABLE_TEST_CRASH": crash, "PYTHONWARNINGS": "ignore"}
        started, before, waiting = time.monotonic(), self.committed_step(), True
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                self._command, env=environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True, cwd=self.log.parent,
            )  # fmt: skip
        self._lives += 1
        try:
            while process.poll() is None:
                if self.outcome.kills and waiting and self._trained():
                    self.outcome.back_s.append(time.monotonic() - started)
                    self.outcome.restore_s.append(time.time() - self._claimed_at())
                    waiting = False
                if kill_after is not None and self.committed_step() > before:
                    time.sleep(kill_after)
                    process.kill()
                if time.monotonic() - started > LIFE_LIMIT_S:
                    raise SystemExit(f"{self.outcome.name}: alive after {LIFE_LIMIT_S:.0f} s, see {self.log}")
                time.sleep(0.02)
        finally:
            kill_group(process.pid)
        return process.wait()

    def died(self, how: str) -> None:
        self.outcome.kills.append(how)
        reached = self._last_step() if self._trained() else 0
        self.outcome.steps_lost.append(max(0, reached - self.committed_step()))

    def finish(self) -> Outcome:
        """Runs on to the end and reads what the history left behind."""
        status = self.live()
        if status != 0:
            tail = "".join(self.log.read_text(errors="replace").splitlines(keepends=True)[-30:])
            raise SystemExit(f"{self.outcome.name}: the example ended with {status}\n{tail}")
        listed = durable("ls", self.root)["checkpoints"]
        self.outcome.checkpoints = len(listed)
        self.outcome.bytes = sum(entry["bytes_written"] for entry in listed if entry["bytes_written"])
        self.outcome.audit = durable("audit", self.root)
        self.outcome.result = json.loads(self.result.read_text())
        return self.outcome

    def committed_step(self) -> int:
        """The step of the newest commit in the journal; -1 when there is none."""
        commits = self._records("checkpoint.committed")
        return max((int(record["payload"]["step"]) for record in commits), default=-1)

    def corrupt_steps(self) -> list[int]:
        """The steps of the checkpoints that the run itself found damaged, and put down in the journal."""
        steps = {r["payload"]["c"]: r["payload"]["step"] for r in self._records("checkpoint.committed")}
        return [steps[record["payload"]["c"]] for record in self._records("checkpoint.corrupt")]

    def _claimed_at(self) -> float:
        """When the present life claimed its generation, seconds since the epoch."""
        return float(self._records("generation.started")[-1]["time"])

    def _records(self, kind: str) -> list[dict[str, Any]]:
        records = [json.loads(path.read_bytes()) for path in sorted((self.root / "journal").glob("*.json"))]
        return [record for record in records if record["kind"] == kind]

    def newest_shards(self) -> list[Path]:
        newest = max(p for p in (self.root / "checkpoints").iterdir() if (p / "manifest.json").exists())
        return sorted(newest.glob("*.safetensors"))

    def _metrics(self) -> Iterable[Path]:
        return self.logs.glob("lightning_logs/version_*/metrics.csv")

    def _trained(self) -> bool:
        """Whether the present life has logged a step of its own."""
        return sum(1 for _ in self._metrics()) >= self._lives

    def _last_step(self) -> int:
        """Optimizer steps completed by the latest life, from its own metrics; the last line may be torn."""
        paths = sorted(self._metrics(), key=lambda path: int(path.parent.name.split("_")[1]))
        if not paths:
            return 0
        with paths[-1].open(newline="") as file:
            rows = [row.get("step") or "" for row in csv.DictReader(file)]
        return max((int(step) + 1 for step in rows if step.isdigit()), default=0)


def kill_group(leader: int) -> None:
    """Whoever of the process group still lives (loader workers) goes too."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def durable(command: str, root: Path) -> dict[str, Any]:
    """One JSON document from the command line tool; exit status 1 means it has bad news to tell."""
    call = [sys.executable, "-c", "from durable_core.cli import main; main()", command, str(root), "--json"]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"durable {command} {root}: exit {done.returncode}\n{done.stderr}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


# --- the three ways -----------------------------------------------------------------------------------


def uninterrupted(run: Run) -> Outcome:
    return run.finish()


def killed(run: Run, kills: int, chance: random.Random) -> Outcome:
    """Half of the kills at a named point inside a save, half at a random instant after a commit."""
    for number in range(kills):
        crash = INSIDE_SAVES[number // 2 % len(INSIDE_SAVES)] if number % 2 == 0 else ""
        delay = chance.uniform(0.0, 0.8)
        status = run.live(crash=crash, kill_after=None if crash else delay)
        if status == 0:
            break  # it finished before the kill came
        if status != -signal.SIGKILL:
            raise SystemExit(f"{run.outcome.name}: died of {status}, not of SIGKILL; see {run.log}")
        run.died(crash.partition(":")[0] or f"after {delay:.2f} s")
    return run.finish()


def damaged(run: Run, damage: Callable[[Path, random.Random], str], chance: random.Random) -> Outcome:
    """Killed after its fourth commit, its newest checkpoint harmed, started again."""
    run.live(crash="K15:4")
    shard = chance.choice(run.newest_shards())
    run.died("K15")
    harmed = run.committed_step()
    run.outcome.damaged = f"{damage(shard, chance)} in the checkpoint of step {harmed}"
    outcome = run.finish()
    outcome.found = run.corrupt_steps() == [harmed]
    return outcome


def flip(path: Path, chance: random.Random) -> str:
    data = bytearray(path.read_bytes())
    bit = chance.randrange(len(data) * 8)
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    return f"bit {bit} flipped"


def truncate(path: Path, chance: random.Random) -> str:
    size = path.stat().st_size
    kept = chance.randrange(size)
    os.truncate(path, kept)
    return f"cut from {size} to {kept} bytes"


# --- the table ----------------------------------------------------------------------------------------


def same(outcome: Outcome, reference: Outcome) -> bool:
    keys = ("weights", "optimizer", "step", "samples")
    return all(outcome.result[key] == reference.result[key] for key in keys)


def exact(outcome: Outcome) -> bool:
    """No sample twice, none left out, and no damage that went unnoticed."""
    return outcome.audit["repeated"] == outcome.audit["skipped"] == 0 and outcome.found is not False


def spread(seconds: list[float]) -> str:
    ends = sorted({f"{min(seconds):.1f}", f"{max(seconds):.1f}"}, key=float) if seconds else ["-"]
    return " to ".join(ends)


def verdict(outcome: Outcome, reference: Outcome) -> str:
    if outcome is reference:
        return "reference"
    return "[green]yes[/]" if same(outcome, reference) else "[red]NO[/]"


def show(outcomes: list[Outcome], console: Console) -> None:
    """One column per history, one row per figure."""
    reference = outcomes[0]
    rows: dict[str, Callable[[Outcome], str]] = {
        "SIGKILLs": lambda o: str(len(o.kills)),
        "steps lost per kill": lambda o: " ".join(map(str, o.steps_lost)) or "-",
        "restore, s": lambda o: spread(o.restore_s),
        "process start to first step, s": lambda o: spread(o.back_s),
        "MB written": lambda o: f"{o.bytes / 1e6:.1f}",
        "damage found": lambda o: "-" if o.found is None else "yes" if o.found else "[red]NO[/]",
        "samples": lambda o: f"{o.audit['samples']:,}",
        "repeated / skipped": lambda o: f"{o.audit['repeated']} / {o.audit['skipped']}",
        "final weights, sha256": lambda o: o.result["weights"][:16],
        "optimizer state, sha256": lambda o: o.result["optimizer"][:16],
        "final weights identical": lambda o: verdict(o, reference),
    }
    table = Table(title="One training run, told four times", title_justify="left")
    for column in ("", *(outcome.name for outcome in outcomes)):
        table.add_column(column, no_wrap=True)
    for label, figure in rows.items():
        table.add_row(label, *map(figure, outcomes))
    console.print(table)
    for outcome in outcomes:
        if outcome.kills:
            console.print(f"{outcome.name}: killed at {', '.join(outcome.kills)}. {outcome.damaged}")
    console.print("restore: from claiming the run to its first new step")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--every", type=int, default=5, help="steps between checkpoints")
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0, help="of kills and damage, not of the training")
    parser.add_argument("--base", type=Path, default=HOME / ".demo", help="emptied first")
    parser.add_argument("--json", type=Path, help="write every figure here as well")
    args = parser.parse_args()

    shutil.rmtree(args.base, ignore_errors=True)
    args.base.mkdir(parents=True)
    started = time.monotonic()
    console = Console(width=max(120, Console().width), highlight=False)
    console.print(f"Training {args.steps} steps, a checkpoint every {args.every}: a minute or three.")

    def run(name: str) -> Run:
        return Run(name, args.base, args.steps, args.every)

    jobs: list[Callable[[], Outcome]] = [
        lambda: uninterrupted(run("uninterrupted")),
        lambda: killed(run("killed"), args.kills, random.Random(args.seed)),
        lambda: damaged(run("bit-flipped"), flip, random.Random(args.seed + 1)),
        lambda: damaged(run("truncated"), truncate, random.Random(args.seed + 2)),
    ]
    with ThreadPoolExecutor(max_workers=2) as pool:
        outcomes = [future.result() for future in [pool.submit(job) for job in jobs]]

    show(outcomes, console)
    good = all(same(outcome, outcomes[0]) and exact(outcome) for outcome in outcomes)
    took = time.monotonic() - started
    conclusion = "All histories are the same run." if good else "NOT the same run."
    console.print(f"Took {took:.0f} s. {conclusion}")
    if args.json:
        report = {"seconds": took, "good": good, "histories": [asdict(outcome) for outcome in outcomes]}
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
