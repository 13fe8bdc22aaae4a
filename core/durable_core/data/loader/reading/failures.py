"""L3. Errors out of workers: of the class that was raised, with its attributes.

torch makes an exception of a worker again from one text, which few of ours can be made from: those that name
an object and a record would arrive as ``RuntimeError``. So they travel as values, in place of a batch.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from torch.utils.data import IterableDataset, get_worker_info

from durable_core.errors import DurableError

T = TypeVar("T")
_PLAIN = (str, bytes, int, float, type(None))


@dataclass(frozen=True)
class Failure:
    """What was raised in worker ``worker``, and where."""

    error: DurableError
    worker: int
    trace: str

    def again(self) -> DurableError:
        """The error, caused by the text of its traceback there."""
        self.error.__cause__ = WorkerTraceback(f"in DataLoader worker {self.worker}\n\n{self.trace}")
        return self.error


class WorkerTraceback(Exception):
    """Not raised: shown above the error of a worker, whose own traceback stayed there."""


def carried(error: DurableError) -> Failure:
    """``error``, which is being handled, as a value; in the training process it is raised on.

    What cannot be pickled would hang the worker's queue. So attributes that are no plain values stay behind,
    and of a class that cannot be found by name it becomes the nearest one above that can.
    """
    info = get_worker_info()
    if info is None:
        raise error
    kind: Any = next(kind for kind in type(error).__mro__ if _is_found(kind))
    copied: DurableError = (
        kind.__new__(kind, *error.args) if _is_plain(error.args) else kind.__new__(kind, str(error))
    )
    copied.__dict__.update({name: value for name, value in vars(error).items() if _is_plain(value)})
    return Failure(copied, info.id, "".join(traceback.format_exception(error)))


def unwrapped(fetched: Iterable[T | Failure]) -> Iterator[T]:
    """What was fetched, up to a failure, which is raised."""
    for item in fetched:
        if isinstance(item, Failure):
            raise item.again()
        yield item


class Carrying(IterableDataset[Any]):
    """Stands before an iterable dataset: in a worker, an error of ours is an item, as are all after it.

    (Were they not, a batch with an error in it might be taken for the short last one, and left out.)
    ``start``: the state of an iterator that has given nothing.
    """

    def __init__(self, dataset: IterableDataset[Any], start: dict[str, Any]) -> None:
        self._dataset, self._start = dataset, start

    def __iter__(self) -> _Carrying:
        return _Carrying(self._dataset, self._start)


class _Carrying(Iterator[Any]):
    def __init__(self, dataset: IterableDataset[Any], start: dict[str, Any]) -> None:
        self._failure: Failure | None = None
        self._begun = start
        self._iterator: Any = self._try(lambda: iter(dataset))

    def __next__(self) -> Any:
        item = self._try(lambda: next(self._iterator))
        return item if self._failure is None else self._failure

    def _try(self, step: Callable[[], Any]) -> Any:
        if self._failure is None:
            try:
                return step()
            except DurableError as error:
                self._failure = carried(error)
        return None

    def state_dict(self) -> dict[str, Any]:
        """After an error, where it began: what other workers gave may be saved beside it, if that was all."""
        if self._failure is not None:
            return self._begun
        state: dict[str, Any] = self._iterator.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._begun = state
        self._try(lambda: self._iterator.load_state_dict(state))


def _is_found(kind: type) -> bool:
    return getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return type(value) in _PLAIN
