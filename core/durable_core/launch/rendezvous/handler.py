"""L5. A rendezvous handler that starts every group clean.

One round, after torch's own has gathered the nodes: each says what it knows, node 0 claims the generation and
opens a store for the workers on a port of its own, and tells the others. So no group meets the keys of a dead
one, all workers train under the generation that was claimed for them, and an agent that was relaunched learns
what it needs from those that stayed.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import logging
import os
import socket
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path

from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]  # untold to type checkers
from torch.distributed.distributed_c10d import Store
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)

from durable_core.clock import Clock
from durable_core.commit.claim import Chooser, choose_restore_point
from durable_core.engine import words
from durable_core.engine.launched import RunFiles, leave
from durable_core.engine.roots import named
from durable_core.errors import LostSlot, NodeQuarantined, NodesMissing, TierError, TierUnavailable
from durable_core.launch import quarantine
from durable_core.launch.books import Books, Claimed
from durable_core.launch.bounded import Bounded
from durable_core.launch.evidence import Lost
from durable_core.launch.rendezvous.joining import BACKOFF_S, OURS, Joining
from durable_core.launch.rendezvous.mirror import Mirror
from durable_core.launch.rendezvous.pulse import LOST_S
from durable_core.launch.rendezvous.rundir import RunDir
from durable_core.launch.rendezvous.terms import TOLD, Disbanded, Here, Meeting, Terms, freshest

log = logging.getLogger(__name__)

#: Seconds that a node which ends waits for the others to have seen it, before its store goes with it.
FAREWELL_S = 3.0
_FAREWELL = "durable/farewell"
_OPENED = "durable/opened"
_STOP = "durable/stop"
_LONGEST_ID = 100


@dataclass(frozen=True)
class Restart:
    """What the next start follows, as the agent of node 0 has judged it. ``choose``: of the restore point."""

    reason: str = ""
    onset: int | None = None
    choose: Chooser = field(default=choose_restore_point)


class RunRendezvous(RendezvousHandler):
    """``parameters.config``: ``root`` of the run (else ``DURABLE_ROOT``, else the one that the first worker
    opens) and ``inner`` (a backend, else c10d) are ours, the rest is that backend's. ``size``: workers that
    this node will start, 0: not known.

    For the agent: ``files`` (the run directory), ``launch`` and ``attempt`` (after the first round),
    ``claimed`` (node 0), ``terms`` (all), ``restart`` to be set before a round, ``books()``.
    """

    def __init__(self, parameters: RendezvousParameters, clock: Clock, *, size: int = 0) -> None:
        self._clock, self._size = clock, size
        self._addr = parameters.local_addr or ("127.0.0.1" if parameters.max_nodes == 1 else socket.getfqdn())
        self.node = f"{self._addr}:{os.getpid()}"
        self._joining = Joining(parameters, clock, self.node)
        self._takeover = os.environ.get("DURABLE_TAKEOVER", "") not in ("", "0", "false")
        own = leave() or self._takeover  # by a worker of another launch, whose identity it has inherited
        self._asked = _asked_launch(parameters.run_id, own=own)
        self._given = self._root = parameters.get("root") or os.environ.get("DURABLE_ROOT", "")
        self._roles: tuple[str, ...] = ()
        self._nodes = 0
        self._books: Books | None = None
        self._info: RendezvousInfo | None = None
        self._workers_store: Store | None = None
        self._mirror: Mirror | None = None
        self._lost = self._closed = self._shared = False
        self.terms: Terms | None = None
        self.claimed: Claimed | None = None
        self.restart = Restart()
        self._met: set[int] = set()
        self._dir = RunDir()
        atexit.register(self._dir.remove)

    # --- for the agent -----------------------------------------------------------------------

    @property
    def files(self) -> RunFiles:
        return self._dir.files

    @property
    def launch(self) -> str:
        return "" if self.terms is None else self.terms.launch

    @property
    def spare(self) -> bool:
        """Whether the group of the last round can do without one of its nodes."""
        return self._nodes > self._joining.parameters.min_nodes

    @property
    def attempt(self) -> int:
        return 0 if self.terms is None else self.terms.attempt

    def books(self) -> Books | None:
        """The journal, once it is known where: told, or opened by a worker of this launch."""
        self._look_for_opened()
        if not self._root or not self.launch:
            return None
        return self._books_of(self._root, self.launch)

    # --- RendezvousHandler -------------------------------------------------------------------

    def get_backend(self) -> str:
        return OURS

    def get_run_id(self) -> str:
        return self._joining.parameters.run_id

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """The next group, ready to be started: the environment of this process is what its workers need.

        Raises ``NodeQuarantined``, ``NodesMissing``, the errors of a claim on all nodes alike (``RunBusy``,
        ``Superseded``, ``NoUsableCheckpoint``), and torch's of a rendezvous that is closed or out of reach.
        """
        if self._closed:
            raise RendezvousClosedError
        self._unmirror()
        self._look_for_opened()
        self._refuse_barred()
        deadline = self._clock.monotonic() + self._joining.join_s
        while True:
            info = self._joining.next(deadline)
            try:
                return self._begin(info, self._meet(info))
            except (Disbanded, DistError) as why:
                said = str(why).split("\n", 1)[0]
                if self._clock.monotonic() > deadline:
                    raise NodesMissing(f"the {info.world_size} nodes found one another, but: {said}") from why
                log.warning("round of %d nodes: %s; meeting again", info.world_size, said)
                if isinstance(why, DistError):
                    self._joining.drop()
                    self._clock.sleep(BACKOFF_S)

    def is_closed(self) -> bool:
        return self._closed or self._joining.handler().is_closed()

    def set_closed(self) -> None:
        self._joining.handler().set_closed()  # type: ignore[no-untyped-call]

    def num_nodes_waiting(self) -> int:
        """Nodes that wait to join; 1 when the host of the rendezvous is lost: its node has to be replaced, so
        all have to meet again."""
        if self._lost:
            return 1
        try:
            if self._closed or self._joining.handler().is_closed():
                self._say_farewell()
                return 0
            self._share_opened()
            return self._joining.handler().num_nodes_waiting()
        except (RendezvousConnectionError, DistError) as error:
            log.warning("the rendezvous is lost (%s); its host has to come back", error)
            self._lost = True
            self._joining.drop()
            return 1

    def shutdown(self) -> bool:
        """Close the rendezvous for all nodes. The run directory stays until ``remove``, or to the end."""
        done = True
        self._unmirror()
        if self._joining.connected:
            done = self._joining.handler().shutdown()
            self._part()
        self._workers_store = None
        self._joining.drop()
        return done

    def stop_others(self, why: str) -> None:
        """A planned stop of this node is one of all: their agents are told."""
        if self._info is not None and self._info.world_size > 1:
            with contextlib.suppress(DistError):  # lost: then the others meet anew, and see who is there
                self._info.store.set(_STOP, why)

    def told_to_stop(self) -> str:
        """Why another node stops as planned; ``""``: none does."""
        if self._info is None or self._info.world_size == 1:
            return ""
        store = self._info.store
        try:
            return store.get(_STOP).decode() if store.check([_STOP]) else ""
        except DistError:
            return ""  # ``num_nodes_waiting`` tells of the loss

    def seen_end(self) -> None:
        """This agent has seen the end of the attempt, for those of other nodes that ask who is ``lost``."""
        if self._mirror is not None:
            with contextlib.suppress(DistError):  # its host is lost: nobody asks there any more
                self._mirror.pulse.end()

    def lost(self) -> tuple[Lost, ...]:
        """The nodes of the round whose agents are gone. Waits for some seconds for those that are not heard
        of; when the store does not answer, it is its host."""
        if self._mirror is None:
            return ()
        pulse = self._mirror.pulse
        try:
            return Bounded("the rendezvous").call(lambda _: pulse.lost(), 2 * LOST_S)
        except TierUnavailable as error:
            log.warning("%s", error.message)
            return (Lost(""),)

    def remove(self) -> None:
        """The run directory, when nothing writes there any more. Harmless when repeated."""
        self._dir.remove()

    # --- a round -----------------------------------------------------------------------------

    def _meet(self, info: RendezvousInfo) -> Terms:
        meeting = Meeting(info.store, self._clock, self._restless)
        self.claimed = None
        self._workers_store = None  # its workers are stopped, or are not ours any more
        meeting.arrive(info.rank, self._here())
        if info.rank:
            return meeting.follow()
        return meeting.lead(info.world_size, self._decide)

    def _restless(self) -> bool:
        return self._joining.handler().num_nodes_waiting() > 0

    def _here(self) -> Here:
        return Here(self.node, self.launch, self.attempt, self._root, self._roles, self._nodes, self._size)

    def _decide(self, heres: tuple[Here, ...]) -> Terms:
        newest = max(heres, key=lambda here: here.attempt)
        known = freshest(heres)
        launch = newest.launch or self._asked or self._clock.new_id()
        root = self._root or known.root
        if root:
            self._met |= {pid for here in heres if (pid := here.pid) is not None}
            self.claimed = self._claim(self._books_of(root, launch), _members(known, heres))
        store = TCPStore(self._addr, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
        self._workers_store = store
        claimed = self.claimed
        return Terms(
            self._addr, store.port, launch, newest.attempt + 1, root,
            roles=known.roles if claimed is None else claimed.members,
            run_id="" if claimed is None else claimed.run_id,
            generation=None if claimed is None else claimed.token.generation,
            reason=self.restart.reason, onset=self.restart.onset,
        )  # fmt: skip

    def _claim(self, books: Books, members: tuple[str, ...] | None) -> Claimed | None:
        """``None``: the workers claim, because there is nothing to claim yet or the store does not answer;
        they will meet the same trouble, and say so."""
        try:
            return books.claim(members, takeover=self._takeover, choose=self.restart.choose, kin=self._met)
        except (TierError, LostSlot) as error:
            log.warning("no generation was claimed, the workers do it: %s", error)
            return None

    def _begin(self, info: RendezvousInfo, terms: Terms) -> RendezvousInfo:
        self.terms, self._info = terms, info
        self._lost = self._shared = False
        self._root, self._roles = self._root or terms.root, terms.roles
        self._nodes = info.world_size
        for kind in ("beats", "mute", "words", "stacks"):
            for path in (self._dir.path / kind).iterdir():
                path.unlink(missing_ok=True)
        for name in TOLD:
            os.environ.pop(name, None)
        os.environ.update(terms.environment(), DURABLE_RUN_DIR=str(self._dir.path))
        if terms.generation is not None:
            self._taken_over()
        if info.world_size > 1:
            self._mirror = Mirror(info.store, info.rank, info.world_size, self.files, self._clock)
            self._mirror.start()
        return RendezvousInfo(
            info.store, info.rank, info.world_size, RendezvousStoreInfo(terms.addr, terms.port)
        )

    def _refuse_barred(self) -> None:
        """Before anybody counts on this node. A store that does not answer bars nobody."""
        most = self._joining.parameters.max_nodes
        if not self._root or most == 1:
            return
        try:
            run = self._books_of(self._root, self.launch or self._asked).state()
        except TierError as error:
            log.warning("whether this host is in quarantine is not known: %s", error)
            return
        host = socket.gethostname()
        why = None if run is None else quarantine.barred(run, host, most=most)
        if why is not None:
            raise NodeQuarantined(
                str(why),
                hint=f"start another host in its place; once it is mended: durable quarantine {self._root} "
                f"--lift node {host}",
            )

    def _taken_over(self) -> None:
        """Once is what was asked for: whoever takes the run over from this launch then keeps it."""
        self._takeover = False
        os.environ.pop("DURABLE_TAKEOVER", None)

    def _unmirror(self) -> None:
        if self._mirror is not None:
            self._mirror.stop()
            self._mirror = None

    # --- what the workers opened -------------------------------------------------------------

    def _look_for_opened(self) -> None:
        opened = words.read_opened(self.files.opened)
        if opened is not None and (not self._given or _place(opened.root) == _place(self._given)):
            self._root, self._roles = opened.root, opened.roles
            self._taken_over()

    def _share_opened(self) -> None:
        """Every node learns which run it is, once in a round: whichever agent is lost then, another one can
        claim, and has what its controller needs."""
        if self._shared or self._info is None or self._info.world_size == 1:
            return
        store = self._info.store
        opened = words.read_opened(self.files.opened)
        if opened is not None:
            store.set(_OPENED, json.dumps(asdict(opened)))
        elif store.check([_OPENED]):
            document = json.loads(store.get(_OPENED))
            opened = words.Opened(**{**document, "roles": tuple(document["roles"])})
            try:
                words.write(self.files.opened, opened)
            except OSError:
                return  # no room for a moment: at the next look
        self._shared = opened is not None
        self._look_for_opened()

    def _books_of(self, root: str, launch: str) -> Books:
        if self._books is None or (self._books.root, self._books.launch) != (root, launch):
            self._books = Books(root, self._clock, launch)
        return self._books

    # --- the end -----------------------------------------------------------------------------

    def _say_farewell(self) -> None:
        if self._info is not None and not self._closed:
            self._info.store.set(f"{_FAREWELL}/{self._info.rank}", "seen")
        self._closed = True

    def _part(self) -> None:
        """The store may be ours: it stays until the others have seen that it is closed, or do not look."""
        if self._info is None or self._info.world_size == 1:
            return
        others = [f"{_FAREWELL}/{rank}" for rank in range(self._info.world_size)]
        with contextlib.suppress(DistError):
            self._say_farewell()
            self._info.store.wait(others, timedelta(seconds=FAREWELL_S))


def _place(root: str) -> Path:
    """The same for all names of a directory, and for all of a URL that differ in slashes alone."""
    return Path(named(root)).resolve()


def _asked_launch(run_id: str, *, own: bool) -> str:
    """The identity that a supervisor gives this launch over its restarts; ``""``: none, it is a new one.

    A takeover is a launch ``own``: it must not inherit an identity that was superseded.
    """
    told = os.environ.get("DURABLE_LAUNCH_ID", "")
    asked = told or ("" if own else (run_id if run_id != "none" else os.environ.get("SLURM_JOB_ID", "")))
    if len(asked) <= _LONGEST_ID:
        return asked
    return f"{asked[:32]}-{hashlib.sha256(asked.encode()).hexdigest()[:32]}"


def _members(known: Here, heres: tuple[Here, ...]) -> tuple[str, ...] | None:
    """The roles of the last attempt, when this one has as many workers; ``None``: not known."""
    sizes = [here.size for here in heres]
    same = sum(sizes) == len(known.roles) if all(sizes) else known.nodes == len(heres)
    return known.roles if known.roles and same else None
