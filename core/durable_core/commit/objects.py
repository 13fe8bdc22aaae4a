"""L3. Writing one immutable document, and waiting for one, without ever waiting forever."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from durable_core.commit.effects import Get, Now, Program, PutIfAbsent, SyncTail, Wait
from durable_core.errors import CommitAborted, InDoubt, TierUnavailable

T = TypeVar("T")


def put_document(key: str, data: bytes, *, attempts: int = 5, retry_seconds: float = 0.05) -> Program[None]:
    """Put ``data`` at ``key`` durably, where nothing or exactly that may stand already.

    An earlier attempt whose acknowledgement was lost, by this process or one before it, is found by
    its bytes, and its name is made durable before it counts. Raises ``CommitAborted`` when something
    else stands there, or the tier's error after ``attempts``.
    """
    failure: TierUnavailable | InDoubt | None = None
    for attempt in range(attempts):
        if attempt:
            yield Wait(retry_seconds * 2 ** (attempt - 1))
        try:
            if (yield PutIfAbsent(key, data)):
                return
            found = yield Get(key)
            if found == data:
                yield SyncTail(key.rpartition("/")[0] + "/")
                return
            if found is not None:
                raise CommitAborted(f"{key} is taken by something else")
        except (TierUnavailable, InDoubt) as error:
            failure = error
    raise failure or TierUnavailable(f"{key} exists and cannot be read")


def poll(
    look: Callable[[], Program[T | None]],
    *,
    seconds: float,
    first_wait: float = 0.01,
    longest_wait: float = 0.25,
) -> Program[T | None]:
    """Ask ``look`` until it has an answer; ``None`` when ``seconds`` have passed without one.

    It is asked about five times as often as time has passed since the start, so that what takes long is
    seen at most a fifth of that time later, up to ``longest_wait``.

    A tier that is unavailable for a moment is asked again. Looks at least once, and once more at the
    deadline, so a process that was stopped over it still sees what arrived meanwhile.
    """
    deadline = (yield Now()) + seconds
    wait = first_wait
    while True:
        now = yield Now()
        try:
            answer = yield from look()
        except TierUnavailable:
            answer = None
        if answer is not None or now >= deadline:
            return answer
        yield Wait(min(wait, max(deadline - now, 0.0)))
        wait = min(1.25 * wait, longest_wait)
