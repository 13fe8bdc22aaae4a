"""L5. What the nodes of one round tell each other before they start workers: each what it knows, and node 0
what holds.

All of it lies in the store of the round, so nothing of an earlier round can be taken for this one's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from torch.distributed.distributed_c10d import Store

from durable_core.clock import Clock
from durable_core.errors import DurableError, FormatError, rebuilt

T = TypeVar("T")

#: Seconds for the nodes of a round to say that they are here, and for node 0 to say what holds: a claim may
#: wait for a dead owner to vanish and for a slow store.
HERE_S, TERMS_S = 30.0, 120.0
_POLL_S = 0.02
_HERE, _TERMS = "durable/here", "durable/terms"


class Disbanded(Exception):
    """This round comes to nothing: somebody is missing, or wants to join. Meet again."""


@dataclass(frozen=True)
class Here:
    """What one node brings. ``attempt``: the newest it took part in, 0: none; ``root``, ``roles``: of the run
    that its launch works on; ``nodes``: how many there were; ``size``: workers it starts, 0: not known."""

    node: str
    launch: str = ""
    attempt: int = 0
    root: str = ""
    roles: tuple[str, ...] = ()
    nodes: int = 0
    size: int = 0

    @property
    def pid(self) -> int | None:
        """Of its agent, if that is on this host; else of nobody, or by chance of somebody here."""
        number = self.node.rpartition(":")[2]
        return int(number) if number.isdecimal() else None


@dataclass(frozen=True)
class Terms:
    """What holds for the workers of this round, on all nodes. ``addr``, ``port``: of their store;
    ``generation``: claimed for them, ``None``: they claim; ``reason``, ``onset``: what this start follows."""

    addr: str
    port: int
    launch: str
    attempt: int
    root: str = ""
    roles: tuple[str, ...] = ()
    run_id: str = ""
    generation: int | None = None
    reason: str = ""
    onset: int | None = None

    def environment(self) -> dict[str, str]:
        """As ``Launched.of`` reads it; the run directory is each node's own."""
        told = {
            "DURABLE_LAUNCH_ID": self.launch,
            "DURABLE_ATTEMPT": f"{self.launch}/{self.attempt}",
            "DURABLE_RESTART_REASON": self.reason,
            "DURABLE_RESTART_ONSET": "" if self.onset is None else str(self.onset),
        }
        if self.generation is not None:
            told.update(DURABLE_RUN_ID=self.run_id, DURABLE_GENERATION=str(self.generation))
        return {name: value for name, value in told.items() if value}


#: Everything that ``Terms.environment`` may set: an earlier attempt's is removed.
TOLD = (
    "DURABLE_LAUNCH_ID", "DURABLE_ATTEMPT", "DURABLE_RESTART_REASON", "DURABLE_RESTART_ONSET",
    "DURABLE_RUN_ID", "DURABLE_GENERATION",
)  # fmt: skip


class Meeting:
    """One round. ``restless()``: whether somebody waits to join, asked now and then while waiting."""

    def __init__(self, store: Store, clock: Clock, restless: Callable[[], bool]) -> None:
        self._store, self._clock, self._restless = store, clock, restless

    def arrive(self, rank: int, here: Here) -> None:
        self._store.set(f"{_HERE}/{rank}", json.dumps(asdict(here)))

    def lead(self, nodes: int, decide: Callable[[tuple[Here, ...]], Terms]) -> Terms:
        """Node 0: when all are here, decide and tell. The others get ``decide``'s error too.

        ``Disbanded`` when somebody is missing: nothing is claimed for a group that will not be.
        """
        documents = [self._await(f"{_HERE}/{rank}", HERE_S, f"node {rank}") for rank in range(nodes)]
        try:
            terms = decide(tuple(_here(document) for document in documents))
        except DurableError as error:
            told = {"error": type(error).__name__, "message": str(error), "key": getattr(error, "key", "")}
            self._store.set(_TERMS, json.dumps(told))
            raise
        self._store.set(_TERMS, json.dumps(asdict(terms)))
        return terms

    def follow(self) -> Terms:
        """Any other node: what node 0 told, or its error."""
        document = self._await(_TERMS, TERMS_S, "node 0")
        if "error" in document:
            raise rebuilt(document["error"], f"node 0: {document['message']}", document["key"])
        return _made(_TERMS, lambda: Terms(**{**document, "roles": tuple(document["roles"])}))

    def _await(self, key: str, seconds: float, who: str) -> dict[str, Any]:
        begun = looked = self._clock.monotonic()
        while not self._store.check([key]):
            now = self._clock.monotonic()
            if now - begun > seconds:
                raise Disbanded(f"{who} was not heard of for {seconds:g} s")
            if now - looked > 1.0:
                looked = now
                if self._restless():
                    raise Disbanded("a node waits to join")
            self._clock.sleep(_POLL_S)
        document = json.loads(self._store.get(key))
        if not isinstance(document, dict):
            raise FormatError(key, "not an object")
        return document


def _here(document: Mapping[str, Any]) -> Here:
    return _made(_HERE, lambda: Here(**{**document, "roles": tuple(document["roles"])}))


def _made(key: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except (TypeError, KeyError) as error:
        raise FormatError(key, f"another version's: {error}", hint="run one version on all nodes") from error


def freshest(heres: tuple[Here, ...]) -> Here:
    """Of what the nodes know, that of the newest attempt: a relaunched agent knows nothing."""
    return max(heres, key=lambda here: (bool(here.root), here.attempt))
