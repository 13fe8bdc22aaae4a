"""The user's training loader made durable, without a change to the user's code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader

from durable_core.data.loader import DurableLoader
from durable_core.errors import UnsupportedError, UsageError
from durable_core.format.ledger import Row
from durable_core.types import Promise


class Data:
    """The one training loader of a fit, and the position that a (re)built one starts from."""

    def __init__(
        self, *, replica: int, replicas: int, seed: int, promise: Promise, accumulate: int | None
    ) -> None:
        """``accumulate``: batches of an optimizer step; None where that is not one number."""
        self._replica, self._replicas, self._accumulate = replica, replicas, accumulate or 1
        self._seed, self._promise = seed, promise
        self._start: Mapping[str, Any] | None = None
        self._loader: DurableLoader | None = None
        self._left_by_others: tuple[Row, ...] = ()

    @property
    def loader(self) -> DurableLoader:
        if self._loader is None:
            raise UsageError("there is no training loader yet")
        return self._loader

    def close(self) -> None:
        """End the loader's workers, if there is one."""
        if self._loader is not None:
            self._loader.close()

    def take_rows(self) -> tuple[Row, ...]:
        """What was consumed since the last call, by loaders since replaced as well."""
        rows = (*self._left_by_others, *self.loader.drain_rows())
        self._left_by_others = ()
        return rows

    def start_from(self, cursor: Mapping[str, Any]) -> None:
        """Loaders made from now on begin here."""
        self._start = cursor

    def prepare(self, dataloader: object, reloading: bool) -> object:
        """What Lightning iterates in place of ``dataloader``; called whenever it asks for training loaders.

        ``reloading``: in the middle of the fit (``reload_dataloaders_every_n_epochs``); the new loader
        goes on where the old one stands. Raises ``UnsupportedError`` for what cannot be made durable.
        """
        if self._loader is not None and not reloading:
            raise UnsupportedError(
                "several training loaders (a collection or CombinedLoader) have no common cursor yet",
                hint="combine the datasets in one map-style dataset, such as a torch ConcatDataset",
            )
        if self._loader is not None:
            if dataloader is self._loader:
                return dataloader
            self._start = self._loader.state_dict()
            self._left_by_others += self._loader.drain_rows()
            self._loader.close()
        loader = self._converted(dataloader)
        if self._start is not None:
            loader.load_state_dict(self._start)
        self._loader = loader
        return loader

    def _converted(self, dataloader: object) -> DurableLoader:
        if not isinstance(dataloader, (DataLoader, DurableLoader)):
            raise UnsupportedError(
                f"a {type(dataloader).__name__} as training loader has no position that could be restored",
                hint="pass a torch DataLoader or a durable_core.data.DurableLoader",
            )
        return DurableLoader.from_dataloader(
            dataloader,
            replica=self._replica,
            replicas=self._replicas,
            seed=None if isinstance(dataloader, DurableLoader) else self._seed,  # it has one of its own
            accumulate=self._accumulate,
            promise=self._promise,
        )
