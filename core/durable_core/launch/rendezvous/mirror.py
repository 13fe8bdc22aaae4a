"""L5. The run directories of the other nodes, as node 0 sees them: ``nodes/<node>/``, in the same layout.

Hints that are about a second old, through the store of the round. Beats, words, stacks and facts go to node
0; requests come from there. Times in beats are made the receiving host's: ages travel, times do not.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path

from torch.distributed import DistError
from torch.distributed.distributed_c10d import Store

from durable_core.clock import Clock
from durable_core.engine import beats, words
from durable_core.engine.launched import RunFiles
from durable_core.errors import FormatError
from durable_core.launch.rendezvous.pulse import Pulse

log = logging.getLogger(__name__)

#: Seconds between two exchanges; bytes of one file that travel, its newest.
INTERVAL_S, MOST = 1.0, 1 << 16
PATIENCE_S = 5.0
_KEY = "durable/mirror"
_UP = re.compile(r"(?:beats|mute)/[0-9]+|words/[0-9]+\.json|stacks/[0-9]+\.txt|facts\.json")
_DOWN = re.compile(r"requests/[A-Za-z0-9_-]+\.json")


class Sender:
    """What changes under ``root`` of the names that ``kinds`` matches. A file that goes is not told of."""

    def __init__(self, store: Store, key: str, root: Path, kinds: re.Pattern[str], clock: Clock) -> None:
        self._store, self._key, self._root, self._kinds, self._clock = store, key, root, kinds, clock
        self._sent: dict[str, bytes] = {}
        self._versions: dict[str, int] = {}

    def send(self) -> None:
        changed = {name: data for name, data in self._found().items() if self._sent.get(name) != data}
        for name, data in changed.items():
            text = f"{self._clock.monotonic()} {base64.b64encode(data).decode('ascii')}"
            self._store.set(f"{self._key}/{name}", text)
            self._versions[name] = self._versions.get(name, 0) + 1
        if changed:
            self._store.set(self._key, json.dumps(self._versions))
            self._sent.update(changed)

    def _found(self) -> dict[str, bytes]:
        found = {}
        for path in (*self._root.glob("*.json"), *self._root.glob("*/[!.]*")):
            name = path.relative_to(self._root).as_posix()
            if self._kinds.fullmatch(name):
                data = _beat(path) if path.parent.name == "beats" else _tail(path)
                if data or path.parent.name == "mute":
                    found[name] = data or b""
        return found


class Receiver:
    """Lays out under ``root`` what a ``Sender`` with the same key sends."""

    def __init__(self, store: Store, key: str, root: Path, kinds: re.Pattern[str], clock: Clock) -> None:
        self._store, self._key, self._root, self._kinds, self._clock = store, key, root, kinds, clock
        self._seen: dict[str, int] = {}

    def receive(self) -> None:
        if not self._store.check([self._key]):
            return
        versions: Mapping[str, int] = json.loads(self._store.get(self._key))
        for name, version in versions.items():
            if self._seen.get(name) == version or not self._kinds.fullmatch(name):
                continue
            sent_at, _, text = self._store.get(f"{self._key}/{name}").decode("ascii").partition(" ")
            data = base64.b64decode(text)
            if name.startswith("beats/"):
                data = beats.shifted(data, self._clock.monotonic() - float(sent_at))
            words.put(self._root / name, data)
            self._seen[name] = version


class Mirror:
    """A thread for one round, which also signs for this node (``pulse``). ``stop`` waits no longer than
    ``PATIENCE_S`` for a store that hangs."""

    def __init__(self, store: Store, node: int, nodes: int, files: RunFiles, clock: Clock) -> None:
        self.pulse = Pulse(store, node, nodes, clock)
        others = files.root / "nodes"
        shutil.rmtree(others, ignore_errors=True)  # of the round before
        if node:
            up, down = f"{_KEY}/{node}/up", f"{_KEY}/{node}/down"
            self._senders = [Sender(store, up, files.root, _UP, clock)]
            self._receivers = [Receiver(store, down, files.root, _DOWN, clock)]
        else:
            roots = {other: others / str(other) for other in range(1, nodes)}
            rows = [(f"{_KEY}/{other}", RunFiles(root).prepare().root) for other, root in roots.items()]
            self._senders = [Sender(store, f"{key}/down", root, _DOWN, clock) for key, root in rows]
            self._receivers = [Receiver(store, f"{key}/up", root, _UP, clock) for key, root in rows]
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="durable-mirror", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join(PATIENCE_S)

    def exchange(self) -> None:
        self.pulse.sign()
        for sender in self._senders:
            sender.send()
        for receiver in self._receivers:
            receiver.receive()

    def _loop(self) -> None:
        while not self._end.wait(INTERVAL_S):
            try:
                self.exchange()
            except OSError as error:  # no room here for a moment
                log.debug("mirror: %s", error)
            except (DistError, FormatError) as error:
                log.debug("mirror: %s", error)  # the store is lost, which the rendezvous tells
                return


def _beat(path: Path) -> bytes | None:
    try:
        return beats.whole(path)
    except FormatError:
        return None  # it is being made


def _tail(path: Path) -> bytes:
    """The newest bytes of what may go meanwhile; documents are smaller than that."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MOST))
            return file.read(MOST)
    except FileNotFoundError:
        return b""
