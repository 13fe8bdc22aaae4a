"""L5. The rendezvous under an agent that is not ours (``torchrun``, ``accelerate launch``)."""

from __future__ import annotations

import logging

from torch.distributed.elastic.rendezvous import (
    RendezvousHandlerCreator,
    RendezvousInfo,
    RendezvousParameters,
)

from durable_core.clock import SystemClock
from durable_core.launch.agent import sweeping
from durable_core.launch.rendezvous.handler import RunRendezvous

#: Looks at what does not die at once: some four seconds.
_LOOKS = 28

log = logging.getLogger(__name__)


class PluggedRendezvous(RunRendezvous):
    """Torch's agent ends workers, and nothing that they have started: a loader's or a tracker's process of a
    killed worker would live on beside the next group. Here it is ended before that group starts, and with
    the last one."""

    def next_rendezvous(self) -> RendezvousInfo:
        """As ``RunRendezvous.next_rendezvous``."""
        self._end_strays()
        return super().next_rendezvous()

    def shutdown(self) -> bool:
        self._end_strays()
        return super().shutdown()

    def _end_strays(self) -> None:
        """Whatever has the environment of a worker of this agent: none lives between two groups."""
        entry = sweeping.mark(self._dir.path)
        left = sweeping.sweep(
            lambda: sweeping.marked(entry, also=b"LOCAL_RANK"), self._clock.sleep, looks=_LOOKS
        )
        if left:
            log.warning("of the group before, these processes have not ended: %s", sorted(left))


def create_handler(parameters: RendezvousParameters) -> RunRendezvous:
    """What TorchElastic calls for ``--rdzv-backend durable``."""
    return PluggedRendezvous(parameters, SystemClock())


def plugin() -> RendezvousHandlerCreator:
    """The entry point: TorchElastic calls it to learn what to call."""
    return create_handler
