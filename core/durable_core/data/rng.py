"""L3. Random numbers per sample: each sample's draws depend on what it is, never on who fetches it when.

Before a sample is fetched the three process-wide streams (python's ``random``, numpy's legacy
global, torch's default CPU generator) are seeded from (seed, dataset id, epoch, sample id, transform
version). User code keeps calling ``random.random()``, ``np.random.rand()`` and ``torch.rand()``; its
draws are the same for any number of workers, after any resume.

Not reached: generators that user code makes for itself and lets advance across samples, and those
of accelerators. numpy and torch use 32 bits of a seed, so two samples may share a stream there
(about n^2 / 2^33 pairs in n); harmless for augmentation.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from durable_core.data.keys import hash_fields

VERSION = "sample_rng_v1"
_SEEDS = struct.Struct("<QQI")


class Generator(Protocol):
    """What is asked of ``torch.default_generator``, which the loader passes in."""

    def manual_seed(self, seed: int) -> Any: ...

    def get_state(self) -> Any: ...

    def set_state(self, state: Any) -> Any: ...


class Seeds(NamedTuple):
    """Independent seeds of 64, 64 and 32 bits."""

    python: int
    torch: int
    numpy: int


class SampleSeeds:
    """Derives the seeds of a sample or batch: a keyed hash, no state that matters. Picklable."""

    def __init__(self, *, dataset_id: str, seed: int, transform_version: str = "") -> None:
        self._context = (VERSION, dataset_id, seed, transform_version)
        self._epoch = -1
        self._key = b""

    def sample(self, epoch: int, sample: int) -> Seeds:
        """For ``dataset[sample]``."""
        return self._derive(epoch, b"sample", sample, 0)

    def collate(self, epoch: int, batch: int, part: int) -> Seeds:
        """For collating; ``part`` is where the replica's share begins in the global batch."""
        return self._derive(epoch, b"collate", batch, part)

    def fetch(self, epoch: int, batch: int, part: int) -> Seeds:
        """For fetching a whole batch by one ``__getitems__`` call."""
        return self._derive(epoch, b"fetch", batch, part)

    def sampler(self, epoch: int, batch: int) -> Seeds:
        """For drawing the ids of one batch from a user's sampler."""
        return self._derive(epoch, b"sampler", batch, 0)

    def stream(self, epoch: int, worker: int, ordinal: int) -> Seeds:
        """For the ``ordinal``-th item of a worker's part of an iterable dataset."""
        return self._derive(epoch, b"stream", worker, ordinal)

    def stream_collate(self, epoch: int, worker: int, ordinal: int) -> Seeds:
        """For collating a batch whose first item that is."""
        return self._derive(epoch, b"stream-collate", worker, ordinal)

    def _derive(self, epoch: int, person: bytes, first: int, second: int) -> Seeds:
        if epoch != self._epoch:
            self._key = hash_fields(*self._context, epoch)
            self._epoch = epoch
        message = first.to_bytes(8, "little") + second.to_bytes(8, "little")
        digest = hashlib.blake2b(message, key=self._key, person=person, digest_size=_SEEDS.size).digest()
        return Seeds(*_SEEDS.unpack(digest))


def seed_streams(seeds: Seeds, generator: Generator) -> None:
    """Seed python's, numpy's and torch's global streams; ``generator`` is ``torch.default_generator``.

    (``torch.manual_seed`` would also visit every device, at 80 times the cost.)
    """
    random.seed(seeds.python)
    np.random.seed(seeds.numpy)
    generator.manual_seed(seeds.torch)


@contextlib.contextmanager
def preserved_streams(generator: Generator) -> Iterator[None]:
    """Put the three global streams back afterwards, whatever the body draws or seeds."""
    python, legacy, torch_state = random.getstate(), np.random.get_state(), generator.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)
        generator.set_state(torch_state)
