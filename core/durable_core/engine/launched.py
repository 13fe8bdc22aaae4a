"""L4. What a process is told by the launcher that started it: the contract between launcher and worker.

Environment goes down, files in the *run directory* come up. That directory is the launcher's, one per node
and launch, in memory (tmpfs), gone with it; nothing in it is needed for correctness.

===========================  ================================================================================
``DURABLE_LAUNCH_ID``        the launch; ``launch_id`` makes of it what stands in the records
``DURABLE_RUN_ID``           the run that ``DURABLE_GENERATION`` belongs to
``DURABLE_GENERATION``       the generation the launcher has claimed for these workers; absent: they claim
``DURABLE_RUN_DIR``          the run directory
``DURABLE_ATTEMPT``          ``<launch>/<number>``: in the environment of everything a worker starts, so that
                             what is left of an attempt can be found and ended
``DURABLE_RESTART_REASON``   the failure class this start follows (``F1`` ... ``F20``)
``DURABLE_RESTART_ONSET``    for ``F12``/``F13``: the step from which on nothing is trusted
``DURABLE_SPEC``             path of the frozen spec (JSON) that the run was launched with
``DURABLE_WORKER``           its own process number, set by the worker. What it starts inherits all this,
                             and is told from it by that: only the worker tells the launcher anything
===========================  ================================================================================
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from durable_core.errors import UsageError

#: A worker writes the stacks of all its threads into ``RunFiles.stacks`` when it gets this signal. Before
#: that file is there the signal would end it.
DUMP_SIGNAL = signal.SIGRTMIN + 4

#: Everything in the environment that makes a process one of a launch.
IDENTITY = (
    "DURABLE_LAUNCH_ID", "DURABLE_RUN_ID", "DURABLE_GENERATION", "DURABLE_RUN_DIR", "DURABLE_ATTEMPT",
    "DURABLE_RESTART_REASON", "DURABLE_RESTART_ONSET", "DURABLE_SPEC", "DURABLE_WORKER", "DURABLE_ROOT",
)  # fmt: skip
_WORKER = "DURABLE_WORKER"


@dataclass(frozen=True)
class Launched:
    """``None`` or ``""`` where the launcher said nothing, or there is none. ``worker``: this process is the
    one that the launcher started, and not one that the worker has started in its turn."""

    generation: int | None = None
    run_id: str = ""
    run_dir: Path | None = None
    rank: int = 0
    attempt: str = ""
    reason: str = ""
    onset: int | None = None
    spec: Path | None = None
    worker: bool = True

    @staticmethod
    def of(environ: Mapping[str, str] = os.environ) -> Launched:
        """``UsageError`` for a number that is none: whoever set it must know."""
        run_dir, spec = environ.get("DURABLE_RUN_DIR", ""), environ.get("DURABLE_SPEC", "")
        return Launched(
            generation=_count(environ, "DURABLE_GENERATION"),
            run_id=environ.get("DURABLE_RUN_ID", ""),
            run_dir=Path(run_dir) if run_dir else None,
            rank=_count(environ, "RANK") or 0 if run_dir else 0,  # without a launcher it is anybody's
            attempt=environ.get("DURABLE_ATTEMPT", ""),
            reason=environ.get("DURABLE_RESTART_REASON", ""),
            onset=_count(environ, "DURABLE_RESTART_ONSET"),
            spec=Path(spec) if spec else None,
            worker=environ.get(_WORKER, "") in ("", str(os.getpid())),
        )

    @property
    def nth(self) -> int:
        """The number of the attempt; 0: none was told."""
        number = self.attempt.rpartition("/")[2]
        return int(number) if number.isdecimal() else 0

    @property
    def files(self) -> RunFiles | None:
        return None if self.run_dir is None else RunFiles(self.run_dir)

    @property
    def told(self) -> RunFiles | None:
        """Where this process tells the launcher how it fares; ``None``: nobody listens, or not to it."""
        return self.files if self.worker else None


@dataclass(frozen=True)
class RunFiles:
    """Where things are in a run directory. Ranks are those of this attempt: an address, not an identity."""

    root: Path

    def beat(self, rank: int) -> Path:
        """``engine.beats``: how far a worker is. Written by the worker."""
        return self.root / "beats" / str(rank)

    def mute(self, rank: int) -> Path:
        """There when a worker has found no room for its beats: empty, for which there is room. What it does
        not tell is held against it no more."""
        return self.root / "mute" / str(rank)

    def words(self, rank: int) -> Path:
        """``engine.words``: the error that a worker ended with. Written by the worker, at its end."""
        return self.root / "words" / f"{rank}.json"

    def stacks(self, rank: int) -> Path:
        """What faulthandler wrote at ``DUMP_SIGNAL``. Written by the worker."""
        return self.root / "stacks" / f"{rank}.txt"

    def ended(self, rank: int) -> Path:
        """There when a worker's script has come to its end: all that is left is the end of its process."""
        return self.root / "ended" / str(rank)

    def take(self, generation: int) -> bool:
        """Whether this is the first process to work under the claim of ``generation``: it serves once.
        Where that cannot be found out it is not: it claims the next."""
        try:
            (self.root / "taken" / str(generation)).open("x").close()
        except OSError:
            return False
        return True

    @property
    def opened(self) -> Path:
        """``engine.words``: which run the workers opened. Written by the coordinator's worker."""
        return self.root / "opened.json"

    @property
    def facts(self) -> Path:
        """What the agent knows of its group. Written by the agent."""
        return self.root / "facts.json"

    @property
    def stopping(self) -> Path:
        """Why the workers of this attempt are told to stop as planned, as text. Written by the agent, before
        it tells them."""
        return self.root / "stopping"

    @property
    def requests(self) -> Path:
        """One file for each thing that the controller asks of the agent, named by its op_id."""
        return self.root / "requests"

    def clear(self, rank: int) -> None:
        """Before a new worker gets this rank: what the one before left there is not about it."""
        paths = (self.beat, self.mute, self.words, self.stacks, self.ended)
        for path in (of(rank) for of in paths):
            path.unlink(missing_ok=True)

    def prepare(self) -> RunFiles:
        """Made by the launcher alone: what workers write into one that is gone must not bring it back."""
        for name in ("beats", "mute", "words", "stacks", "ended", "requests", "taken"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        return self


def launch_id(environ: Mapping[str, str] = os.environ) -> str | None:
    """The identity of the launch that started this process, as its supervisor tells it.

    A supervisor that restarts a process keeps its identity (an elastic run id, a Slurm job id), so a
    process that was fenced and is restarted unaware stays superseded. ``None``: there is no
    supervisor; every start is a launch of its own.
    """
    for name in ("DURABLE_LAUNCH_ID", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"):
        value = environ.get(name, "")
        if value and value != "none":  # torchrun's default run id is the word "none"
            return f"{name.lower()}:{value}"
    return None


def supervised(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a supervisor other than ours starts its processes again. When that is killed they train on, and
    its next ones come under the same id; the number of a job alone names all that is started in it."""
    return "TORCHELASTIC_RUN_ID" in environ


def mark(environ: MutableMapping[str, str] = os.environ) -> None:
    """This process is the worker, and what it starts from now on is not."""
    environ[_WORKER] = str(os.getpid())


def unmark(environ: MutableMapping[str, str] = os.environ) -> None:
    environ.pop(_WORKER, None)


def leave(environ: MutableMapping[str, str] = os.environ) -> bool:
    """Forget the launch that this process belongs to, if a worker of one has started it: a launcher does so,
    for it begins a launch of its own. Whether it did."""
    if Launched.of(environ).worker:
        return False
    for name in IDENTITY:
        environ.pop(name, None)
    return True


def _count(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    if not text:
        return None
    if not text.isdecimal():
        raise UsageError(f"{name}={text!r} is not a number", hint="it is set by the launcher")
    return int(text)
