"""L5. What a restore found damaged is made whole again in the background, while the run trains on."""

from __future__ import annotations

from collections.abc import Iterable

from durable_core import events
from durable_core.clock import Clock
from durable_core.commit.journal import View, replay
from durable_core.engine import restore
from durable_core.engine.copies import COPY_ERRORS, Fault
from durable_core.engine.performer import Performer
from durable_core.engine.repair import Outcome, repair
from durable_core.engine.transfer import Inventory
from durable_core.engine.writer import Work
from durable_core.session.status import Board
from durable_core.session.stores import Stores


def damaged(faults: Iterable[Fault], home: str) -> tuple[Fault, ...]:
    """What is to be told and mended of the faults that a restore met: damage anywhere, but an absence only
    at home. A disk in front need not have what was written before it was there, nor the run's origin."""
    return tuple(fault for fault in faults if fault.kind != "missing" or fault.place == home)


def repairing(
    faults: Iterable[Fault], performer: Performer, stores: Stores, clock: Clock, board: Board
) -> Work:
    """A job that mends the damaged objects of this run's places from their other copies; it never fails a
    save, and what it cannot mend now is told."""
    found = tuple(faults)

    def work(view: View) -> View:
        try:
            view = performer.run(replay(view))
            held = [info for info in view.state.checkpoints.values() if info.held]
            inventory = Inventory(
                restore.read_manifest(performer.tier, info.manifest, info.manifest_digest) for info in held
            )
            mended = repair(found, stores.places, inventory)
        except COPY_ERRORS as error:
            board.emit(events.CopyFailed(clock.now(), -1, stores.home.name, f"nothing was repaired: {error}"))
            return view
        for each in mended:
            done = each.outcome is Outcome.REPAIRED
            board.emit(events.CopyRepaired(clock.now(), each.place, each.object, done, each.reason))
        return view

    return work
