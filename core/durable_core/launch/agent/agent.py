"""L5. The loop of one agent: meet the others, start workers, watch, find out what ended them, go on."""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from torch.distributed import DistError
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsSpecs, PContext, SignalException
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousGracefulExitError,
)

from durable_core.commit.claim import choose_before
from durable_core.engine.words import Member, Request
from durable_core.errors import NodesMissing, TierError
from durable_core.launch.agent import hooks, memory, teardown
from durable_core.launch.agent.ended import Cause, Ended, Verdict
from durable_core.launch.agent.house import House
from durable_core.launch.agent.starting import Starter
from durable_core.launch.agent.workers import Workers
from durable_core.launch.chaos import Scheduled
from durable_core.launch.classes import DRAINED
from durable_core.launch.machine import GroupPhase
from durable_core.launch.rendezvous import Restart, RunRendezvous

#: Seconds between two questions to the rendezvous store: whether nodes wait, whether one of them stops.
_ASK_S = 0.25
#: As shells say it: what was to be run is not there, or is no program.
_STATUS = {errno.ENOENT: 127, errno.ENOTDIR: 127, errno.EACCES: 126, errno.ENOEXEC: 126}
#: Seconds in which several signals are one stop.
_ONE_STOP_S = 5.0
#: Seconds between two looks into the journal for the end of a run, and for that to be there.
_LOOK_S, _LAST_WORD_S = 1.0, 120.0


Judge = Callable[[Ended], Verdict]


class Agent(LocalElasticAgent):
    """``run()``, and then ``verdict``. torch's counter of restarts is only a number here: budgets are in the
    journal."""

    def __init__(
        self, spec: WorkerSpec, logs_specs: LogsSpecs, house: House, starter: Starter, judge: Judge,
        *, kill_grace_s: float, stop_grace_s: float, extra: Mapping[str, str],
        chaos: Scheduled | None = None, log_line_prefix_template: str | None = None, barrier_s: float = 60.0,
    ) -> None:  # fmt: skip
        super().__init__(
            spec,
            logs_specs,
            exit_barrier_timeout=barrier_s,
            log_line_prefix_template=log_line_prefix_template,
        )
        self.verdict = Verdict(1, "it has not run")
        self._house, self._starter, self._judge = house, starter, judge
        self._kill_grace_s, self._stop_grace_s = kill_grace_s, stop_grace_s
        self._extra, self._chaos = extra, chaos
        self._rounds = 0
        self._asked = -_ASK_S
        self._done_at: float | None = None  # when all workers of this node had ended with 0
        self._looked = 0.0
        self._stopped = teardown.Stopped()
        self._provoked = ""
        self._killed: int | None = None  # for memory, before this attempt

    # --- the loop ----------------------------------------------------------------------------

    def _invoke_run(self, role: str = "default") -> RunResult:
        while True:
            self._remaining_restarts = self._worker_group.spec.max_restarts - self._rounds
            ended = self._once()
            self.verdict = self._judge(ended)
            if self.verdict.exit_code is not None:
                return self._result(ended)
            self._house.say(str(self.verdict))
            if not self._back_off(self.verdict.delay_s):
                self.verdict = Verdict(DRAINED, "stopped while it waited to start again")
                return self._result(ended)
            self._handler.restart = _restart(self.verdict)
            self._rounds += 1

    def _once(self) -> Ended:
        """One attempt, from the rendezvous until nothing of it is left."""
        try:
            with self._house.signals.raising():
                self._meet()
        except SignalException:
            return Ended(Cause.STOP)
        except (RendezvousClosedError, RendezvousGracefulExitError):
            return Ended(Cause.CLOSED)
        except (NodesMissing, RendezvousError) as error:
            self._house.say(f"rendezvous: {error}")
            return Ended(Cause.UNMET)
        except DistError as error:  # a node was lost just when all had met
            self._house.say(f"rendezvous: {error}")
            return Ended(Cause.REGROUP)
        try:
            ended = self._begin() or self._watch()
        except BaseException:
            self._stop(self._kill_grace_s)
            raise
        return self._finish(ended)

    def _unstarted(self, error: OSError) -> Ended:
        """What cannot be run is a mistake, and told as a shell does; what lacks for now (memory, processes)
        is waited for."""
        self._house.say(f"a worker could not be started: {error}")
        status = _STATUS.get(error.errno or 0)
        first = self._worker_group.workers[len(self._workers.processes)].global_rank
        return Ended(Cause.UNSTARTED, self._generation, {} if status is None else {first: status})

    def _meet(self) -> None:
        self._house.tell(GroupPhase.RENDEZVOUS, members=(), generation=None)
        self._rendezvous(self._worker_group)
        handler = self._handler
        self._house.tell(launch_id=handler.launch, attempt=handler.attempt)

    def _begin(self) -> Ended | None:
        """Start the workers; how the attempt ended, if they could not be."""
        self._pcontext, self._provoked, self._killed = None, "", memory.kills()
        self._done_at = None
        self._house.control(self._worker_group.group_rank == 0)
        self._hold()
        self._house.fresh_attempt(self._pids)
        self._house.tell(GroupPhase.STARTING, generation=self._generation, expected=self._world_size)
        try:
            with hooks.starting_through(self._context):
                ids = self._start_workers(self._worker_group)
        except OSError as error:
            if self._pcontext is None or len(self._workers.processes) == len(self._worker_group.workers):
                raise  # it is of something else
            return self._unstarted(error)
        for local, worker in enumerate(self._worker_group.workers):
            worker.id = ids[local]
        self._worker_group.state = WorkerState.HEALTHY
        self._house.tell(GroupPhase.UP, members=self._members())
        return None

    def _context(self, **given: Any) -> PContext:
        """In place of torch's ``start_processes``. Kept before it starts anything, so that a start that fails
        half-way is stopped as well."""
        self._pcontext = made = Workers(self._starter, os.environ, self._extra, **given)
        made.start()
        return made

    # --- watching ----------------------------------------------------------------------------

    def _watch(self) -> Ended:
        clock, signals = self._house.clock, self._house.signals
        drained_at: float | None = None
        while True:
            self._tend()
            if signals.count:
                return self._seen(Cause.STOP, why=signals.told)
            exits = self._workers.exits()
            if any(status not in (0, DRAINED) for status in exits.values()):
                return self._seen(Cause.FAILED)
            if len(exits) == len(self._workers.processes):
                if DRAINED in exits.values():
                    return self._seen(Cause.DRAINED)
                if self._settled():
                    return self._seen(Cause.FINISHED)
            if DRAINED in exits.values():
                drained_at = clock.monotonic() if drained_at is None else drained_at
                if clock.monotonic() - drained_at > self._stop_grace_s:
                    return self._seen(Cause.DRAINED)
            self._provoke()
            ended = self._asked_for() or self._heard()
            if ended is not None:
                return ended
            signals.wait(self._worker_group.spec.monitor_interval, self._living().values())

    def _settled(self) -> bool:
        """Whether it is time to judge workers that all have ended with 0. Of several nodes one may have done
        its part before another has recorded the end of the run: so not before that is in the journal, or the
        others ask for something, or all of them are silent for long."""
        books = self._handler.books()
        if books is None or (self._worker_group.group_world_size or 1) == 1:
            return True
        now = self._house.clock.monotonic()
        if self._done_at is None:
            self._house.say("the workers of this node have done their part; the end of the run is waited for")
            self._done_at = self._looked = now
        elif now - self._looked < _LOOK_S:
            return False
        self._looked = now
        with suppress(TierError):
            state = books.state()
            if state is None or state.terminal is not None:
                return True
        return now - self._done_at > _LAST_WORD_S

    def _provoke(self) -> None:
        """On one node: a fault in every period, not one for every node."""
        if self._chaos is not None and self._worker_group.group_rank == 0:
            self._provoked = self._chaos.tend(self._by_rank(self._living())) or self._provoked

    def _tend(self) -> None:
        self._starter.tend()
        self._house.tend()
        known, facts = (self._generation, self._starter.ready), self._house.facts
        if known != (facts.generation, facts.standbys):
            self._house.tell(generation=known[0], standbys=known[1])

    def _asked_for(self) -> Ended | None:
        for request in self._house.requests(self._generation):
            if request.kind == "dump":
                self._house.dump(self._by_rank(self._living()))
            elif request.kind == "drain":
                return self._seen(Cause.DRAINED, request, why=request.reason)
            else:
                return self._seen(Cause.REQUESTED, request)
        return None

    def _heard(self) -> Ended | None:
        """From the other nodes; asked a few times a second, for each question is a round trip."""
        now = self._house.clock.monotonic()
        if now - self._asked < _ASK_S:
            return None
        self._asked = now
        if why := self._handler.told_to_stop():
            return self._seen(Cause.TOLD, why=why)
        if self._handler.num_nodes_waiting() > 0:
            return self._seen(Cause.REGROUP)
        return None

    def _seen(self, cause: Cause, request: Request | None = None, why: str = "") -> Ended:
        exits = self._by_rank(self._workers.exits())
        return Ended(
            cause, self._generation, exits, request=request, provoked=self._provoked,
            oom=memory.killed(self._killed, memory.kills()), at=self._house.clock.monotonic(), why=why,
        )  # fmt: skip

    # --- stopping ----------------------------------------------------------------------------

    def _finish(self, ended: Ended) -> Ended:
        """Stop what still runs, as its cause asks for, and add what came of it."""
        planned = ended.cause in (Cause.STOP, Cause.TOLD, Cause.DRAINED)
        self._house.tell(GroupPhase.DRAINING if planned else GroupPhase.STOPPING, members=self._members())
        self._handler.seen_end()
        if ended.why:
            self._house.announce(ended.why)
        if ended.cause is Cause.STOP:
            self._handler.stop_others(ended.why)
        self._stop(self._stop_grace_s if planned else self._kill_grace_s)
        self._hold()
        self._house.tell(GroupPhase.STOPPED, members=self._members())
        after = {
            rank: status
            for rank, status in self._by_rank(self._workers.exits()).items()
            if rank not in ended.exits
        }
        cause = ended.cause
        if planned and not ended.exits and after and not any(after.values()):
            cause = Cause.FINISHED  # it was done before the signal came to it
        return replace(
            ended, cause=cause, after=after, forced=self._stopped.forced, attempt=self._handler.attempt
        )

    def _stop(self, grace_s: float) -> None:
        """Nothing of the attempt is left afterwards, or it is told what is. One more signal from the operator
        shortens the grace to that of a failure; those that come with the first are the same stop (a scheduler
        may tell the process and its group)."""
        if self._pcontext is None:
            return
        clock, signals = self._house.clock, self._house.signals
        begun, known = clock.monotonic(), signals.count

        def graced() -> bool:
            nonlocal known
            for_s = clock.monotonic() - begun
            known = signals.count if for_s < _ONE_STOP_S else known
            hurried = signals.count > max(1, known)
            return for_s < (min(grace_s, self._kill_grace_s) if hurried else grace_s)

        ranks = {pid: rank for rank, pid in self._by_rank(self._workers.pids()).items()}

        def parted(pid: int) -> bool:
            """Last words are left when all else has ended, and by none that drains."""
            return self._house.parted(ranks[pid])

        self._stopped = teardown.stop(
            list(self._workers.processes.values()), graced=graced, wait=signals.wait,
            rest=self._house.strays, parted=parted,
            meant=lambda pid: self._house.meant(ranks[pid], pid, signal.SIGTERM),
        )  # fmt: skip
        self._pcontext.close()
        if self._stopped.stuck:
            self._house.say(f"processes {self._stopped.stuck} do not die of SIGKILL; they wait for a device")

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._stop(self._kill_grace_s)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        self._stop(self._kill_grace_s)
        self._pcontext = None

    def _back_off(self, seconds: float) -> bool:
        """False when a signal ended it."""
        self._house.tell(GroupPhase.BACKOFF, reason=self.verdict.why)
        clock = self._house.clock
        until = clock.monotonic() + seconds
        while not self._house.signals.count and (left := until - clock.monotonic()) > 0:
            self._tend()
            self._house.signals.wait(min(left, 0.5))
        return not self._house.signals.count

    # --- looking -----------------------------------------------------------------------------

    @property
    def _workers(self) -> Workers:
        assert isinstance(self._pcontext, Workers)
        return self._pcontext

    @property
    def _handler(self) -> RunRendezvous:
        handler = self._worker_group.spec.rdzv_handler
        assert isinstance(handler, RunRendezvous)
        return handler

    @property
    def _generation(self) -> int | None:
        """The one claimed for these workers, or by them."""
        terms, opened = self._handler.terms, self._house.opened()
        claimed = None if terms is None else terms.generation
        own = opened.generation if opened is not None else None
        return max((each for each in (claimed, own) if each is not None), default=None)

    @property
    def _world_size(self) -> int:
        return self._worker_group.workers[0].world_size

    def _pids(self) -> tuple[int, ...]:
        workers = () if self._pcontext is None else tuple(self._pcontext.pids().values())
        return (*workers, *self._starter.pids)

    def _living(self) -> dict[int, int]:
        """By local rank; the number of one that has been waited for may be anybody's."""
        exits = self._workers.exits()
        return {local: pid for local, pid in self._workers.pids().items() if local not in exits}

    def _by_rank(self, by_local: Mapping[int, int]) -> dict[int, int]:
        ranks = {worker.local_rank: worker.global_rank for worker in self._worker_group.workers}
        return {ranks[local]: status for local, status in by_local.items()}

    def _hold(self) -> None:
        """On node 0, which claims."""
        first = self._worker_group.group_rank == 0
        self._house.hold(self._handler.books() if first else None, self._generation)

    def _members(self) -> tuple[Member, ...]:
        exits, host, node = self._workers.exits(), socket.gethostname(), self._worker_group.group_rank or 0
        return tuple(
            Member(worker.global_rank, worker.id, host, node, exits.get(worker.local_rank))
            for worker in self._worker_group.workers
        )

    def _result(self, ended: Ended) -> RunResult:
        """For torch's own metrics and events."""
        self._house.tell(GroupPhase.ENDED, reason=self.verdict.why)
        if self.verdict.exit_code == 0 and (self._worker_group.group_world_size or 1) > 1:
            hooks.exit_barrier(self)
        state = WorkerState.SUCCEEDED if self.verdict.exit_code == 0 else WorkerState.STOPPED
        ranks = [worker.global_rank for worker in self._worker_group.workers]
        return RunResult(state, dict.fromkeys(ranks))


def _restart(verdict: Verdict) -> Restart:
    onset = verdict.onset
    if onset is None:
        return Restart(verdict.reason)
    return Restart(verdict.reason, onset, lambda state: choose_before(state, onset))
