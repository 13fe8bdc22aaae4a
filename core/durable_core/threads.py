"""L1. Threads that outlast the end of a script."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class LastingPool(ThreadPoolExecutor):
    """Takes work until the process is gone.

    The executors of the standard library end before the first ``atexit`` function runs, and refuse work from
    then on; a save may still be under way there, or be begun. Such work is done by who asks for it,
    and its error is raised there and then.
    """

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError:
            if threading.main_thread().is_alive():
                raise  # for another reason
        done: Future[T] = Future()
        done.set_result(fn(*args, **kwargs))
        return done
