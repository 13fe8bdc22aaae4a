"""L5. What the agent tells others of its group: ``RunFiles.facts``, written anew at every change and twice a
second, so that whoever reads it sees at its age that the agent lives. Where it cannot be written the agent
goes on: what it does depends on nothing that it tells."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Any

from durable_core.clock import Clock
from durable_core.engine import words
from durable_core.engine.launched import RunFiles
from durable_core.launch.machine import GroupPhase

log = logging.getLogger(__name__)

INTERVAL_S = 0.5


class Reporter:
    """Its thread writes while the agent waits for something that is not ours (a rendezvous, a store)."""

    def __init__(self, files: RunFiles, clock: Clock) -> None:
        now = clock.now()
        self._path, self._clock = files.facts, clock
        self._facts = words.Facts("", 0, GroupPhase.QUEUED.value, now, now)
        self._lock = threading.Lock()
        self._untold = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="durable-facts", daemon=True)

    @property
    def facts(self) -> words.Facts:
        return self._facts

    def start(self) -> None:
        self.tell()
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join()

    def tell(self, phase: GroupPhase | None = None, **changes: Any) -> None:
        """Change what is told, and write it."""
        with self._lock:
            now = self._clock.now()
            if phase is not None and phase.value != self._facts.phase:
                changes.update(phase=phase.value, since=now)
            self._facts = replace(self._facts, **changes, time=now)
            self._write()

    def _write(self) -> None:
        try:
            words.write(self._path, self._facts)
        except OSError as error:
            if not self._untold:  # once, until it can be written again
                log.warning("the group's state cannot be told: %s", error)
            self._untold = True
        else:
            self._untold = False

    def _loop(self) -> None:
        while not self._end.wait(INTERVAL_S):
            self.tell()
