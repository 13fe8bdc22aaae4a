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

import numpy as np
import torch

from .keys import hash_fields

VERSION = "sample_rng_v1"
_SEEDS = struct.Struct("<QQI")


class SampleStreams:
    """Seeds the global streams for one sample or one batch of an epoch. Picklable; cheap (~10 us a call)."""

    def __init__(self, *, dataset_id: str, seed: int, transform_version: str = "") -> None:
        self._context = (VERSION, dataset_id, seed, transform_version)
        self._epoch = -1
        self._key = b""

    def seed_sample(self, epoch: int, sample: int) -> None:
        """Streams for ``dataset[sample]``."""
        self._seed(epoch, b"sample", sample, 0)

    def seed_batch(self, epoch: int, batch: int, part: int) -> None:
        """Streams for collating: ``part`` is where the replica's share begins in the global batch."""
        self._seed(epoch, b"batch", batch, part)

    def seed_fetch(self, epoch: int, batch: int, part: int) -> None:
        """Streams for fetching a batch by one ``__getitems__`` call."""
        self._seed(epoch, b"fetch", batch, part)

    def seed_sampler(self, epoch: int, batch: int) -> None:
        """Streams for drawing the ids of one batch from a user's sampler."""
        self._seed(epoch, b"sampler", batch, 0)

    def seed_stream(self, epoch: int, worker: int, ordinal: int) -> None:
        """Streams for the ``ordinal``-th item of a worker's part of an iterable dataset."""
        self._seed(epoch, b"stream", worker, ordinal)

    def _seed(self, epoch: int, person: bytes, first: int, second: int) -> None:
        if epoch != self._epoch:
            self._key = hash_fields(*self._context, epoch)
            self._epoch = epoch
        message = first.to_bytes(8, "little") + second.to_bytes(8, "little")
        digest = hashlib.blake2b(message, key=self._key, person=person, digest_size=_SEEDS.size).digest()
        for_python, for_torch, for_numpy = _SEEDS.unpack(digest)
        random.seed(for_python)
        np.random.seed(for_numpy)
        torch.default_generator.manual_seed(for_torch)  # torch.manual_seed also visits devices: 80x dearer


@contextlib.contextmanager
def preserved_streams() -> Iterator[None]:
    """Put the three global streams back, whatever the body draws or seeds."""
    python, legacy, generator = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)
        torch.default_generator.set_state(generator)
