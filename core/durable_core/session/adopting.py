"""L5. Adopting what a dead generation had sealed: find, agree, copy, seal, save. All writers together.

The rule is ``commit.adopt.choose``; here are its effects, in the order that module gives them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from durable_core import events
from durable_core.clock import Clock
from durable_core.commit.adopt import Adoption, Replaced, Sight, adopt, choose
from durable_core.commit.journal import View
from durable_core.commit.request import Deadlines, SaveAborted
from durable_core.engine import probe, sealing
from durable_core.engine.performer import Performer
from durable_core.engine.sealing import Distant
from durable_core.engine.staged import StagedShard
from durable_core.errors import CorruptError, ObjectNotFoundError, TierError, UsageError
from durable_core.format import ledger
from durable_core.format.seal import Seal
from durable_core.session.opening import RestorePoint
from durable_core.session.status import Board
from durable_core.session.stores import Stores
from durable_core.session.world import World
from durable_core.state.staging import Staged
from durable_core.types import CrashPoint, Token

#: ``UsageError``: there is no memory for the copy beside what the dead have left.
_COPY_FAILED = (CorruptError, ObjectNotFoundError, TierError, UsageError)


@dataclass(frozen=True)
class Adopted:
    """An adopted snapshot as a restore point, and the slot with its bytes: release it after the restore.

    ``view``: the coordinator's, at the commit."""

    point: RestorePoint
    staged: Staged
    sealed: Seal
    view: View

    @property
    def held(self) -> Distant:
        """The slot as a snapshot to read from."""
        pieces = [info.slice for info in self.sealed.infos]
        whole = self.staged.gather(pieces)

        def read(begin: int, out: memoryview) -> None:
            out[:] = whole[0][begin : begin + len(out)]

        return Distant(self.sealed, read)


class Adopter:
    def __init__(
        self, performer: Performer, clock: Clock, world: World, token: Token, stores: Stores, board: Board,
        deadlines: Deadlines,
    ) -> None:  # fmt: skip
        self._performer, self._clock, self._world, self._token = performer, clock, world, token
        self._stores, self._board, self._deadlines = stores, board, deadlines
        #: a copy that could not be committed; sealed, so that the next start may adopt it, until this one
        #: has restored something else and is about to train
        self.given_up: Staged | None = None

    def run(self, replaced: Replaced | None, view: View, reason: str) -> Adopted | None:
        """The adopted checkpoint, or ``None`` when there is nothing to adopt. Called by all writers alike;
        ``replaced`` is known to the coordinator, ``reason`` is the failure class of the restart."""
        with self._snapshots() as snapshots:
            while True:
                choice = self._agree(replaced, snapshots, reason)
                if choice is None:
                    return None
                found = self._copy(choice, snapshots)
                if found is not None:
                    break
        staged, sealed, place = found
        try:
            adopted = self._save(staged, sealed, view, choice["generation"])
        except BaseException:
            staged.release()  # sealed as it is: the next start may adopt it
            raise
        if adopted is None:
            self.given_up = staged
            return None
        c, step = adopted.point.c, adopted.point.step
        self._board.emit(events.SnapshotAdopted(self._clock.now(), c, step, choice["generation"], place))
        return adopted

    @contextmanager
    def _snapshots(self) -> Iterator[list[tuple[str, Distant]]]:
        """This role's whole snapshots, this host's memory first."""
        found: list[tuple[str, Distant]] = []
        with ExitStack() as stack:
            memory = self._stores.memory
            for snapshot in memory.sealed() if memory is not None else ():
                stack.enter_context(snapshot)
                found.append(("memory", Distant(snapshot.seal, snapshot.read)))
            for store in self._stores.keeping.peers:
                try:
                    found += (("peer", snapshot) for snapshot in store.sealed())
                except TierError as error:
                    self._board.emit(events.SnapshotFailed(self._clock.now(), -1, store.name, str(error)))
            yield [item for item in found if item[1].seal.role == self._world.role]

    def _agree(
        self, replaced: Replaced | None, snapshots: list[tuple[str, Distant]], reason: str
    ) -> dict[str, Any] | None:
        """What to adopt, the same on every writer; it is the coordinator that decides."""
        sights = [sight(snapshot.seal, str(index)) for index, (_, snapshot) in enumerate(snapshots)]
        gathered = self._world.all_gather([asdict(one) for one in sights])

        def decide() -> dict[str, Any] | None:
            assert replaced is not None
            everyone = [_sight_of(row) for rows in gathered for row in rows]
            choice = choose(replaced, everyone, reason=reason)
            if not isinstance(choice, Adoption):
                return None
            names = ("generation", "step", "head", "after")
            return {name: getattr(choice, name) for name in names}

        answer: dict[str, Any] | None = self._world.decide(decide)
        return answer

    def _copy(
        self, choice: dict[str, Any], snapshots: list[tuple[str, Distant]]
    ) -> tuple[Staged, Seal, str] | None:
        """A verified copy sealed under the new generation on every writer; else ``None`` on every writer,
        and the snapshots whose copy failed are left out from now on."""
        mine: tuple[Staged, Seal, str] | None = None
        for item in list(snapshots):
            place, snapshot = item
            if (snapshot.seal.generation, snapshot.seal.step) != (choice["generation"], choice["step"]):
                continue
            try:
                mine = (*self._copy_one(choice, snapshot), place)
                break
            except _COPY_FAILED as error:
                snapshots.remove(item)
                self._board.emit(events.SnapshotFailed(self._clock.now(), choice["step"], place, str(error)))
        if self._world.all(mine is not None):
            return mine
        if mine is not None:
            mine[0].discard()
            snapshots[:] = [
                item for item in snapshots if item[1].seal.step != choice["step"]
            ]  # another writer has no whole copy of this step: it is no step to agree on
        return None

    def _copy_one(self, choice: dict[str, Any], snapshot: Distant) -> tuple[Staged, Seal]:
        slot = self._stores.pool.acquire(0.0)
        assert slot is not None, "adoption comes before anything is staged"
        staged = slot.fill(snapshot.seal, snapshot.read)
        rows = ledger.decode_segment(snapshot.seal.ledger, key="ledger") if snapshot.seal.ledger else ()
        sealed = replace(
            snapshot.seal,
            generation=self._token.generation,
            launch_id=self._token.launch_id,
            head=choice["head"],
            after=choice["after"],
            ledger=sealing.segment(rows, choice["after"]).data if snapshot.seal.ledger else b"",
            body={**snapshot.seal.body, "adopted": choice["generation"]},
        )
        if self._stores.keeping.memory:
            staged.seal(sealed)
        probe.reached(CrashPoint.K5)
        return staged, sealed

    def _save(self, staged: Staged, sealed: Seal, view: View, generation: int) -> Adopted | None:
        """Commit the copy. What cannot be told of the commit is raised, on every writer: training must not
        begin beside a save in doubt."""
        request = sealing.request_of(
            sealed, token=self._token, deadlines=self._deadlines, key="the adopted snapshot"
        )
        home, landing = self._stores.home, self._stores.landing
        request = replace(request, adopted=generation, tiers=(landing.name,), twins=landing == home)
        performer = self._performer.with_source(StagedShard(staged, request.role))

        def save() -> tuple[View, RestorePoint | None]:
            try:
                outcome = performer.run(adopt(view, request))
            except SaveAborted as error:
                self._board.emit(events.SaveFailed(self._clock.now(), sealed.step, str(error), sealed.after))
                return error.view, None
            info = outcome.view.state.checkpoints[outcome.c]
            return outcome.view, RestorePoint.of(info)

        after, mine = self._world.together(save)
        # The coordinator knows whether it is committed: another writer may merely not have seen it in time.
        point = self._world.decide(lambda: None if mine is None else asdict(mine))
        return None if point is None else Adopted(RestorePoint(**point), staged, sealed, after)


def sight(sealed: Seal, source: str) -> Sight:
    """What a snapshot says of itself, small enough to be sent around."""
    return Sight.of(sealed, alike=lambda key: False, source=source)


def _sight_of(row: dict[str, Any]) -> Sight:
    return Sight(**{**row, "roles": tuple(row["roles"])})
