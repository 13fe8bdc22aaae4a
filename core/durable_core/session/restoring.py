"""L5. From the restore point to verified state: adopt, read, step down. All writers together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from durable_core import events
from durable_core.clock import Clock
from durable_core.commit.adopt import Replaced
from durable_core.commit.journal import EMPTY, View, replay
from durable_core.commit.request import Deadlines
from durable_core.engine import parts, restore
from durable_core.engine.copies import Source
from durable_core.engine.launched import Launched
from durable_core.engine.performer import Performer
from durable_core.engine.sealing import Distant, SnapshotSource
from durable_core.errors import (
    CorruptError,
    NoUsableCheckpoint,
    ObjectNotFoundError,
    RestoreError,
    UnknownVersionError,
    UnsupportedError,
)
from durable_core.format import codec
from durable_core.format.manifest import Manifest
from durable_core.session import software
from durable_core.session.adopting import Adopted, Adopter
from durable_core.session.opening import Coordinator, Opening, RestorePoint
from durable_core.session.settings import Settings
from durable_core.session.status import Board
from durable_core.session.stores import Stores
from durable_core.session.world import World
from durable_core.state import fingerprint
from durable_core.state.staging import Staged
from durable_core.types import Promise, Token


@dataclass(frozen=True)
class Loaded:
    """A verified checkpoint. ``state`` and ``role`` are the trees that were saved; ``cursor`` the logical
    data position that belongs to them (they are restored as a pair), ``metrics`` the last rows before it.
    ``begins``: empty, or this role is not in the checkpoint: ``role`` is then the first one's, and random
    streams of its own begin from this text (``state.rng.begin``)."""

    c: int
    step: int
    state: Any
    role: Any
    cursor: Mapping[str, Any]
    counters: Mapping[str, Any]
    metrics: tuple[Mapping[str, Any], ...]
    digest: str
    begins: str = ""


@dataclass(frozen=True)
class Visited:
    """A checkpoint that was looked at: what is needed to go on from there, but for its state.

    ``promise``: what can still be kept there, and why no more."""

    point: RestorePoint
    found: restore.Restored
    metrics: tuple[Mapping[str, Any], ...]
    promise: tuple[Promise, str]


class Restorer:
    """``coordinator`` is this process's own, ``None`` on the other writers."""

    def __init__(
        self, performer: Performer, clock: Clock, world: World, settings: Settings, stores: Stores,
        coordinator: Coordinator | None, board: Board,
    ) -> None:  # fmt: skip
        self._performer, self._clock, self._world, self._settings = performer, clock, world, settings
        self._stores, self._coordinator, self._board = stores, coordinator, board
        self._given_up: Staged | None = None

    def load(self, opening: Opening, claimed: Callable[[Opening], None]) -> tuple[Opening, restore.Restored]:
        """The verified checkpoint, and the opening whose restore point it is. ``claimed``: called with each
        that follows a restore point that was damaged. Raises as ``Run.load``."""
        adopted = None if opening.completed else self._adopt(opening)
        try:
            if adopted is not None:
                opening = replace(opening, restore=adopted.point)
            while True:
                point = opening.restore
                assert point is not None, "a run with history has a restore point, or step_down has raised"
                try:
                    found = self._world.together(partial(self._read, point, adopted))
                    if self._given_up is not None:
                        self._given_up.discard()  # a later step like it would contradict it
                    return opening, found
                except UnknownVersionError:
                    raise  # whole, and written by a newer version: not damage, and not to be marked as such
                except (CorruptError, ObjectNotFoundError) as error:
                    opening = self._step_down(opening, point, error)
                    claimed(opening)
        finally:
            if adopted is not None:
                adopted.staged.release()
            if self._given_up is not None:
                self._given_up.release()

    def visit(self, c: int, promise: Promise, seed: int) -> tuple[Visited, Loaded]:
        """Checkpoint ``c``, verified and the same on all writers; nothing of the run changes.

        Raises ``CheckpointNotFoundError`` for one that is not there (any more), ``CorruptError`` for a
        damaged one, of which the journal then knows, and as ``judge`` and ``part``.
        """

        def find() -> dict[str, Any]:
            assert self._coordinator is not None
            return asdict(self._coordinator.find(c))

        point = RestorePoint(**self._world.decide(find))
        try:
            found = self._world.together(partial(self._read, point, None))
        except UnknownVersionError:
            raise
        except (CorruptError, ObjectNotFoundError) as error:
            self._tell_damage(point, error)
            raise
        kept = self.judge(found.manifest, promise)
        loaded = self.loaded(found, seed)
        light = replace(found, state=None, role=None)  # those belong to the objects soon
        return Visited(point, light, loaded.metrics, kept), loaded

    def _tell_damage(self, point: RestorePoint, error: CorruptError | ObjectNotFoundError) -> None:
        def tell() -> None:
            assert self._coordinator is not None
            self._coordinator.damaged(point, str(error), (error.key,))

        self._world.decide(tell)

    def view(self, generation: int) -> View:
        """The journal up to the claim of ``generation``, or beyond."""
        if self._coordinator is not None:
            return self._coordinator.view
        view = self._performer.run(replay(EMPTY))
        if view.state.generation < generation:
            raise RestoreError(
                f"the journal at {self._performer.tier.location} does not show generation {generation}",
                hint="all writers must see the same root: a shared directory or an object store",
            )
        return view

    def judge(self, manifest: Manifest, promise: Promise) -> tuple[Promise, str]:
        """Before anything is overwritten: what of ``promise`` can still be kept with the software and the
        roles of now, and why no more. ``PromiseError`` where more was insisted on."""
        was = software.described(manifest.fingerprint, manifest.roles)
        here = software.described(fingerprint.fingerprint(), self._world.roles)

        def decide() -> Any:
            assert self._coordinator is not None
            asked, why = self._settings.asked, self._settings.accept_distribution
            kept, untold = promise, ""
            same = manifest.spec_digest == self._coordinator.view.state.spec_digest  # a fork promises anew
            if same and not manifest.promise.implies(kept):  # the record of its lowering was never written
                kept, untold = manifest.promise, f"it was saved under {manifest.promise.value}"
            held = software.promised(kept, asked=asked, why=why, was=was, now=here)
            return [held.promise.value, "; ".join(filter(None, (untold, held.reason)))]

        value, reason = self._world.decide(decide)
        return Promise(value), reason

    def loaded(self, found: restore.Restored, seed: int) -> Loaded:
        """What was read, as this role takes it. Raises as ``part``."""
        manifest = found.manifest
        part = self.part(found)
        return Loaded(
            manifest.c,
            manifest.step,
            found.state,
            found.role["own"],
            {**(manifest.cursor or {}), **found.role["position"]},
            manifest.counters,
            tuple(codec.decode(row, key=f"c{manifest.c}") for row in manifest.metrics),
            found.digest,
            f"role_v1:{seed}:{manifest.step}:{self._world.role}" if part.begins else "",
        )

    def part(self, found: restore.Restored) -> parts.Part:
        """What of the checkpoint this role has taken; told when other roles saved it.

        Raises ``UnsupportedError`` when each of those had a position of its own in the data.
        """
        manifest, roles = found.manifest, self._world.roles
        part = self._part_of(manifest)
        if set(roles) == set(manifest.roles):
            return part
        if found.role["position"]:
            raise UnsupportedError(
                f"{', '.join(manifest.roles)} each had a position of their own in a stream, which "
                f"{', '.join(roles)} cannot share out anew",
                hint="restart with the roles it was saved with; a map-style dataset can be shared out anew",
            )
        now = self._clock.now()
        self._board.emit(events.RolesChanged(now, manifest.c, manifest.roles, roles, part.dropped))
        return part

    def _adopt(self, opening: Opening) -> Adopted | None:
        """What was sealed and not committed when the generation before ended."""
        if not self._stores.keeping.any:
            return None
        seconds = self._settings.commit_deadline_s
        adopter = Adopter(
            self._performer, self._clock, self._world, Token(opening.generation, opening.launch_id),
            self._stores, self._board, Deadlines(seconds, seconds, seconds, seconds),
        )  # fmt: skip
        coordinator = self._coordinator
        claimed = None if coordinator is None else coordinator.claimed
        replaced = None if claimed is None else Replaced.by(claimed)
        adopted = adopter.run(replaced, self.view(opening.generation), Launched.of().reason)
        self._given_up = adopter.given_up
        if adopted is not None and coordinator is not None:
            coordinator.view = adopted.view
        return adopted

    def _read(self, point: RestorePoint, adopted: Adopted | None) -> restore.Restored:
        with ExitStack() as stack:
            sources = self._stores.sources(self._in_memory(adopted, stack))
            tier, role = self._performer.tier, self._world.role

            return restore.read(
                tier, point.manifest, point.digest, role, sources, whose=lambda m: self._part_of(m).role
            )

    def _part_of(self, manifest: Manifest) -> parts.Part:
        world = self._world
        return parts.part_of(manifest, world.role, world.roles, self._settings.from_first)

    def _in_memory(self, adopted: Adopted | None, stack: ExitStack) -> Iterator[Source]:
        if adopted is not None:
            yield SnapshotSource("memory", [adopted.held])
        if self._stores.memory is not None:
            snapshots = [stack.enter_context(snapshot) for snapshot in self._stores.memory.sealed()]
            yield SnapshotSource("memory", [Distant(s.seal, s.read) for s in snapshots])

    def _step_down(
        self, opening: Opening, point: RestorePoint, error: CorruptError | ObjectNotFoundError
    ) -> Opening:
        def decide() -> dict[str, object]:
            assert self._coordinator is not None
            return self._coordinator.step_down(point, str(error), (error.key,)).to_json()

        try:
            after = Opening.from_json(self._world.decide(decide))
        except NoUsableCheckpoint as none_left:
            raise none_left from error
        to = None if after.restore is None else after.restore.c
        self._board.emit(events.SteppedDown(self._clock.now(), point.c, to, error.key, str(error)))
        return after
