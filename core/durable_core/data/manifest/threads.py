"""L3. The same work on many objects at once, as building and verifying do it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_threads(work: Callable[[T], R], items: Iterable[T], *, jobs: int, name: str) -> list[R]:
    """``work`` of each item, in order. The first error is raised, and what has not begun never does."""
    with ThreadPoolExecutor(jobs, thread_name_prefix=name) as pool:
        try:
            return list(pool.map(work, items))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
