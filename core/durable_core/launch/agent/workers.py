"""L5. The processes of one attempt on this node, for TorchElastic: its log files and its tee, our starter."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from torch.distributed.elastic.multiprocessing import LogsSpecs, PContext, RunProcsResult

from durable_core.launch.agent import hooks
from durable_core.launch.agent.starting import Process, Starter


class Workers(PContext):
    """``base``: the environment that torch's own variables are added to, and ours to those (``added``)."""

    def __init__(
        self, starter: Starter, base: Mapping[str, str], added: Mapping[str, str], *, entrypoint: str,
        args: dict[int, tuple[Any, ...]], envs: dict[int, dict[str, str]], logs_specs: LogsSpecs,
        numa_options: Any = None, name: str, log_line_prefixes: dict[int, str] | None = None,
        duplicate_stdout_filters: list[str] | None = None,
        duplicate_stderr_filters: list[str] | None = None, **unused: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            name, entrypoint, args, envs, logs_specs, log_line_prefixes,
            duplicate_stdout_filters=duplicate_stdout_filters,
            duplicate_stderr_filters=duplicate_stderr_filters,
        )  # fmt: skip
        self._starter, self._numa_options = starter, numa_options
        self._environment = {**base}
        self._added = added
        self.processes: dict[int, Process] = {}

    def start(self) -> None:
        """Without the signal handlers that the parent would install. Raises ``OSError``; what has been
        started by then is in ``processes``."""
        self._start()
        hooks.start_tailing(self)

    def pids(self) -> dict[int, int]:
        return {local: process.pid for local, process in self.processes.items()}

    def exits(self) -> dict[int, int]:
        """Of those that have ended, by local rank."""
        polled = {local: process.poll() for local, process in self.processes.items()}
        return {local: status for local, status in polled.items() if status is not None}

    def _start(self) -> None:
        for local, args in self.args.items():
            command = hooks.bound((str(self.entrypoint), *map(str, args)), local, self._numa_options)
            env = {**self._environment, **self.envs[local], **self._added}
            self.processes[local] = self._starter.start(
                command, env, self.stdouts[local], self.stderrs[local]
            )

    def _poll(self) -> RunProcsResult | None:
        return None  # the agent looks at ``exits`` itself: one that ended says nothing of the others yet

    def _close(self, death_sig: signal.Signals, timeout: int = 30) -> None:
        """Nothing: the agent ends processes (``teardown``) before it closes what they wrote to."""
