"""L5. Bytes between the members of a gloo group.

No tensor that took part is left to gloo's threads. torch (2.13) hangs where the last owner of a gloo group
goes while one of the group's threads frees a tensor that Python has seen: the destructor waits for the
thread, and holds the interpreter's lock, which the thread needs. An exchange is often a run's last act but
for the end of its model, and DDP's reducer is such an owner. So the last tensors are kept, each with a view:
what something else in C++ still owns, gloo's thread does not free.
"""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

#: Far more than are exchanged before a thread of gloo that has been woken runs.
_LAST = 32
_kept: deque[tuple[Tensor, Tensor]] = deque(maxlen=_LAST)


def kept(tensor: Tensor) -> Tensor:
    """``tensor``, kept for a while. Not under ``torch.inference_mode``: there a view owns nothing."""
    _kept.append((tensor, tensor[:]))
    return tensor


@torch.inference_mode(False)
def broadcast(value: bytes, group: ProcessGroup | None) -> bytes:
    """What rank 0 gives; the ``value`` of the others is not looked at."""
    length = kept(torch.tensor([len(value)], device="cpu"))
    dist.broadcast(length, src=0, group=group)
    payload = kept(_filled(value, int(length)))
    dist.broadcast(payload, src=0, group=group)
    return payload.numpy().tobytes()


@torch.inference_mode(False)
def gather(value: bytes, group: ProcessGroup | None) -> list[bytes]:
    """What each member gives, in the order of their ranks."""
    lengths = _gathered(torch.tensor([len(value)], device="cpu"), group).tolist()
    longest = max(lengths)
    payloads = _gathered(_filled(value, longest), group).numpy().tobytes()
    return [payloads[at : at + n] for at, n in zip(count(0, longest), lengths, strict=False)]


def _gathered(mine: Tensor, group: ProcessGroup | None) -> Tensor:
    """Of all members, one after another."""
    out = kept(torch.empty(dist.get_world_size(group) * len(mine), dtype=mine.dtype, device="cpu"))
    dist.all_gather_into_tensor(out, kept(mine), group=group)
    return out


def _filled(value: bytes, length: int) -> Tensor:
    return torch.frombuffer(bytearray(value[:length].ljust(length, b"\0")), dtype=torch.uint8)
