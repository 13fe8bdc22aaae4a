"""L3. Copying live tensors into a slot: at once, or in the background while training computes.

In the background one thread copies with numpy, which lets other threads run and starts none of its own:
torch's copy would put a second team of threads beside the training's. It works in chunks, so that a
copy that is no longer wanted ends soon.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from durable_core.format import digests
from durable_core.state.memory import writable
from durable_core.state.staging.device import DeviceCopy, Streams

_CHUNK = 32 << 20
_BLOCK = 64 << 10
#: Of so many blocks one is compared.
_SPARSE = 16

#: key, destination in the slot, live source
Pair = tuple[str, Tensor, Tensor]


class Copy:
    """Some tensors on their way into a slot.

    The live tensors are held until ``forget``, so that ``touched`` can look at them; with ``keep`` so can
    ``difference``.
    """

    def __init__(
        self, pairs: list[Pair], parts: Sequence[DeviceCopy], thread: ThreadPoolExecutor, *, keep: bool
    ) -> None:
        self._pairs, self._parts, self._keep = pairs, parts, keep
        self._versions = [
            (key, source, source._version) for key, _, source in pairs if not source.is_inference()
        ]
        self.cancelled = False
        self._host = thread.submit(self._copy_host)
        self._whole = thread.submit(self._wait_devices) if parts else self._host

    def hold(self) -> None:
        """Until the host's tensors are copied, or failed to be; devices' current streams wait for theirs."""
        self._host.exception()
        for part in self._parts:
            part.hold_stream()

    def wait(self) -> BaseException | None:
        """Until every byte is in the slot, or the reason why that will never be."""
        return self._whole.exception()

    def cancel(self) -> None:
        """Return when nothing writes into the slot any more, whether all was copied or not."""
        self.cancelled = True
        self._whole.exception()
        self.forget()

    def forget(self) -> None:
        self._pairs, self._versions = [], []

    def touched(self) -> str | None:
        """The key of a tensor that torch has written to since the copy began, as torch counts it.

        Costs next to nothing, so it is asked every time. Writes through ``.data`` or numpy are not counted.
        """
        return next((key for key, source, version in self._versions if source._version != version), None)

    def difference(self) -> str | None:
        """The key of a tensor whose live bytes are not those in the slot; ``None`` when all agree.

        Bytes, not values: NaN equals itself, and 0.0 is not -0.0. Of a large tensor one block in sixteen is
        looked at, its first and its last always: what changes weights behind torch's back (averages swapped
        in, a clamp) changes whole tensors, and a look at every byte would cost more than the copy.
        """
        for key, destination, source in _chunks(self._pairs):
            live, staged = writable(source.contiguous().cpu()), writable(destination)
            for begin in _looked_at(len(staged)):
                part = slice(begin, begin + _BLOCK)
                if digests.xxh3(staged[part]) != digests.xxh3(live[part]):
                    return key
        return None

    def _copy_host(self) -> None:
        for _, destination, source in _chunks([pair for pair in self._pairs if not pair[2].is_cuda]):
            if self.cancelled:
                break
            _copy_alone(destination, source)
        if not self._keep and not self._parts:
            self._pairs = []

    def _wait_devices(self) -> None:
        for part in self._parts:
            part.wait()
        self._host.result()  # one thread: it has ended, and its failure is the failure of the whole
        if not self._keep:
            self._pairs = []


def copy_now(destinations: list[Tensor], sources: list[Tensor], streams: Streams | None) -> None:
    """Every byte is in the slot on return. ``streams``: where some sources are on CUDA."""
    if streams is not None:
        pairs = list(zip(destinations, sources, strict=True))
        for part in streams.copy(pair for pair in pairs if pair[1].is_cuda):
            part.wait()
        host = [pair for pair in pairs if not pair[1].is_cuda]
        destinations, sources = [pair[0] for pair in host], [pair[1] for pair in host]
    if sources:
        with torch.no_grad():
            torch._foreach_copy_(destinations, sources)  # one call: 2,000 tensors cost microseconds each


def _chunks(pairs: list[Pair]) -> Iterator[Pair]:
    """The same pairs in pieces of at most ``_CHUNK`` bytes, or of one row where a row has more."""
    for key, destination, source in pairs:
        to, live = destination, source.detach()
        if live.is_contiguous():
            to, live = to.view(-1), live.view(-1)
        if to.nbytes <= _CHUNK:
            yield key, to, live
            continue
        rows = max(1, _CHUNK * to.shape[0] // to.nbytes)
        for begin in range(0, to.shape[0], rows):
            yield key, to[begin : begin + rows], live[begin : begin + rows]


def _looked_at(nbytes: int) -> Iterator[int]:
    """Where the blocks begin that are compared."""
    yield from range(0, nbytes, _BLOCK if nbytes <= _SPARSE * _BLOCK else _SPARSE * _BLOCK)
    yield max(0, nbytes - _BLOCK)


def _copy_alone(destination: Tensor, source: Tensor) -> None:
    if source.is_contiguous():
        np.copyto(np.asarray(writable(destination)), np.asarray(writable(source)))
    else:
        with torch.no_grad():
            destination.copy_(source)  # knows how to walk strides
