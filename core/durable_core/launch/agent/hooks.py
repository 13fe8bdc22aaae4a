"""L5. All of TorchElastic that is used here and is not promised, in one place, with the version tried.

``TABLE`` lists what must be there and how it is called; ``broken()`` says what is not, and a test fails with
exactly that. Public names (``LocalElasticAgent``, ``PContext``, ``config_from_args``) are used where they
are needed.

==================================  ======================================================================
private                             used for
==================================  ======================================================================
``_invoke_run``                     replaced: the loop is ours; torch counts restarts per agent, without
                                    classes, without backoff
``_rendezvous``                     called as it is
``_start_workers``                  called with ``start_processes`` replaced for that moment: torch's
                                    environment for the workers stays what each version makes it
``_stop_workers``, ``_shutdown``    replaced: 30 s are hard-coded in them
``_exit_barrier``                   called, with a time of ours
``_remaining_restarts``             set, so that ``TORCHELASTIC_RESTART_COUNT`` and the names of log
                                    directories count attempts; never read
``PContext._start`` and others      a context of ours starts workers through a ``Starter``; the parent's
                                    ``start`` would install signal handlers that raise
==================================  ======================================================================
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.elastic.agent.server import local_elastic_agent
from torch.distributed.elastic.multiprocessing import PContext, tail_log
from torch.distributed.launcher import api as launcher
from torch.numa import binding

#: The version all of this was tried on.
TESTED = "2.13.0"


@dataclass(frozen=True)
class Hook:
    """``name`` in ``owner``; ``parameters``: those that are passed here, by name; ``None`` for an attribute
    that instances get in ``__init__``."""

    owner: Any
    name: str
    parameters: tuple[str, ...] | None
    use: str


_AGENT = local_elastic_agent.LocalElasticAgent

TABLE: tuple[Hook, ...] = (
    Hook(_AGENT, "_invoke_run", ("role",), "the loop"),
    Hook(_AGENT, "_rendezvous", ("worker_group",), "joining the other nodes"),
    Hook(_AGENT, "_start_workers", ("worker_group",), "starting workers"),
    Hook(_AGENT, "_stop_workers", ("worker_group",), "stopping workers"),
    Hook(_AGENT, "_shutdown", ("death_sig", "timeout"), "stopping workers at the end"),
    Hook(_AGENT, "_exit_barrier", (), "waiting for the other nodes at the end"),
    Hook(_AGENT, "_worker_group", None, "who the workers are"),
    Hook(_AGENT, "_remaining_restarts", None, "the number of the attempt"),
    Hook(_AGENT, "_store", None, "the exit barrier"),
    Hook(_AGENT, "_pcontext", None, "the processes"),
    Hook(_AGENT, "_exit_barrier_timeout", None, "the exit barrier"),
    Hook(
        local_elastic_agent, "start_processes",
        (
            "name", "entrypoint", "args", "envs", "logs_specs", "log_line_prefixes", "numa_options",
            "duplicate_stdout_filters", "duplicate_stderr_filters",
        ),
        "starting workers",
    ),
    Hook(
        PContext, "__init__",
        (
            "name", "entrypoint", "args", "envs", "logs_specs", "log_line_prefixes",
            "duplicate_stdout_filters", "duplicate_stderr_filters",
        ),
        "log files",
    ),
    Hook(PContext, "_start", (), "starting workers"),
    Hook(PContext, "_poll", (), "starting workers"),
    Hook(PContext, "_close", ("death_sig", "timeout"), "stopping workers"),
    Hook(PContext, "_tail_logs", None, "tee"),
    Hook(tail_log.TailLog, "start", (), "tee"),
    Hook(tail_log.TailLog, "stop", (), "tee"),
    Hook(launcher, "_get_addr_and_port", ("rdzv_parameters",), "static rendezvous"),
    Hook(launcher, "_get_entrypoint_name", ("entrypoint", "args"), "naming the script"),
    Hook(
        binding, "_maybe_wrap_command_args_with_numa_binding",
        ("command_args", "gpu_index", "numa_options"), "NUMA binding",
    ),
)  # fmt: skip


def broken(table: tuple[Hook, ...] = TABLE) -> tuple[str, ...]:
    """What of ``table`` is not in this torch as it is used here; empty when all is."""
    return tuple(
        f"torch {torch.__version__} (tried on {TESTED}): {fault}: needed for {hook.use}"
        for hook in table
        if (fault := _fault(hook))
    )


def _fault(hook: Hook) -> str:
    where = f"{getattr(hook.owner, '__name__', hook.owner)}.{hook.name}"
    if hook.parameters is None:
        return "" if _is_set(hook.owner, hook.name) else f"{where} is not set by any __init__"
    found = getattr(hook.owner, hook.name, None)
    if not callable(found):
        return f"{where} is not there"
    named = inspect.signature(found).parameters
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in named.values())
    lacking = [name for name in hook.parameters if name not in named]
    return f"{where} takes no {', '.join(lacking)}" if lacking and not takes_any else ""


def _is_set(owner: type, name: str) -> bool:
    """An attribute of instances: some ``__init__`` of the class or its parents sets ``self.name``."""
    return any(
        f"self.{name} = " in text or f"self.{name}: " in text
        for kind in owner.__mro__
        if "__init__" in vars(kind)
        for text in [_source(vars(kind)["__init__"])]
    )


def _source(function: Any) -> str:
    try:
        return inspect.getsource(inspect.unwrap(function))
    except (OSError, TypeError):
        return ""


@contextmanager
def starting_through(start: Callable[..., PContext]) -> Iterator[None]:
    """Within, torch's ``_start_workers`` calls ``start`` in place of its own ``start_processes``."""
    module: Any = local_elastic_agent
    theirs = module.start_processes
    module.start_processes = start
    try:
        yield
    finally:
        module.start_processes = theirs


def bound(command: tuple[str, ...], local_rank: int, numa_options: Any) -> tuple[str, ...]:
    """``command`` under the NUMA binding that was asked for."""
    wrapped = binding._maybe_wrap_command_args_with_numa_binding(
        command, gpu_index=local_rank, numa_options=numa_options
    )
    return tuple(wrapped)


def start_tailing(context: PContext) -> None:
    for tail in context._tail_logs:
        tail.start()


def exit_barrier(agent: Any) -> None:
    """Until the other nodes' workers have ended too, or the agent's ``_exit_barrier_timeout`` is over."""
    agent._exit_barrier()


def address(parameters: Any) -> tuple[str | None, int | None]:
    """Of a static rendezvous; (None, None) for others."""
    host, port = launcher._get_addr_and_port(parameters)
    return host, port


def entrypoint_name(entrypoint: Any, args: list[Any]) -> str:
    return str(launcher._get_entrypoint_name(entrypoint, args))
