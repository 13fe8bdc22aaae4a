"""L5. A session's state and its loader: do they belong together, and can the loader keep what is promised?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from durable_core.data import DurableLoader
from durable_core.errors import PromiseError, SpecMismatchError, UsageError
from durable_core.session.settings import Settings
from durable_core.session.world import World


def loader_of(state: Mapping[str, Any]) -> DurableLoader | None:
    """The one loader among the state's objects. ``UsageError`` for two."""
    loaders = {name: item for name, item in state.items() if isinstance(item, DurableLoader)}
    if len(loaders) > 1:
        raise UsageError(f"two loaders in one state: {', '.join(loaders)}", hint="combine them into one")
    return next(iter(loaders.values()), None)


def check_share(loader: DurableLoader | None, world: World) -> None:
    """``UsageError`` when every writer would train on the same samples, each as if they were its own."""
    if loader is None or loader.streaming or loader.sampler is not None:
        return  # which samples those give to whom is known to the user alone
    place, places = world.roles.index(world.role), len(world.roles)
    if (loader.replica, loader.replicas) != (place, places):
        raise UsageError(
            f"{world.role} is one of {places} writers, and its loader gives share {loader.replica} of "
            f"{loader.replicas}",
            hint=f"DurableLoader(..., replica={place}, replicas={places})",
        )


def check_promise(loader: DurableLoader | None, settings: Settings) -> None:
    """``PromiseError`` when the data can keep less than is promised."""
    if loader is not None and not loader.guarantees.implies(settings.promise):
        raise PromiseError(
            f"the run would promise {settings.promise.value!r}, and its data can keep no more than "
            f"{loader.guarantees.value!r}",
            hint=f'promise="{loader.guarantees.value}" (with accept_distribution="why that is enough")',
        )


def check_position(loader: DurableLoader | None, cursor: Mapping[str, Any]) -> None:
    """``SpecMismatchError`` unless there is a loader exactly where the checkpoint has a data position."""
    if bool(cursor) != (loader is not None):
        raise SpecMismatchError(
            f"the checkpoint holds {'a' if cursor else 'no'} data position, and there is "
            f"{'a' if loader is not None else 'no'} DurableLoader in the state",
            fields=("loader",),
            hint="nothing was changed; give the state the loader it was saved with, or start another run",
        )
