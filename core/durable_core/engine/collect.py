"""L4. Retention and collection on a real tier: retire in the journal, then sweep."""

from __future__ import annotations

from dataclasses import dataclass

from durable_core.commit.collect import SWEEP_BUDGET, retire, sweep
from durable_core.commit.journal import AppendInDoubt, View
from durable_core.commit.retention import Retention, Retire
from durable_core.engine.performer import Performer
from durable_core.errors import FencedError, LostSlot, TierError
from durable_core.tier.base import Tier


@dataclass(frozen=True)
class Collected:
    """``epoch`` goes into the next call (``None``: it has to be claimed again). ``problem`` says why the
    collection stopped early (``""``: it did not); ``complete``: nothing dead is left."""

    view: View
    epoch: int | None
    retired: tuple[Retire, ...] = ()
    deleted: tuple[str, ...] = ()
    complete: bool = False
    problem: str = ""


def collect(
    performer: Performer,
    view: View,
    policy: Retention,
    launch_id: str,
    epoch: int | None = None,
    *,
    budget: int = SWEEP_BUDGET,
    in_hand: frozenset[int] = frozenset(),
) -> Collected:
    """Retire what ``policy`` lets go of (but for ``in_hand``, which are being copied), then
    delete at most ``budget`` dead objects, and what writers that died left half written.

    Never raises for storage trouble or for another controller at work: collection can always be
    done later, and must not disturb what it collects for.
    """
    try:
        retirement = performer.run(retire(view, policy, launch_id=launch_id, epoch=epoch, in_hand=in_hand))
    except AppendInDoubt as error:
        return Collected(error.view, None, problem=str(error))
    except (FencedError, LostSlot) as error:
        return Collected(view, None, problem=f"another controller is at work: {error}")
    except TierError as error:
        return Collected(view, epoch, problem=str(error))
    try:
        swept = performer.run(sweep(retirement.view, budget=budget))
        performer.tier.collect_residue()
    except TierError as error:
        return Collected(retirement.view, retirement.epoch, retirement.retired, problem=str(error))
    problem = f"kept for unreadable manifests: {swept.kept_unread}" if swept.kept_unread else ""
    return Collected(swept.view, retirement.epoch, retirement.retired, swept.deleted, swept.complete, problem)


def sweep_place(performer: Performer, place: Tier, view: View) -> None:
    """Delete dead objects of a place that stands beside the root; what is dead, the journal at home says.

    Raises the tiers' errors; it can always be done later.
    """
    there = Performer(performer.tier, performer.clock, swept=place)
    there.run(sweep(view))
    place.collect_residue()
