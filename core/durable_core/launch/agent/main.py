"""L5. ``durable launch``: one agent from its flags to its exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.rendezvous import RendezvousParameters

from durable_core.clock import Clock, SystemClock
from durable_core.engine.roots import open_root
from durable_core.errors import DurableError, FencedError, RunBusy, UsageError
from durable_core.launch import ending
from durable_core.launch.agent import flags as flagging
from durable_core.launch.agent.agent import Agent
from durable_core.launch.agent.ended import Verdict
from durable_core.launch.agent.flags import Flags
from durable_core.launch.agent.house import House
from durable_core.launch.agent.judging import Judge
from durable_core.launch.agent.signals import Signals
from durable_core.launch.agent.starting import Cold, Starter
from durable_core.launch.agent.terms import Terms
from durable_core.launch.books import Books
from durable_core.launch.bounded import Bounded
from durable_core.launch.chaos import Chaos, Scheduled
from durable_core.launch.classes import CANCELLED, FENCED
from durable_core.launch.controller.incident import redacted, secrets_of
from durable_core.launch.machine import GroupPhase
from durable_core.launch.pilot import gate
from durable_core.launch.rendezvous import RunRendezvous
from durable_core.launch.standby.pool import Warm

#: Seconds for the post-run manifest: a long run's ledger is read for it.
SUMMARY_S = 120.0
USAGE = UsageError.exit_code


def launch(arguments: Sequence[str], say: Callable[[str], None], clock: Clock | None = None) -> int:
    """Run to the end of the run or of the launch; the exit status (``core/design/0008-launcher.md``).

    Raises ``UsageError``, ``RunBusy``, ``NoUsableCheckpoint`` and what else keeps a run from being started.
    """
    clock = clock or SystemClock()
    flags = flagging.parse(arguments, clock.new_id)
    flagging.check_script(flags)
    if flags.takeover:
        os.environ["DURABLE_TAKEOVER"] = "1"
    secrets = secrets_of(os.environ)
    pilot = gate(flags.pilot, flags.script)
    signals = Signals()
    signals.install(flags.config.signals_to_handle.split(","))
    handler = RunRendezvous(_parameters(flags), clock, size=flags.config.nproc_per_node)
    house = House(
        handler.files, clock, signals, lambda line: say(redacted(line, secrets)),
        lambda: _controller(flags, handler, pilot),
    )  # fmt: skip
    starter: Starter = Cold()
    if flags.standbys:
        starter = Warm(starter, flags.standbys, flags.standby_imports, say=house.say)
    try:
        verdict = _run(flags, handler, house, starter, secrets)
        house.say(verdict.why)
    finally:
        handler.shutdown()
        starter.close()
        house.close()
        handler.remove()
    assert verdict.exit_code is not None
    return verdict.exit_code


def _run(
    flags: Flags, handler: RunRendezvous, house: House, starter: Starter, secrets: tuple[str, ...]
) -> Verdict:
    terms = Terms.of(flags, house.files.root)
    house.tell(GroupPhase.PREFLIGHT)
    if unfit := terms.preflight(house.clock, house.say, house.signals.wait):
        return _unfit(flags, house.clock, unfit)
    judge = Judge(
        house.files, house.clock, terms.policy, handler.books, partial(_complete, house.clock), house.say,
        terms.spent(house.clock), secrets, handler.node, lambda: handler.spare, handler.lost,
    )  # fmt: skip
    config = flags.config
    assert config.logs_specs is not None  # torch's parser makes them
    agent = Agent(
        _spec(flags, handler), config.logs_specs, house, starter, judge, kill_grace_s=flags.kill_grace_s,
        stop_grace_s=flags.stop_grace_s, extra=terms.told,
        chaos=_chaos(flags, house), log_line_prefix_template=config.log_line_prefix_template,
    )  # fmt: skip
    try:
        agent.run()
    except RunBusy:
        raise
    except FencedError as error:
        return Verdict(FENCED, error.message)
    return agent.verdict


def _unfit(flags: Flags, clock: Clock, why: str) -> Verdict:
    """An end cannot be started over, with checks or without."""
    try:
        state = Books(flags.root, clock, "").state()
    except DurableError:  # that it cannot be read is among the reasons
        state = None
    over = None if state is None else state.terminal
    if over is not None and over.outcome == "cancelled":
        return Verdict(CANCELLED, "the run was cancelled; start another under another root")
    if over is not None and over.outcome == "failed":
        return Verdict(USAGE, "the run has failed for good; start another under another root")
    return Verdict(
        USAGE, f"preflight: {why} (durable preflight tells more; --no-preflight starts all the same)"
    )


def _parameters(flags: Flags) -> RendezvousParameters:
    config = flags.config
    options = dict(config.rdzv_configs)
    if flags.root:
        options["root"] = flags.root
    return RendezvousParameters(
        backend=config.rdzv_backend, endpoint=config.rdzv_endpoint, run_id=config.run_id,
        min_nodes=config.min_nodes, max_nodes=config.max_nodes, local_addr=config.local_addr, **options,
    )  # fmt: skip


def _spec(flags: Flags, handler: RunRendezvous) -> WorkerSpec:
    config, (entrypoint, *rest) = flags.config, flags.command
    return WorkerSpec(
        role=config.role, local_world_size=config.nproc_per_node, entrypoint=entrypoint, args=tuple(rest),
        rdzv_handler=handler, max_restarts=config.max_restarts, monitor_interval=config.monitor_interval,
        local_addr=config.local_addr, event_log_handler=config.event_log_handler,
        numa_options=config.numa_options, duplicate_stdout_filters=config.duplicate_stdout_filters,
        duplicate_stderr_filters=config.duplicate_stderr_filters,
        virtual_local_rank=config.virtual_local_rank,
    )  # fmt: skip


def _complete(clock: Clock, books: Books) -> None:
    tier = open_root(books.root)
    Bounded("the post-run manifest").call(lambda _: ending.complete(tier, clock, books.name), SUMMARY_S)


def _chaos(flags: Flags, house: House) -> Scheduled | None:
    if flags.chaos_every_s is None:
        return None
    chaos = Chaos(flags.chaos_every_s, flags.root or flags.config.run_id)
    return Scheduled(chaos, house.clock, house.say)


def _controller(flags: Flags, handler: RunRendezvous, pilot: str) -> tuple[str, ...]:
    limits = (f"--{phase}-limit={limit}" for phase, limit in flags.limits.items())
    command = (sys.executable, "-m", "durable_core.launch.controller", str(handler.files.root))
    return (*command, "--launch-id", handler.launch, "--root", flags.root, f"--pilot={pilot}", *limits)
