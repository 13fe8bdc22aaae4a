"""L6. Where one scenario is played: its directories, the launcher it starts, and what is waited for."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from durable_core.clock import Clock, SystemClock
from durable_core.data.manifest import build, save
from durable_core.engine.inspect import Reader, open_run
from durable_core.errors import DurableError, NotFoundError
from durable_core.launch.agent.sweeping import marked
from durable_core.testing.drills.orders import Injection, Mark, Orders, read_marks

RECORDS, OBJECTS = 48, 4
POLL_S = 0.02
#: In which another controller has the office when one was killed.
TAKEOVER_S = 30.0
#: A worker may be held up by its framework while it ends; what it did is recorded by then.
EXITING = ("--exit-limit", "30")
#: Not one of the names that are told to each worker anew: a standby and what it forks have it too.
MARK = "DRILL_GROUND"
SMALL = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


class DrillFailed(DurableError):
    """What had to come of the scenario did not; ``check``: in one word, what was waited for."""

    def __init__(self, message: str, *, check: str = "end") -> None:
        super().__init__(message)
        self.check = check


@dataclass
class Launched:
    """One ``durable launch``. ``began``: monotonic seconds."""

    process: subprocess.Popen[bytes]
    output: Path
    began: float

    @property
    def pid(self) -> int:
        return self.process.pid

    def said(self, last: int = 3000) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace")[-last:]


@dataclass
class Ground:
    """``base`` is new and this drill's own. ``limit_s`` bounds every wait."""

    base: Path
    world: int = 2
    limit_s: float = 180.0
    orders: Orders = field(init=False)
    clock: Clock = field(default_factory=SystemClock)
    launches: list[Launched] = field(default_factory=list)
    #: in front of every command: into another namespace, for instance
    prefix: tuple[str, ...] = ()
    #: where the root is seen from here, if it is elsewhere for the job
    seen_at: str = ""
    chance: random.Random = field(default_factory=lambda: random.Random(0))

    def __post_init__(self) -> None:
        for name in ("marks", "data"):
            (self.base / name).mkdir(parents=True)
        make_records(self.base / "data")
        self.orders = Orders(
            root=str(self.base / "run"), marks=str(self.base / "marks"), data=str(self.base / "data")
        )

    # --- starting and ending -----------------------------------------------------------------

    def order(self, *injections: Injection, **changes: Any) -> None:
        """What every launch from here on trains."""
        self.orders = replace(self.orders, injections=injections, **changes)

    def launch(self, *flags: str, world: int | None = None, without: str = "") -> Launched:
        """``durable launch`` with the job, in the background, its workers from standbys unless ``flags`` say
        otherwise. ``without``: a defence that launcher and controller have not."""
        count = str(world or self.world)
        taken = ("-m", "durable_core.testing.drills.unguarded", without) if without else ("-m",)
        return self.start(
            sys.executable, *taken, "durable_core.cli", "launch", "--root", self.orders.root,
            "--nproc-per-node", count, "--no-preflight", "--standby", count, *EXITING, *flags,
        )  # fmt: skip

    def start(self, *launcher: str) -> Launched:
        """Any launcher, with the job as its script."""
        number = len(self.launches)
        orders = self.orders.write(self.base / f"orders-{number}.json")
        command = [*self.prefix, *launcher, "-m", "durable_core.testing.drills.job", str(orders)]
        output = self.base / f"launch-{number}.out"
        environ = {**os.environ, **SMALL, MARK: str(self.base)}
        with output.open("wb") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environ,
                start_new_session=True,
            )  # fmt: skip
        launched = Launched(process, output, self.clock.monotonic())
        self.launches.append(launched)
        return launched

    def kill(self, launched: Launched) -> None:
        """The launcher and all it started, at once."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        launched.process.wait()

    def wait(self, launched: Launched) -> int:
        """Its exit status. ``DrillFailed`` at the limit."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return launched.process.wait(self.limit_s)
        raise DrillFailed(f"the launcher did not end in {self.limit_s:.0f} s; it said: {launched.said()}")

    def close(self) -> None:
        """Nothing of the drill goes on after it."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for launched in self.launches:
            launched.process.wait()

    def clear(self) -> None:
        """Its files are of no more use."""
        shutil.rmtree(self.base, ignore_errors=True)

    def processes(self, named: str = "") -> list[int]:
        """What this drill started, and what that started: by a mark in the environment. ``named``: only those
        with this in their command line."""
        pids = sorted(marked(f"{MARK}={self.base}".encode()))
        return [pid for pid in pids if named.encode() in _command(pid)]

    # --- looking -----------------------------------------------------------------------------

    def marks(self) -> list[Mark]:
        return read_marks(Path(self.orders.marks))

    def until(
        self, what: str, found: Callable[[list[Mark]], Mark | None], *, within_s: float | None = None
    ) -> Mark:
        """The first mark that ``found`` picks. ``DrillFailed`` at the limit, or when no launcher is left."""
        deadline = self.clock.monotonic() + (self.limit_s if within_s is None else within_s)
        while self.clock.monotonic() < deadline:
            over = all(each.process.poll() is not None for each in self.launches)
            mark = found(self.marks())
            if mark is not None:
                return mark
            if over:
                break
            self.clock.sleep(POLL_S)
        said = self.launches[-1].said() if self.launches else ""
        raise DrillFailed(f"waited in vain for {what}; the launcher said: {said}", check=what)

    def until_step(self, step: int, *, after: float = 0.0, rank: int | None = None) -> Mark:
        """Some rank (or ``rank``) has done ``step`` or a later one, after that time."""

        def found(marks: list[Mark]) -> Mark | None:
            done = (
                m
                for m in marks
                if m.what == "step" and m.step >= step and m.time > after and rank in (None, m.rank)
            )
            return next(done, None)

        return self.until(f"step {step}", found)

    def until_true(self, what: str, holds: Callable[[], bool], *, within_s: float | None = None) -> None:
        self.until(what, lambda marks: Mark(0.0, what, 0, 0, 0, 0) if holds() else None, within_s=within_s)

    def until_next(self, began: float, *, within_s: float) -> str:
        """A generation that was opened after ``began`` has done a step; ``""``, or that none has in that
        time: its processes are ended then."""

        def found(marks: list[Mark]) -> Mark | None:
            opened = {mark.pid for mark in marks if mark.what == "opened" and mark.time > began}
            return next((mark for mark in marks if mark.what == "step" and mark.pid in opened), None)

        try:
            self.until("the next generation", found, within_s=within_s)
        except DrillFailed as failure:
            self.kill(self.launches[-1])
            return failure.message
        return ""

    def until_reached(self, step: int) -> str:
        """As ``until_step``; ``""``, or why it was not reached."""
        try:
            self.until_step(step)
        except DrillFailed as failure:
            return failure.message
        return ""

    def until_told(self, *words: str) -> str:
        """``durable status`` says all of these words; ``""``, or what it said instead at the limit."""
        said = ""

        def told() -> bool:
            nonlocal said
            command = (sys.executable, "-m", "durable_core.cli", "status", self.orders.root, "--json")
            said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
            return all(word in said for word in words)

        try:
            self.until_true(f"status to say {words}", told)
        except DrillFailed:
            return f"status never said {words}, but {said}"
        return ""

    def at(self, root: str) -> None:
        """The run lies there from here on."""
        self.orders = replace(self.orders, root=root)

    def keep(self, run: Path) -> None:
        """What is left of the run, before the file system that it lies on is gone."""
        copy = self.base / "kept"
        shutil.copytree(run, copy)
        self.seen_at = str(copy)

    def until_epoch(self, epoch: int) -> None:
        """A controller has claimed that epoch or a later one."""
        self.until_true("taken over", lambda: self.reader.state.epoch >= epoch, within_s=TAKEOVER_S)

    @property
    def reader(self) -> Reader:
        return open_run(self.seen_at or self.orders.root)

    def has_run(self) -> bool:
        with contextlib.suppress(NotFoundError):
            return bool(self.reader.committed())
        return False

    def final(self) -> dict[str, Any] | None:
        """Step and digest of the weights at the end; ``None`` if there was no end."""
        path = Path(self.orders.marks) / "final.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def noted(self) -> dict[int, dict[str, Any]]:
        """The same after every step, of a job that was ordered to note it."""
        lines = (Path(self.orders.marks) / "noted.jsonl").read_text(encoding="utf-8").splitlines()
        return {row["step"]: row for row in map(json.loads, lines)}


def _command(pid: int) -> bytes:
    """Its command line; empty once it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def make_records(home: Path, objects: int = OBJECTS) -> None:
    """``objects`` JSON-lines files of ``RECORDS`` records each, and their manifest."""
    paths: Sequence[Path] = [home / f"part-{number}.jsonl" for number in range(objects)]
    for number, path in enumerate(paths):
        rows = [
            {
                "x": [((i * 31 + k * 7 + number * 13) % 97) / 97 - 0.5 for k in range(16)],
                "y": (i + number) % 4,
            }
            for i in range(RECORDS)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    save(build(paths, root=home), home / "records.json")
