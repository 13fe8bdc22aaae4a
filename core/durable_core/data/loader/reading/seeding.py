"""L3. Randomness per sample, at the price of the streams that are really drawn from.

Seeding all three process-wide streams before every sample takes about 12 us a sample, and most data
draws from none. So the first batch in a process is seeded throughout, and watched: a stream it never
drew from is not seeded any more. After each later batch it is looked at again; if it was drawn from after
all, the batch is fetched again with that stream seeded, as it is ever after. What the caller gets is what
seeding everything would have given, and a batch is fetched again at most three times in a process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar

import torch
from torch.utils.data import get_worker_info

from durable_core.data.loader.reading.global_streams import Watch, process_streams
from durable_core.data.rng import Derive, SampleRng, SampleSeeds, Seeds, make_current

T = TypeVar("T")
SampleRngChoice = bool | Literal["always"]
"""Of a loader: seed what is drawn from, nothing, or everything."""


class Seeder:
    """Runs what fetches and collates a batch, so that it draws the numbers of its samples.

    In the training process (no workers) the streams are afterwards just as they were. Without ``seeds``
    it does nothing at all. It cannot see a state that is drawn from and put back without a seed between, nor
    one that is only read (``torch.initial_seed()``): ``always`` seeds every stream before every part, as
    is also needed where nothing can be fetched again. ``restore=False``: the caller restores the streams.
    """

    def __init__(self, seeds: SampleSeeds | None, *, always: bool = False, restore: bool = True) -> None:
        self.seeds = seeds
        self._always, self._restore = always, restore
        self._process: _Process | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_process": None}  # streams and memory are the process's own

    def run(self, attempt: Callable[..., T], *what: Any) -> T:
        """``attempt(*what)``, perhaps more than once: it begins each of its parts by ``each`` or ``part``."""
        if self.seeds is None:
            return attempt(*what)
        if self._process is None:
            self._process = _Process(always=self._always, restore=self._restore)
        return self._process.run(attempt, what)

    def each(self, ids: Sequence[int], epochs: int | Sequence[int]) -> Iterator[int]:
        """``ids``, each under its own randomness; ``epochs``: of all or of each."""
        seeds = self.seeds
        left = iter(ids)
        if seeds is None or self._process is None:
            return left
        if isinstance(epochs, int):
            return self._process.each(left, len(ids), seeds.samples(epochs, ids))
        return self._process.each(left, len(ids), lambda place: seeds.sample(epochs[place], ids[place]))

    def part(self, derive: Callable[[], Seeds]) -> None:
        """What follows belongs together: a whole-batch fetch, collating."""
        if self._process is not None:
            self._process.part(derive)


class _Process:
    """What one process has found out about the data of one loader."""

    def __init__(self, *, always: bool, restore: bool) -> None:
        self._streams = process_streams()
        self._all = range(len(self._streams))
        self._seeded: Sequence[int] = self._all  # places of the streams seeded before each part
        self._spared: Sequence[int] = ()
        self._batch = Watch(self._streams)  # since the batch began; in a worker, since streams were spared
        self._stale = True
        self._part = None if always else Watch(self._streams)  # since a part of the first batch began
        self._drawn: set[int] = set()
        self._restore = restore
        self._rng = SampleRng(torch.Generator())

    def run(self, attempt: Callable[..., T], what: tuple[Any, ...]) -> T:
        users = self._restore and get_worker_info() is None  # in a worker the streams are ours
        if users or self._stale:
            self._batch.mark(save=users)
            self._stale = False
        if self._part is not None:
            self._part.mark()
        before = make_current(self._rng)
        dirty: Sequence[int] = self._all
        try:
            while True:
                try:
                    result = attempt(*what)
                except Exception:
                    if not self._missed():  # else it may have failed on numbers it should not have drawn
                        raise
                else:
                    if not self._missed():
                        break
            dirty = self._seeded
            self._conclude()
        finally:
            make_current(before)
            self._rng.follow(None)
            if users and dirty:
                self._batch.restore(dirty)
        return result

    def _missed(self) -> bool:
        """Whether a stream was drawn from unseeded; it is seeded from now on."""
        missed = self._spared and self._batch.changed(self._spared)
        if missed:
            self._spare(set(self._spared).difference(missed))
        return bool(missed)

    def _conclude(self) -> None:
        """The first batch is over: what it never drew from is seeded no more."""
        if self._part is not None:
            self._drawn.update(self._part.changed(self._all))
            self._part = None
            self._spare(set(self._all).difference(self._drawn))

    def _spare(self, places: set[int]) -> None:
        self._spared, self._stale = tuple(places), True
        self._seeded = tuple(place for place in self._all if place not in places)

    def each(self, left: Iterator[int], count: int, derive: Derive) -> Iterator[int]:
        self._rng.follow(derive, left, count)
        return self._seeding(left, derive) if self._seeded else left

    def _seeding(self, left: Iterator[int], derive: Derive) -> Iterator[int]:
        for place, index in enumerate(left):
            self._seed(derive(place))
            yield index

    def part(self, derive: Callable[[], Seeds]) -> None:
        self._rng.follow(lambda place: derive())
        if self._seeded:
            self._seed(derive())

    def _seed(self, seeds: Seeds) -> None:
        if self._part is not None:
            self._drawn.update(self._part.changed(self._all))
        for place in self._seeded:
            self._streams[place].seed(seeds)
        if self._part is not None:
            self._part.mark()
