"""L3. Errors out of workers: of the class that was raised, with its attributes.

torch makes an exception of a worker again from one text, which few of ours can be made from: those that name
an object and a record would arrive as ``RuntimeError``. So they travel as values, in place of a batch.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from torch.utils.data import get_worker_info

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
    """``error``, which is being handled, as a value; raised on where it need not or cannot be one.

    That is in the training process itself, and of a class that cannot be found by name there. Attributes
    that are no plain values stay behind: one that cannot be pickled would hang the worker's queue.
    """
    info = get_worker_info()
    kind = type(error)
    if info is None or getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is not kind:
        raise error
    copied = kind.__new__(kind, *error.args) if _is_plain(error.args) else kind.__new__(kind, str(error))
    copied.__dict__.update({name: value for name, value in vars(error).items() if _is_plain(value)})
    return Failure(copied, info.id, "".join(traceback.format_exception(error)))


def unwrapped(fetched: Iterable[T | Failure]) -> Iterator[T]:
    """What was fetched, up to a failure, which is raised."""
    for item in fetched:
        if isinstance(item, Failure):
            raise item.again()
        yield item


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return type(value) in _PLAIN
