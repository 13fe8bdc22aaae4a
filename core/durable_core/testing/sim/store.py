"""A store with a page cache: what is visible, what would survive a power loss, and writes under way.

A write passes through stages that other processes and faults can fall between: it is sent, it
becomes visible, it becomes durable, it is acknowledged. Only a complete object ever becomes visible
(link of a whole temporary, or one PUT); whether its *name* is durable is another matter.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from durable_core.commit.effects import PutIfAbsent


class Stage(enum.IntEnum):
    SENT = 0
    VISIBLE = 1
    DURABLE = 2


@dataclass
class Write:
    """One write under way. ``exclusive``: create only if absent. ``created`` is known once visible."""

    key: str
    data: bytes
    exclusive: bool
    stage: Stage = Stage.SENT
    created: bool | None = None

    @property
    def answered(self) -> bool:
        """Nothing is left to do but to tell the writer."""
        return self.created is False or self.stage is Stage.DURABLE


@dataclass(frozen=True)
class Overwrite(PutIfAbsent):
    """Not an effect of the protocol: a planted bug puts even if present. Result: ``True``."""


class SimStore:
    """Names and bytes. ``appeared`` is called with every object at the moment it becomes visible."""

    def __init__(self) -> None:
        self._visible: dict[str, bytes] = {}
        self._durable: dict[str, bytes] = {}
        self._unsynced: dict[str, set[str]] = {}  # directory -> names created or deleted since its fsync
        self.full = False
        self.appeared: Callable[[str, bytes], None] = lambda key, data: None

    # -- reading

    def get(self, key: str) -> bytes | None:
        return self._visible.get(key)

    def keys(self, prefix: str) -> Iterator[str]:
        return (key for key in list(self._visible) if key.startswith(prefix))

    def is_durable(self, key: str) -> bool:
        return key in self._durable

    # -- writing

    def advance(self, write: Write) -> None:
        """Move a write to its next stage."""
        if write.stage is Stage.SENT:
            write.created = not write.exclusive or write.key not in self._visible
            write.stage = Stage.VISIBLE
            if write.created:
                self._visible[write.key] = write.data
                self._touch(write.key)
                self.appeared(write.key, write.data)
        elif write.stage is Stage.VISIBLE:
            self.sync_write(write)
            write.stage = Stage.DURABLE

    def sync_write(self, write: Write) -> None:
        """The fsync of the directory that a careful write ends with."""
        self.sync(_directory(write.key))

    def sync(self, directory: str) -> None:
        for key in self._unsynced.pop(directory, ()):
            if key in self._visible:
                self._durable[key] = self._visible[key]
            else:
                self._durable.pop(key, None)

    def delete(self, key: str) -> None:
        """Visible at once; a power loss may bring the name back until its directory is synced."""
        self._visible.pop(key, None)
        self._touch(key)

    # -- failing

    def lose_power(self, chance: random.Random) -> None:
        """Of the names and deletions not synced, any subset survives. Nothing is half there."""
        after = dict(self._durable)
        for key in sorted(key for keys in self._unsynced.values() for key in keys):
            if chance.random() < 0.5:
                continue
            if key in self._visible:
                after[key] = self._visible[key]
            else:
                after.pop(key, None)
        self._visible, self._durable, self._unsynced = after, dict(after), {}

    def _touch(self, key: str) -> None:
        self._unsynced.setdefault(_directory(key), set()).add(key)


def _directory(key: str) -> str:
    return key.rpartition("/")[0] + "/"
