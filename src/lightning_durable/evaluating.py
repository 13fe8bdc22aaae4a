"""``DurableLoader``s that a fit validates with: every pass is the same, so a resume changes none of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from durable_core.data.loader import DurableLoader
from durable_core.errors import UnsupportedError
from durable_core.session.world import World


class Evaluation:
    """One of them: as Lightning iterates it, ``len`` batches at each pass.

    Its end is never asked for, and nothing of it acknowledged: so the next pass is that same epoch again.
    """

    def __init__(self, loader: DurableLoader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self._loader), len(self))


class Evaluations:
    """Those of one fit; each process evaluates its own share."""

    def __init__(self, world: World) -> None:
        self._place = world.roles.index(world.role), len(world.roles)
        self._loaders: list[DurableLoader] = []

    def prepare(self, loader: DurableLoader) -> Evaluation:
        """Raises ``UnsupportedError`` for one whose length nobody knows."""
        if (loader.replica, loader.replicas) != self._place:
            loader.bind(replica=self._place[0], replicas=self._place[1])
        try:
            len(loader)
        except TypeError as error:
            raise UnsupportedError(
                f"a DurableLoader to validate with has to have a length: {error}",
                hint="give a mixture epoch_size, or validate with a torch DataLoader",
            ) from error
        if not any(each is loader for each in self._loaders):
            self._loaders.append(loader)
        return Evaluation(loader)

    def check(self, training: object) -> None:
        """``UnsupportedError`` when the loader to be trained on is one of them."""
        if any(each is training for each in self._loaders):
            raise UnsupportedError(
                "one DurableLoader is to be trained on and validated with, and it has one position",
                hint="make two loaders of the dataset",
            )

    def close(self) -> None:
        """End their workers."""
        for loader in self._loaders:
            loader.close()
