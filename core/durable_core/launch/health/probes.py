"""L5. What reads the health of this node. Each probe says when what it reads is not here; none keeps a look
waiting.

The interface is ``Probe``; GPUs, links and fabrics of other kinds are further implementations of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from durable_core.clock import Clock
from durable_core.launch.health.levels import Kind, Reading

#: Seconds after which a tool that hangs is given up; a driver that is stuck hangs all who ask it.
TOOL_S = 5.0


@dataclass(frozen=True)
class Look:
    """``absent``: why nothing could be read, ``""`` when all was."""

    readings: tuple[Reading, ...] = ()
    absent: str = ""


class Probe(Protocol):
    """``read`` raises nothing that comes of the node's state: what it cannot read is ``absent``."""

    @property
    def name(self) -> str: ...

    def read(self) -> Look: ...


class Disk:
    """Free part of the file systems that ``paths`` are on, by blocks or by inodes, whichever is scarcer."""

    name = "disk"

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)

    def read(self) -> Look:
        readings, absent = [], []
        for path in self._paths:
            try:
                found = os.statvfs(path)
            except OSError as error:
                absent.append(f"{path}: {error.strerror}")
                continue
            parts = [found.f_bavail / found.f_blocks] if found.f_blocks else []
            parts += [found.f_favail / found.f_files] if found.f_files else []
            if parts:
                readings.append(Reading(Kind.DISK_FREE, min(parts), str(path)))
        return Look(tuple(readings), "; ".join(absent))


class Skew:
    """How far this wall clock is from ``reference``'s (another node's, a store's), in seconds; what the
    question itself took is allowed for."""

    name = "clock"

    def __init__(self, reference: Callable[[], float], clock: Clock, *, against: str = "") -> None:
        self._reference, self._clock, self._against = reference, clock, against

    def read(self) -> Look:
        before = self._clock.now()
        try:
            there = self._reference()
        except OSError as error:
            return Look(absent=f"{self._against or 'the reference clock'}: {error}")
        after = self._clock.now()
        off = max(before - there, there - after, 0.0)
        return Look((Reading(Kind.CLOCK_SKEW, off, self._against),))


#: What ``nvidia-smi --query-gpu`` is asked for, and what each answer is.
_QUERY: tuple[tuple[str, Kind | None], ...] = (
    ("index", None),
    ("ecc.errors.corrected.volatile.total", Kind.ECC_CORRECTABLE),
    ("ecc.errors.uncorrected.volatile.total", Kind.ECC_UNCORRECTABLE),
    ("temperature.gpu.tlimit", Kind.TEMPERATURE),
    ("clocks_throttle_reasons.hw_thermal_slowdown", Kind.THROTTLED),
)


class NvidiaSmi:
    """ECC counters, the distance to the thermal limit and throttling, by ``nvidia-smi``; not here without
    it."""

    name = "nvidia-smi"

    def __init__(self, program: str = "nvidia-smi") -> None:
        self._program = program

    def read(self) -> Look:
        path = shutil.which(self._program)
        if path is None:
            return Look(absent=f"{self._program} is not here")
        fields = ",".join(name for name, _ in _QUERY)
        command = [path, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=TOOL_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Look(absent=f"{self._program}: {error}")
        if done.returncode:
            return Look(
                absent=f"{self._program}: status {done.returncode}: {_first(done.stdout or done.stderr)}"
            )
        return Look(tuple(reading for line in done.stdout.splitlines() for reading in parse(line)))


def parse(line: str) -> tuple[Reading, ...]:
    """One GPU's line. What the device does not have (``[N/A]``) is left out."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(_QUERY):
        return ()
    readings = []
    for (_, kind), cell in zip(_QUERY, cells, strict=True):
        value = _number(cell)
        if kind is not None and value is not None:
            readings.append(Reading(kind, value, f"gpu{cells[0]}"))
    return tuple(readings)


def _number(cell: str) -> float | None:
    if cell in ("Active", "Not Active"):
        return float(cell == "Active")
    try:
        return float(cell)
    except ValueError:
        return None


def _first(text: str) -> str:
    return text.strip().split("\n", 1)[0][:200]
