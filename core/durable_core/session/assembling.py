"""L5. The parts that save, put together for one generation: what ``Run.confirm`` starts."""

from __future__ import annotations

from durable_core.clock import Clock
from durable_core.engine.performer import Performer
from durable_core.session.cadence import Meter
from durable_core.session.committing import Committer
from durable_core.session.copying import Copier
from durable_core.session.curve import Curve
from durable_core.session.saving import Saver
from durable_core.session.settings import Settings
from durable_core.session.snapshots import Snapshots
from durable_core.session.status import Board
from durable_core.session.stores import Stores
from durable_core.session.world import World
from durable_core.types import Token


def saver(
    committer: Committer, performer: Performer, stores: Stores, clock: Clock, world: World,
    settings: Settings, token: Token, board: Board, curve: Curve, meter: Meter,
) -> Saver:  # fmt: skip
    """Its background threads are those of ``committer`` and, where a disk lies before the root, of a copier.

    What the memory of this host holds of older generations was adopted or is of no use: it is freed.
    """
    copier: Copier | None = None
    if stores.landing != stores.home:
        copier = Copier(
            performer, clock, world, token, stores, board, lambda: committer.writer.view,
            deadline_s=settings.commit_deadline_s,
        )  # fmt: skip
    if stores.memory is not None:
        stores.memory.free(older_than=token.generation)
    snapshots = Snapshots(stores.pool, clock, world, board, stores.keeping)
    return Saver(
        committer, snapshots, copier, stores.landing.name, clock, world, settings, token, board,
        curve.window, meter,
    )  # fmt: skip
