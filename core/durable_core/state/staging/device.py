"""L3. CUDA: pinned slots, and copies on a stream of their own beside the training's.

Only what differs from host memory is here. A device-to-host copy is asynchronous only into pinned
memory, so the slot's mapping is registered once; the side stream starts when the training's stream has done
what it was given so far, and the next update waits for the copy on the device, not on the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from durable_core.errors import UsageError

#: Replaced in tests on machines without one.
cuda: Any = torch.cuda


class Pin:
    """Host memory registered with CUDA until ``release``, which must come before it is unmapped."""

    def __init__(self, whole: Tensor) -> None:
        self._address = whole.data_ptr()
        code = int(cuda.cudart().cudaHostRegister(self._address, whole.nbytes, 0))
        if code:
            raise UsageError(
                f"CUDA cannot pin a slot of {whole.nbytes} bytes (cudaHostRegister: error {code})",
                hint="use fewer slots, or allow more locked memory",
            )

    def release(self) -> None:
        cuda.cudart().cudaHostUnregister(self._address)


@dataclass(frozen=True)
class DeviceCopy:
    """Copies under way on one device's side stream; ``event`` comes after the last of them."""

    device: torch.device
    event: Any

    def hold_stream(self) -> None:
        """What the current stream is given from now on waits for the copies; the host does not."""
        cuda.current_stream(self.device).wait_event(self.event)

    def wait(self) -> None:
        """On the host, until the bytes are in the slot. Other threads run meanwhile."""
        self.event.synchronize()


class Streams:
    """One side stream per device."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, Any] = {}

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> Sequence[DeviceCopy]:
        """Start copying each (pinned destination, CUDA source), in the order of the current streams."""
        groups: dict[torch.device, list[tuple[Tensor, Tensor]]] = {}
        for destination, source in pairs:
            groups.setdefault(source.device, []).append((destination, source))
        return [self._copy(device, group) for device, group in groups.items()]

    def _copy(self, device: torch.device, pairs: list[tuple[Tensor, Tensor]]) -> DeviceCopy:
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = cuda.Stream(device)
        stream.wait_stream(cuda.current_stream(device))
        with cuda.stream(stream), torch.no_grad():
            for destination, source in pairs:
                destination.copy_(source, non_blocking=True)
                source.record_stream(stream)  # freed by training meanwhile, it is not reused before the copy
        return DeviceCopy(device, stream.record_event())
