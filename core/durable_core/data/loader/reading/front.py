"""L3. What ``get_worker_info().dataset`` is: the user's dataset to everyone but torch's loader.

A ``worker_init_fn`` opens files on it, or gives each worker its part of a stream. So every attribute is the
dataset's, found, set and deleted there. A front's own two have names that nobody else's can have, and it has
no methods: whatever the dataset calls its attributes, none is hidden.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import Dataset, IterableDataset

_DATASET, _READER = "_Front__dataset", "_Front__reader"
_STATE = ("state_dict", "load_state_dict")


class _Front:
    def __init__(self, dataset: Any, reader: Any) -> None:
        object.__setattr__(self, _DATASET, dataset)
        object.__setattr__(self, _READER, reader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "_Front__")):  # protocols are answered by this class alone
            raise AttributeError(name)
        return getattr(self.__dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dataset, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__dataset, name)


class MapFront(_Front, Dataset[Any]):
    """``front[ticket]`` is what ``reader(ticket)`` gives."""

    def __getitem__(self, ticket: Any) -> Any:
        return getattr(self, _READER)(ticket)

    def __len__(self) -> int:
        return len(getattr(self, _DATASET))


class StreamFront(_Front, IterableDataset[Any]):
    """Its iterators are ``reader``'s, and so are the states: torchdata is not to find others."""

    def __iter__(self) -> Iterator[Any]:
        return iter(getattr(self, _READER))

    def __getattr__(self, name: str) -> Any:
        if name in _STATE:
            raise AttributeError(name)
        return super().__getattr__(name)
