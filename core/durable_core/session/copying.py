"""L5. Bringing checkpoints from where they landed to the root, in the background.

Only the newest one waits: a slow root gets fewer checkpoints, never a growing queue. Each writer copies the
objects it wrote; the journal learns of the copy when all of them say so. Nothing here can fail a save.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

from durable_core import events
from durable_core.clock import Clock
from durable_core.commit.journal import AppendInDoubt, View, replay
from durable_core.commit.promotion import add_tier, announce
from durable_core.commit.request import SaveOutcome
from durable_core.commit.state import CheckpointInfo
from durable_core.engine import restore
from durable_core.engine.collect import sweep_place
from durable_core.engine.performer import Performer
from durable_core.engine.promote import Promoted, promote, share
from durable_core.engine.transfer import Inventory
from durable_core.engine.worker import Errands, Job
from durable_core.errors import CommitAborted, CorruptError, DurableError, LostSlot, NotFoundError, TierError
from durable_core.format.manifest import Manifest
from durable_core.session.status import Board
from durable_core.session.stores import Stores
from durable_core.session.world import World
from durable_core.tier.limit import RateLimit
from durable_core.types import Token

#: What a copy may fail with; it is tried again with the next checkpoint.
_FAILED = (CommitAborted, CorruptError, LostSlot, NotFoundError, TierError)


class Copier:
    """``view`` is asked for the journal as the writer last knew it; this thread appends facts of
    maintenance only, in a view of its own."""

    def __init__(
        self, performer: Performer, clock: Clock, world: World, token: Token, stores: Stores, board: Board,
        view: Callable[[], View], *, deadline_s: float,
    ) -> None:  # fmt: skip
        self._performer, self._clock, self._world, self._token = performer, clock, world, token
        self._stores, self._board, self._view, self._deadline = stores, board, view, deadline_s
        rate = stores.copy_bytes_per_second
        self._limit = None if rate is None else RateLimit(rate, clock)
        self._lock = threading.Lock()
        self._wanted: int | None = None
        self._newest: int | None = None
        self._copied: int | None = None
        self._seen = 0
        self._stopping = False
        self._manifests: dict[int, Manifest] = {}
        self._errands = Errands("durable-copier")
        state = view().state
        if state.head is not None and stores.home.name not in state.checkpoints[state.head].tiers:
            self._landed(state.head)  # adopted, or its writers died before they had copied it

    @property
    def in_hand(self) -> frozenset[int]:
        """Checkpoints that must not be let go of while they are being copied."""
        with self._lock:
            return frozenset() if self._wanted is None else frozenset({self._wanted})

    def committed(self, outcome: SaveOutcome) -> None:
        """On the writer's thread, after each commit."""
        self._landed(outcome.c)

    def finish(self, timeout: float | None = None) -> bool:
        """Wait for the newest checkpoint to be in the root; whether it is, one more attempt made."""
        if not self._errands.drain(timeout):
            return False
        newest = self._newest
        if newest is not None and self._copied != newest:
            self._queue(newest)
            return self._errands.drain(timeout) and self._copied == newest
        return True

    def close(self, timeout: float | None) -> None:
        """Gives the copy in progress ``timeout`` seconds; the next start goes on with what is missing."""
        self.finish(timeout)
        self._stopping = True
        self._errands.close(timeout)

    def raise_bug(self) -> None:
        if self._errands.bug is not None:
            raise self._errands.bug

    def _landed(self, c: int) -> None:
        self._newest = c
        self._seen += 1
        if (self._seen - 1) % self._stores.copy_every == 0 and not self._errands.pending:
            self._queue(c)

    def _queue(self, c: int) -> None:
        with self._lock:
            self._wanted = c
        self._errands.submit(Job(f"copy c{c}", lambda: self._copy(c), self._failed(c), self._done))

    def _failed(self, c: int) -> Callable[[DurableError], None]:
        def failed(error: DurableError) -> None:
            self._tell(c, str(error))

        return failed

    def _done(self) -> None:
        with self._lock:
            self._wanted = None

    def _tell(self, c: int, why: str) -> None:
        self._board.emit(events.CopyFailed(self._clock.now(), c, self._stores.home.name, why))

    # --- on the copier's thread --------------------------------------------------------------

    def _copy(self, c: int) -> None:
        started = self._clock.monotonic()
        view = self._performer.run(replay(self._view()))
        info = view.state.checkpoints[c]
        manifest = self._manifest(info)
        keys = share(manifest.objects, self._world.role, self._world.roles, self._world.roles[0])
        promoted = self._promote(view, keys)
        if not promoted.complete:
            self._tell(c, next(iter(promoted.failed.values()), "stopped"))
            return
        target, generation = self._stores.home.name, self._token.generation
        self._performer.run(announce(info, target, self._world.role, keys, generation=generation))
        if self._world.coordinator and not self._add(view, info, manifest):
            return
        self._copied = c
        self._board.copied(c, target)
        seconds = self._clock.monotonic() - started
        event = events.CopyAdded(self._clock.now(), c, info.step, target, promoted.bytes, seconds)
        self._board.emit(event)
        sweep_place(self._performer, self._stores.landing.tier, view)

    def _promote(self, view: View, keys: tuple[str, ...]) -> Promoted:
        held = {info.c: info for info in view.state.checkpoints.values() if info.held}
        self._manifests = {each: manifest for each, manifest in self._manifests.items() if each in held}
        inventory = Inventory(self._readable(held.values()))
        places = self._stores.places
        stop = lambda: self._stopping  # noqa: E731
        return promote(places, self._stores.home, keys, inventory, limit=self._limit, stop=stop)

    def _readable(self, held: Iterable[CheckpointInfo]) -> Iterator[Manifest]:
        """One that cannot be read is of a checkpoint that cannot be restored: it must not end all copying."""
        for info in held:
            try:
                yield self._manifest(info)
            except _FAILED as error:
                self._tell(info.c, f"its manifest cannot be read: {error}")

    def _manifest(self, info: CheckpointInfo) -> Manifest:
        if info.c not in self._manifests:
            home = self._performer.tier
            self._manifests[info.c] = restore.read_manifest(home, info.manifest, info.manifest_digest)
        return self._manifests[info.c]

    def _add(self, view: View, info: CheckpointInfo, manifest: Manifest) -> bool:
        try:
            added = self._performer.run(
                add_tier(
                    view, info.c, self._stores.home.name, generation=self._token.generation,
                    roles=self._world.roles, objects=[each.key for each in manifest.objects],
                    launch_id=self._token.launch_id, seconds=self._deadline,
                )
            )  # fmt: skip
        except AppendInDoubt as doubt:
            self._tell(info.c, f"it is there, and the journal may not say so: {doubt}")
            return False
        if not added.added:
            self._tell(info.c, added.reason)
        return added.added
