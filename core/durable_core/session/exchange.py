"""L5. Bytes between the members of a gloo group.

No tensor that took part is left to gloo's threads. torch (2.13) hangs where the last owner of a gloo group
goes while one of the group's threads frees a tensor that Python has seen: the destructor waits for the
thread, and holds the interpreter's lock, which the thread needs. An exchange is often a run's last act but
for the end of its model, and DDP's reducer is such an owner. So the last tensors are kept, each with a view:
what something else in C++ still owns, gloo's thread does not free.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

#: Of so many collectives: far more than there are before a thread of gloo that has been woken runs.
_LAST = 16
_kept: deque[list[tuple[Tensor, Tensor]]] = deque(maxlen=_LAST)


def keep(*tensors: Tensor) -> None:
    """Keep the tensors of one collective for a while. They must be no views, and not be made under
    ``torch.inference_mode``, where a view of them would own nothing."""
    _kept.append([(each, each[:]) for each in tensors])


@torch.inference_mode(False)
def broadcast(value: bytes, group: ProcessGroup | None) -> bytes:
    """What rank 0 gives; the ``value`` of the others is not looked at."""
    length = _broadcast(torch.tensor([len(value)], device="cpu"), group)
    return _broadcast(_filled(value, int(length)), group).numpy().tobytes()


@torch.inference_mode(False)
def gather(value: bytes, group: ProcessGroup | None) -> list[bytes]:
    """What each member gives, in the order of their ranks."""
    lengths = [int(each) for each in _gather(torch.tensor([len(value)], device="cpu"), group)]
    payloads = _gather(_filled(value, max(lengths)), group)
    return [payload.numpy().tobytes()[:n] for payload, n in zip(payloads, lengths, strict=True)]


def _broadcast(tensor: Tensor, group: ProcessGroup | None) -> Tensor:
    keep(tensor)
    dist.broadcast(tensor, src=0, group=group)
    return tensor


def _gather(mine: Tensor, group: ProcessGroup | None) -> list[Tensor]:
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    keep(mine, *found)
    dist.all_gather(found, mine, group=group)
    return found


def _filled(value: bytes, length: int) -> Tensor:
    return torch.frombuffer(bytearray(value[:length].ljust(length, b"\0")), dtype=torch.uint8)
