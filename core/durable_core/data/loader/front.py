"""L3. What ``get_worker_info().dataset`` is: the user's dataset to everyone but torch's loader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import Dataset


class Front(Dataset[Any]):
    """``front[ticket]`` is what ``fetch`` gives; all attributes are the dataset's, found and set there.

    A ``worker_init_fn`` opens files on it. Its own two have names that nobody else's can have, and it has no
    method: whatever the dataset calls its attributes, none is hidden.
    """

    def __init__(self, dataset: Any, fetch: Callable[[Any], Any]) -> None:
        object.__setattr__(self, "_Front__dataset", dataset)
        object.__setattr__(self, "_Front__fetch", fetch)

    def __getitem__(self, ticket: Any) -> Any:
        return self.__fetch(ticket)

    def __len__(self) -> int:
        return len(self.__dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "_Front__")):  # protocols are answered by this class alone
            raise AttributeError(name)
        return getattr(self.__dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dataset, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__dataset, name)
