"""L5. Who takes part in a run, and how they agree. Used on the training thread only.

Commit coordination never goes through here: a dead peer must not hang a background write. What
does (opening, restoring, agreeing on a save at a boundary) happens where a dead peer ends the
process group anyway.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from durable_core.errors import DurableError, UsageError, rebuilt

T = TypeVar("T")


def role_name(replica: int) -> str:
    """The logical name of data-parallel replica ``replica``; keys carry it, never a rank."""
    return f"dp{replica}"


def collective_timeout(environ: Mapping[str, str] = os.environ) -> timedelta | None:
    """How long a collective may wait: what the environment says, ``DURABLE_COLLECTIVE_TIMEOUT_S`` in seconds;
    ``None``: nothing.

    For ``init_process_group(timeout=)``, ``new_group(timeout=)`` and ``DDPStrategy(timeout=)``, all of which
    take ``None`` for torch's own default: torch reads no environment for it, so a group that a script makes
    without it waits as long as that (30 minutes under gloo, 10 under NCCL). ``UsageError`` for what is no
    positive number.
    """
    text = environ.get("DURABLE_COLLECTIVE_TIMEOUT_S", "")
    if not text:
        return None
    try:
        timeout = timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        timeout = timedelta(0)
    if timeout <= timedelta(0):
        raise UsageError(f"DURABLE_COLLECTIVE_TIMEOUT_S={text!r}", hint="a positive number of seconds")
    return timeout


@dataclass(frozen=True)
class World:
    """``role`` is this writer, ``roles`` all of them in order; the first one coordinates.

    ``broadcast(value)`` returns the coordinator's value on every member, ``all_gather(value)`` the
    values of all members in the order of ``roles``. Values are JSON.
    """

    role: str
    roles: tuple[str, ...]
    broadcast: Callable[[Any], Any]
    all_gather: Callable[[Any], list[Any]]

    @property
    def coordinator(self) -> bool:
        return self.role == self.roles[0]

    @classmethod
    def solo(cls) -> World:
        return cls("dp0", ("dp0",), lambda value: value, lambda value: [value])

    @classmethod
    def torch_distributed(cls) -> World:
        """Every rank of the default process group is one data-parallel replica.

        Without an initialised group, or with one member, this is ``solo()``. Called by all ranks: where the
        default group is not gloo, what they tell each other goes through one that is, made here, for it must
        neither wait for an accelerator nor disturb what runs there.
        """
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
            return cls.solo()
        from durable_core.session import exchange

        size, rank = dist.get_world_size(), dist.get_rank()
        group = (
            None
            if dist.get_backend() == "gloo"
            else dist.new_group(backend="gloo", timeout=collective_timeout())
        )

        def broadcast(value: Any) -> Any:
            return json.loads(exchange.broadcast(json.dumps(value).encode() if rank == 0 else b"", group))

        def all_gather(value: Any) -> list[Any]:
            return [json.loads(each) for each in exchange.gather(json.dumps(value).encode(), group)]

        roles = tuple(role_name(i) for i in range(size))
        return cls(roles[rank], roles, broadcast, all_gather)

    def all(self, flag: bool) -> bool:
        """True when every member says so."""
        return flag if len(self.roles) == 1 else all(self.all_gather(flag))

    def greatest(self, values: tuple[int, int]) -> tuple[int, int]:
        """Of each of the two the greatest that any member gives."""
        first, second = zip(*self.all_gather(values), strict=True)
        return max(first), max(second)

    def decide(self, decision: Callable[[], Any]) -> Any:
        """Run ``decision`` on the coordinator; every member gets its JSON value, or its error."""
        if len(self.roles) == 1:
            return decision()
        answer: dict[str, Any] = {}
        failure: DurableError | None = None
        if self.coordinator:
            try:
                answer = {"value": decision()}
            except DurableError as error:
                failure = error
                answer = {"error": type(error).__name__, "message": str(error)}
        answer = self.broadcast(answer)
        if failure is not None:
            raise failure
        if "error" in answer:
            raise rebuilt(answer["error"], answer["message"])
        return answer["value"]

    def together(self, action: Callable[[], T]) -> T:
        """Run ``action`` on every member; when any fails, all fail, each with a typed error."""
        value: T | None = None
        failure: DurableError | None = None
        report: dict[str, Any] = {}
        try:
            value = action()
        except DurableError as error:
            failure = error
            report = {"error": type(error).__name__, "message": str(error), "key": getattr(error, "key", "")}
        if len(self.roles) > 1:
            for role, other in zip(self.roles, self.all_gather(report), strict=True):
                if failure is None and other:
                    failure = rebuilt(other["error"], f"{role}: {other['message']}", other["key"])
        if failure is not None:
            raise failure
        return value  # type: ignore[return-value]  # set whenever nothing failed
