"""L5. Joining the other nodes: torch's own rendezvous, connected again when the host of its store was lost.

Only what torch promises is used: ``create_backend`` and ``create_handler`` (or, for another backend, the
registry), ``RendezvousHandler``, and the variable that keeps torch's handler from caching where the workers'
store was: with it, a node that stays would tell a node that is new nothing, and both would fail.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any

from torch.distributed import DistError, DistStoreError
from torch.distributed.distributed_c10d import Store
from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from durable_core.clock import Clock
from durable_core.errors import NodesMissing, UsageError
from durable_core.launch.rendezvous.roster import Roster

log = logging.getLogger(__name__)

OURS = "durable"
#: Seconds: what torch waits for nodes unless told otherwise, and between attempts to reach its store.
JOIN_S, BACKOFF_S, BACKOFF_MOST_S = 600, 0.2, 3.0
#: Of torch's options, those with other defaults here: seconds between two signs of life of an agent. Three
#: without one, and it is dead.
_DEFAULTS = {"keep_alive_interval": 1}
_OWN_OPTIONS = ("inner", "root")
_CACHE_OFF = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


class Joining:
    """``next`` is a round. The connection is made at the first use."""

    def __init__(self, parameters: RendezvousParameters, clock: Clock, name: str) -> None:
        self._parameters = _inner(parameters)
        self._clock, self._name = clock, name
        self._handler: RendezvousHandler | None = None
        self._store: Store | None = None
        self.join_s = float(self._parameters.get_as_int("join_timeout", JOIN_S) or JOIN_S)

    @property
    def parameters(self) -> RendezvousParameters:
        return self._parameters

    @property
    def connected(self) -> bool:
        return self._handler is not None

    def next(self, deadline: float) -> RendezvousInfo:
        """Join the next round. What is lost on the way is built anew, until ``deadline`` (monotonic seconds).

        Raises ``NodesMissing`` when not all came, and torch's errors of a rendezvous that is closed, corrupt
        or out of reach.
        """
        wait = BACKOFF_S
        while True:
            try:
                with _cache_off(), self._watched():
                    return self.handler().next_rendezvous()
            except (RendezvousConnectionError, DistError) as error:
                if not isinstance(error, DistStoreError):
                    self.drop()
                if self._clock.monotonic() + wait > deadline:
                    raise
                log.warning("the rendezvous at %s: %s; trying again", self._parameters.endpoint, _said(error))
            except RendezvousTimeoutError as error:
                raise self._missing() from error
            self._clock.sleep(wait)
            wait = min(2 * wait, BACKOFF_MOST_S)

    def handler(self) -> RendezvousHandler:
        """Connects when there is none."""
        if self._handler is None:
            parameters = self._parameters
            if parameters.backend == "c10d":
                backend, self._store = create_backend(parameters)
                self._handler = create_handler(self._store, backend, parameters)
            else:
                self._handler = get_rendezvous_handler(parameters)
        return self._handler

    def drop(self) -> None:
        """Forget the connection. Not ``shutdown``: were it back, that would close the rendezvous for all."""
        self._handler = self._store = None

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        self.handler()
        roster = None
        if self._store is not None and self._parameters.max_nodes > 1:
            roster = self._roster = Roster(
                self._store, self._name, self._clock, least=self._parameters.min_nodes, seconds=self.join_s
            )
        try:
            yield
        finally:
            if roster is not None:
                roster.stop()

    def _missing(self) -> NodesMissing:
        least = self._parameters.min_nodes
        seen = self._roster.seen if self._store is not None and self._parameters.max_nodes > 1 else ()
        here = f"{len(seen)} ({', '.join(seen)})" if seen else "fewer"
        return NodesMissing(
            f"{least} nodes are needed and {here} came within {self.join_s:g} s",
            hint="start the others, allow fewer with --nnodes MIN:MAX, or wait longer with "
            "--rdzv-conf join_timeout=SECONDS",
        )


def _inner(parameters: RendezvousParameters) -> RendezvousParameters:
    """What torch's handler gets: ``--rdzv-conf inner=NAME`` names another than c10d (``backend`` is
    torch's own word). One node alone needs no place to meet; torch would take a fixed port, where it might
    meet another launch."""
    asked = parameters.get("inner") or (parameters.backend if parameters.backend != OURS else "c10d")
    config: dict[str, Any] = {**_DEFAULTS, **parameters.config}
    for name in _OWN_OPTIONS:
        config.pop(name, None)
    endpoint = parameters.endpoint or ("localhost:0" if parameters.max_nodes == 1 else "")
    if not endpoint and asked == "c10d":
        raise UsageError(
            "several nodes need a place to meet",
            hint="--rdzv-endpoint HOST:PORT; accelerate: --main_process_ip and no --same_network",
        )
    return RendezvousParameters(
        asked, endpoint, parameters.run_id, parameters.min_nodes, parameters.max_nodes,
        parameters.local_addr, **config,
    )  # fmt: skip


@contextlib.contextmanager
def _cache_off() -> Iterator[None]:
    before = os.environ.get(_CACHE_OFF)
    os.environ[_CACHE_OFF] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_CACHE_OFF]
        else:
            os.environ[_CACHE_OFF] = before


def _said(error: BaseException) -> str:
    return str(error.__cause__ or error).split("\n", 1)[0]
