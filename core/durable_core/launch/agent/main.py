"""L5. ``durable launch``: one agent from its flags to its exit status."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters, registry

from durable_core.clock import Clock, SystemClock
from durable_core.launch.agent import flags as flagging
from durable_core.launch.agent import hooks
from durable_core.launch.agent.agent import Agent, Cause, Ended, Verdict
from durable_core.launch.agent.flags import Flags
from durable_core.launch.agent.house import House
from durable_core.launch.agent.signals import Signals
from durable_core.launch.agent.starting import Cold
from durable_core.launch.classes import DRAINED, FENCED


def launch(arguments: Sequence[str], say: Callable[[str], None], clock: Clock | None = None) -> int:
    """Run to the end of the group or of the launch; the exit status (``core/design/0008-launcher.md``)."""
    clock = clock or SystemClock()
    flags = flagging.parse(arguments, clock.new_id)
    identity = os.environ.get("DURABLE_LAUNCH_ID") or (clock.new_id() if flags.alone else flags.config.run_id)
    signals = Signals()
    signals.install(flags.config.signals_to_handle.split(","))
    house = House(identity, clock, signals, say)
    try:
        return _run(flags, house)
    finally:
        house.close()


def _run(flags: Flags, house: House) -> int:
    config = flags.config
    parameters = RendezvousParameters(
        backend=config.rdzv_backend, endpoint=config.rdzv_endpoint, run_id=config.run_id,
        min_nodes=config.min_nodes, max_nodes=config.max_nodes, local_addr=config.local_addr,
        **config.rdzv_configs,
    )  # fmt: skip
    handler = _handler(parameters)
    agent = Agent(
        _spec(flags, parameters, handler), config.logs_specs, house, Cold(), _plain_judge,
        kill_grace_s=flags.kill_grace_s, stop_grace_s=flags.stop_grace_s, extra=_told(flags),
        log_line_prefix_template=config.log_line_prefix_template,
    )  # fmt: skip
    try:
        agent.run()
    finally:
        handler.shutdown()
    house.say(agent.verdict.why)
    assert agent.verdict.exit_code is not None
    return agent.verdict.exit_code


def _spec(flags: Flags, parameters: RendezvousParameters, handler: RendezvousHandler) -> WorkerSpec:
    config, (entrypoint, *rest) = flags.config, flags.command
    host, port = hooks.address(parameters)
    return WorkerSpec(
        role=config.role, local_world_size=config.nproc_per_node, entrypoint=entrypoint, args=tuple(rest),
        rdzv_handler=handler, max_restarts=config.max_restarts, monitor_interval=config.monitor_interval,
        master_addr=host, master_port=port, local_addr=config.local_addr,
        event_log_handler=config.event_log_handler, numa_options=config.numa_options,
        duplicate_stdout_filters=config.duplicate_stdout_filters,
        duplicate_stderr_filters=config.duplicate_stderr_filters,
        virtual_local_rank=config.virtual_local_rank,
    )  # fmt: skip


def _handler(parameters: RendezvousParameters) -> RendezvousHandler:
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    return registry.get_rendezvous_handler(parameters)


def _told(flags: Flags) -> dict[str, str]:
    return {"DURABLE_ON_NUMERIC": flags.on_numeric, "DURABLE_TAKEOVER": "1" if flags.takeover else ""}


def _plain_judge(ended: Ended) -> Verdict:
    if ended.cause is Cause.FINISHED:
        return Verdict(0, "every worker ended with 0")
    if ended.cause is Cause.STOP:
        return Verdict(DRAINED if ended.clean else 1, "stopped as asked")
    if FENCED in ended.exits.values():
        return Verdict(FENCED, "fenced: another launch continues this run")
    return Verdict(None, f"{ended.cause.value}: {dict(ended.exits)}", 0.0, "F1")
