"""L3. Random numbers per sample: each sample's draws depend on what it is, never on who fetches it when.

Everything derives from (seed, dataset id, epoch, sample id, transform version). The three process-wide
streams (python's ``random``, numpy's legacy global, torch's default CPU generator) are seeded with it
before a sample is fetched, so user code keeps calling ``random.random()``, ``np.random.rand()`` and
``torch.rand()``; its draws are the same for any number of workers, after any resume. ``sample_rng()``
gives generators of the sample's own instead, at a fraction of the price.

Not reached: generators that user code makes for itself and lets advance across samples, and those
of accelerators. numpy and torch use 32 bits of a seed, so two samples may share a stream there
(about n^2 / 2^33 pairs in n); harmless for augmentation.
"""

from __future__ import annotations

import hashlib
import operator
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from durable_core.data.keys import hash_fields
from durable_core.errors import UsageError

VERSION = "sample_rng_v1"
_SEEDS = struct.Struct("<QQI")
_PLACE = struct.Struct("<QQ")
MAX_HASHERS = 64  # a mixture is in many epochs at once


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


Derive = Callable[[int], Seeds]
"""Seeds by the place in what is being fetched."""


class SampleSeeds:
    """Derives the seeds of a sample or batch: a keyed hash, no state that matters. Picklable."""

    def __init__(self, *, dataset_id: str, seed: int, transform_version: str = "") -> None:
        self._context = (VERSION, dataset_id, seed, transform_version)
        self._hashers: dict[tuple[int, bytes], Any] = {}  # with the key taken in, which is half of the work

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_hashers": {}}

    def sample(self, epoch: int, sample: int) -> Seeds:
        """For ``dataset[sample]``."""
        return self._derive(epoch, b"sample", sample, 0)

    def samples(self, epoch: int, ids: Sequence[int]) -> Derive:
        """``sample(epoch, ids[place])`` of each place, for less."""
        hasher = self._hasher(epoch, b"sample")

        def derive(place: int) -> Seeds:
            fork = hasher.copy()
            fork.update(_PLACE.pack(ids[place], 0))
            return tuple.__new__(Seeds, _SEEDS.unpack(fork.digest()))

        return derive

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
        hasher = self._hasher(epoch, person).copy()
        hasher.update(_PLACE.pack(first, second))
        return Seeds._make(_SEEDS.unpack(hasher.digest()))

    def _hasher(self, epoch: int, person: bytes) -> Any:
        hasher = self._hashers.get((epoch, person))
        if hasher is None:
            if len(self._hashers) >= MAX_HASHERS:
                self._hashers.clear()
            key = hash_fields(*self._context, epoch)
            hasher = hashlib.blake2b(key=key, person=person, digest_size=_SEEDS.size)
            self._hashers[epoch, person] = hasher
        return hasher


def seed_streams(seeds: Seeds, generator: Generator) -> None:
    """Seed python's, numpy's and torch's global streams; ``generator`` is ``torch.default_generator``.

    (``torch.manual_seed`` would also visit every device, at 80 times the cost.)
    """
    random.seed(seeds.python)
    np.random.seed(seeds.numpy)
    generator.manual_seed(seeds.torch)


# --- generators of the sample's own ---------------------------------------------------------------

_NOTHING: Iterator[Any] = iter(())


class SampleRng:
    """Generators of the sample being fetched: about 3 us when first used in it, nothing when not.

    In ``__getitems__``, a collate function or an iterable dataset they are those of the batch or item.
    Uses within one sample continue one another and the next sample begins anew, so ask this object for
    them each time. Their draws are the same for any number of workers, and have nothing to do with the
    process-wide streams. Threads of one sample share them, and their order is then up to the threads.
    """

    def __init__(self, torch_generator: Generator) -> None:
        self._python, self._numpy = _PhiloxRandom(), _Philox(lane=0)
        self._torch = torch_generator
        self._derive: Derive | None = None
        self._left = _NOTHING
        self._count = 0
        self._seeds = Seeds(0, 0, 0)
        self._at = -1  # what was left when a generator was last asked for
        self._used = 0  # which were, since

    def follow(self, derive: Derive | None, left: Iterator[Any] = _NOTHING, count: int = 1) -> None:
        """A new batch: ``derive`` gives the seeds of its ``count`` places, ``left`` goes through them.

        What is left of an iterator over a tuple or list tells where a fetch is, at no cost to the fetch.
        None: nothing is being fetched.
        """
        self._derive, self._left, self._count = derive, left, count
        self._at = -1

    @property
    def python(self) -> random.Random:
        """With all its methods; the words are Philox's, not the Mersenne twister's."""
        if self._due(1):
            self._python.begin(self._seeds)
        return self._python

    @property
    def numpy(self) -> np.random.Generator:
        """A ``Generator`` over ``Philox``."""
        if self._due(2):
            self._numpy.begin(self._seeds)
        return self._numpy.generator

    @property
    def torch(self) -> Any:
        """A CPU ``torch.Generator``, for ``generator=``; it begins like torch's global one here."""
        if self._due(4):
            self._torch.manual_seed(self._seeds.torch)
        return self._torch

    def _due(self, generator: int) -> bool:
        """Whether ``generator`` has still to be seeded for the sample being fetched."""
        if self._derive is None:
            raise _nothing_fetched()
        left = operator.length_hint(self._left)
        if left != self._at:
            self._at, self._used = left, 0
            self._seeds = self._derive(self._count - left - 1)
        elif self._used & generator:
            return False
        self._used |= generator
        return True


class _Philox:
    """One counter-based generator, begun again for each sample. ``lane``: others with the same seeds."""

    def __init__(self, lane: int) -> None:
        self.bits = np.random.Philox(0)
        self.generator = np.random.Generator(self.bits)
        self._start: Any = self.bits.state
        self._start["state"]["counter"][:] = (0, 0, 0, lane)
        self._key = self._start["state"]["key"]

    def begin(self, seeds: Seeds) -> None:
        self._key[0], self._key[1] = seeds.python, seeds.torch
        self.bits.state = self._start


class _PhiloxRandom(random.Random):
    """``random.Random`` itself takes three times as long to seed."""

    def __init__(self) -> None:
        self._philox = _Philox(lane=1)
        self._raw = self._philox.bits.random_raw
        super().__init__()

    def begin(self, seeds: Seeds) -> None:
        self._philox.begin(seeds)
        self.gauss_next = None

    def seed(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: the sample decides."""

    def random(self) -> float:
        return (self._raw() >> 11) * 2.0**-53

    def getrandbits(self, k: int, /) -> int:
        words = -(-k // 64)
        bits = 0
        for _ in range(words):
            bits = bits << 64 | self._raw()
        return bits >> (64 * words - k)


_current: SampleRng | None = None


def sample_rng() -> SampleRng:
    """The generators of the sample that this process is fetching for a ``DurableLoader``.

    Raises ``UsageError`` anywhere else, and where ``sample_rng=False`` declared that nothing is drawn.
    """
    if _current is None:
        raise _nothing_fetched()
    return _current


def make_current(rng: SampleRng | None) -> SampleRng | None:
    """What ``sample_rng()`` gives from now on; returns what it gave before."""
    global _current
    before, _current = _current, rng
    return before


def _nothing_fetched() -> UsageError:
    return UsageError(
        "sample_rng(): no sample is being fetched here",
        hint="call it in __getitem__, a transform or collate_fn run by a DurableLoader",
    )
