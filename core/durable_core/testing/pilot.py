"""L6. The pilot: the run that is meant, at small scale, once undisturbed and once with its workers killed.

A long run is worth starting when the same script came through that with the same weights, a sound ledger and
everything that it is made of was part of it (LIFE-02, LIFE-03).
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from durable_core.clock import Clock, SystemClock
from durable_core.commit.state import RunState
from durable_core.engine import audit
from durable_core.engine.inspect import Reader, open_run
from durable_core.errors import DurableError, FormatError, NotFoundError, UsageError
from durable_core.format.manifest import Manifest
from durable_core.launch.agent.sweeping import marked
from durable_core.launch.pilot import Part, PilotRecord, subject_of

#: In the arguments of the script: becomes the root of that life of the pilot.
ROOT = "{root}"
MARK = "PILOT_LIFE"
POLL_S = 0.05


@dataclass(frozen=True)
class Pilot:
    """``command``: script and arguments, with ``{root}`` where the root belongs; ``flags``: of ``durable
    launch``."""

    command: tuple[str, ...]
    base: Path
    flags: tuple[str, ...] = ()
    kills: int = 3
    seed: int = 0
    limit_s: float = 1800.0
    clock: Clock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        if not any(ROOT in word for word in self.command):
            raise UsageError(
                f"no argument of the script says {ROOT}",
                hint=f"durable pilot -- train.py --root {ROOT} --max-steps 100",
            )

    def fly(self) -> PilotRecord:
        """Both lives, and what they came to."""
        calm, hard = self.base / "undisturbed", self.base / "killed"
        fault = self._life(calm, kills=0)
        if fault:
            return self._record(0, (f"undisturbed, {fault}",), ())
        parts = tuple(_parts(open_run(calm)))
        fault = self._life(hard, kills=self.kills, wanted=_progress(open_run(calm).state))
        if fault:
            return self._record(self.kills, (f"killed, {fault}",), parts)
        return self._record(self.kills, tuple(_differences(open_run(calm), open_run(hard))), parts)

    def _record(self, kills: int, faults: tuple[str, ...], parts: tuple[Part, ...]) -> PilotRecord:
        return PilotRecord(subject_of(self.command), self.clock.now(), kills, faults, parts)

    def _life(self, root: Path, *, kills: int, wanted: int = 0) -> str:
        """One run to its end; ``""``, or why it did not come there."""
        words = [word.replace(ROOT, str(root)) for word in self.command]
        launch = (sys.executable, "-m", "durable_core.cli", "launch")
        command = [*launch, "--root", str(root), *self.flags, *words]
        log = root.with_suffix(".log")
        self.base.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                env={**os.environ, MARK: str(root)},
            )  # fmt: skip
        try:
            self._disturb(process, root, kills, wanted)
            code = process.wait(self.limit_s)
        except subprocess.TimeoutExpired:
            return f"it did not end in {self.limit_s:.0f} s; see {log}"
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(120)
        return f"it ended with {code}; see {log}" if code else ""

    def _disturb(self, process: subprocess.Popen[bytes], root: Path, kills: int, wanted: int) -> None:
        """Kills a worker at instants spread over the run: alternately in a save, and anywhere."""
        chance = random.Random(self.seed)
        for number in range(kills):
            due = wanted * (number + chance.random()) / (kills + 1)
            if not self._reach(process, root, due, saving=number % 2 == 0):
                return
            workers = _workers(str(root))
            if workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(workers), signal.SIGKILL)

    def _reach(self, process: subprocess.Popen[bytes], root: Path, due: float, *, saving: bool) -> bool:
        """Wait until the run has got that far (and a save is under way); ``False`` when it has ended."""
        while process.poll() is None:
            with contextlib.suppress(NotFoundError, FormatError):
                state = open_run(root).state
                under_way = any(each.state.value == "allocated" for each in state.checkpoints.values())
                if _progress(state) >= due and (under_way or not saving):
                    return True
            self.clock.sleep(POLL_S)
        return False


def _workers(root: str) -> list[int]:
    """Processes that train in this life of the pilot."""
    return sorted(marked(f"{MARK}={root}".encode(), also=b"RANK"))


def _progress(state: RunState) -> int:
    return state.head_step or 0


def _differences(calm: Reader, hard: Reader) -> list[str]:
    """Why the killed run is not the undisturbed one."""
    found = []
    one, other = calm.newest_usable(), hard.newest_usable()
    if one.step != other.step:
        found.append(f"it ended at step {other.step}, and undisturbed at {one.step}")
    differ = [
        key
        for key, value in _weights(calm.manifest(one)).items()
        if _weights(hard.manifest(other)).get(key) != value
    ]
    if differ:
        found.append(f"{len(differ)} tensors differ, {differ[0]} among them")
    if hard.state.generation < 2:
        found.append("nothing was ever killed: the run was too short")
    for name, reader in (("undisturbed", calm), ("killed", hard)):
        try:
            sound = audit.audit(reader)
        except DurableError as error:
            found.append(f"{name}: {error}")
            continue
        if not sound.sound:
            drawn = sound.consumption
            found.append(f"{name}: the audit found {drawn.repeated} repeated and {drawn.skipped} skipped")
    return found


def _weights(manifest: Manifest) -> dict[str, list[str]]:
    return {key: [piece.info.xxh3 for piece in entry.slices] for key, entry in manifest.tensors.items()}


def _parts(reader: Reader) -> list[Part]:
    """What a run of this kind may be made of, and what of it the pilot saw: from its last checkpoint."""
    manifest, state = reader.manifest(reader.newest_usable()), reader.state
    cursor, end = manifest.cursor, state.terminal
    drawn = any(_named(cursor, "seeded")) or any(_named(cursor, "sample_rng"))
    sources = [len(each) for each in _named(cursor, "sources")]
    evaluated = any(_positive(each) for each in _named(manifest.documents, "val_loop.batch_progress"))
    return [
        Part("tensors and their shapes", f"{len(manifest.tensors)} tensors"),
        Part("input transforms", "random streams per sample" if drawn else ""),
        Part("packing", "packed rows" if [*_named(cursor, "packer"), *_named(cursor, "packing")] else ""),
        Part("mixture counts", f"{max(sources)} sources" if sources else ""),
        Part("staging and commit", f"{state.commits} commits of {len(manifest.roles)} writers"),
        Part("evaluation", "validated" if evaluated else ""),
        Part("output", "" if end is None else end.outcome),
    ]


def _named(value: Any, name: str) -> Iterator[Any]:
    """What is found under keys that end with ``name``, at any depth; a dictionary may be a list of pairs."""
    pairs: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        pairs = value.items()
    elif isinstance(value, (list, tuple)):
        pairs = (
            (each[0], each[1]) if isinstance(each, (list, tuple)) and len(each) == 2 else ("", each)
            for each in value
        )
    for key, inner in pairs:
        if isinstance(key, str) and key.endswith(name):
            yield inner
        yield from _named(inner, name)


def _positive(value: Any) -> bool:
    """Whether something in it was counted."""
    if isinstance(value, Mapping):
        return any(map(_positive, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_positive, value))
    return isinstance(value, int) and value > 0
