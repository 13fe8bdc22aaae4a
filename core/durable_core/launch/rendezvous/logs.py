"""L5. Logs of workers that are kept: ``--logs-specs durable``.

Torch numbers directories by its count of restarts, which stands still when nodes come and go, and empties the
directory before it is used again: what the dead attempt said last is lost. Here the number is the attempt's.
"""

from __future__ import annotations

import os

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest

_COUNT = "TORCHELASTIC_RESTART_COUNT"


class KeptLogs(DefaultLogsSpecs):
    """As torch's own, with one directory for each attempt. What the launcher tells is put into the
    environment of each rank, for start methods that do not copy the agent's."""

    _starts = 0

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        self._starts += 1
        attempt = os.environ.get("DURABLE_ATTEMPT", "").rpartition("/")[2] or str(self._starts)
        told = {name: value for name, value in os.environ.items() if name.startswith("DURABLE_")}
        for env in envs.values():
            env.update({name: value for name, value in told.items() if name not in env})
        count = {rank: env.get(_COUNT) for rank, env in envs.items()}
        for env in envs.values():
            env[_COUNT] = attempt
        try:
            return super().reify(envs)
        finally:
            for rank, before in count.items():
                if before is None:
                    envs[rank].pop(_COUNT, None)
                else:
                    envs[rank][_COUNT] = before
