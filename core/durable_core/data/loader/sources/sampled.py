"""L3. Batches of a map-style dataset along a sampler of the user's own."""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from durable_core.data.ledger import Tag
from durable_core.data.loader.reading.fetch import Ticket
from durable_core.data.loader.reading.global_streams import Preserved
from durable_core.data.loader.sources.mapped import MapLoader, MapReader, Reading, is_stateful
from durable_core.data.rng import SampleSeeds, seed_streams
from durable_core.errors import SpecMismatchError


def goes_on(sampler: Any) -> bool:
    """Whether each epoch begins where the one before stopped: all that tells it the epoch is its state."""
    return is_stateful(sampler) and not hasattr(sampler, "set_epoch")


class SamplerSource(MapReader):
    """Draws ids one batch ahead, which is how the last batch is known; a ``__len__`` may be an estimate.

    With ``state_dict`` on the sampler, its state after each batch of ids travels with the batch, and after
    the last one the state at its end, so a resume is exact. Every pass begins from a state that is loaded,
    never from what the sampler happens to be after having been read ahead: without ``set_epoch`` that is
    the state at the end of the epoch before (or after the last batch trained, if that was left early), with
    it the state as given, for then the epoch says all. A loaded state of which nothing is left is that of
    an end: the sampler is asked once more. (``torchdata``'s say "all were given" until the next ``iter``.)

    Without a state, a resume draws the epoch's ids again from its start and drops those of the batches
    already trained: ids only, no data is read. The global streams are seeded for each batch of ids, so
    samplers that draw from those repeat their draws.
    """

    def __init__(
        self,
        dataset: Any,
        sampler: Any,
        *,
        batch_size: int | None,
        drop_last: bool,
        reading: Reading,
        seeds: SampleSeeds,
        sample_seeds: SampleSeeds | None,
        given: Any = None,
    ) -> None:
        self._sampler, self._batch_size, self._drop_last = sampler, batch_size, drop_last
        self._seeds, self._stateful, self._goes_on = seeds, is_stateful(sampler), goes_on(sampler)
        self.given = self._state() if given is None else given
        self._used = given is not None
        self._issued: deque[tuple[bool, Any]] = deque()  # of each batch: is it the last, the state after it
        self._preserved = Preserved()
        self._loader = MapLoader(dataset, reading, sample_seeds)

    def open(self, epoch: int, batch: int, state: Any) -> Iterator[tuple[Tag, Any]]:
        if state is None and self._stateful and (batch or (epoch and self._goes_on and not self._used)):
            raise SpecMismatchError("no state was recorded for the sampler", fields=("sampler",))
        self._issued.clear()
        for tag, content in self._loader.run(self._tickets(epoch, batch, state)):
            tag.last, tag.state = self._issued.popleft()  # drawn in this order, delivered in this order
            tag.samples = len(tag.ids) + (0 if tag.skipped is None else len(tag.skipped))
            yield tag, content

    def _tickets(self, epoch: int, batch: int, state: Any) -> Iterator[Ticket]:
        self._place(epoch, batch, state)
        drawn = _Drawn(self._sampler)
        held: Ticket | None = None
        after: Any = None
        for k in itertools.count(batch if self._stateful else 0):
            ids = self._draw(drawn, epoch, k)
            if ids is None and not k and state is not None:
                drawn = _Drawn(self._sampler)
                ids = self._draw(drawn, epoch, k)
            if held is not None:
                self._issued.append((ids is None, self._state() if ids is None else after))
                yield held
            if ids is None:
                return
            if k >= batch:
                held, after = Ticket(epoch, k, 0, np.array(ids, dtype=np.int64)), self._state()

    def _place(self, epoch: int, batch: int, state: Any) -> None:
        """Put the sampler where the pass begins: inside an epoch it has been told which before its state."""
        if batch:
            self._tell(epoch)
        if self._stateful and (state is not None or self._used):
            self._sampler.load_state_dict(copy.deepcopy(self.given if state is None else state))
        if not batch:
            self._tell(epoch)
        self._used = True

    def _tell(self, epoch: int) -> None:
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)

    def _draw(self, drawn: _Drawn, epoch: int, batch: int) -> tuple[int, ...] | None:
        """The ids of the next batch; None at the end."""
        with self._preserved:
            seed_streams(self._seeds.sampler(epoch, batch), torch.default_generator)
            if self._batch_size is None:  # a batch sampler
                ids = next(drawn, None)
                return None if ids is None else tuple(int(i) for i in ids)
            some = tuple(int(i) for i in itertools.islice(drawn, self._batch_size))
        short = len(some) < self._batch_size
        return None if not some or (short and self._drop_last) else some

    def _state(self) -> Any:
        return copy.deepcopy(self._sampler.state_dict()) if self._stateful else None


class _Drawn(Iterator[Any]):
    """One iteration of a sampler, begun at the first need, and never asked again once it has ended."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._iterator: Iterator[Any] | None = None
        self._ended = False

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        if self._iterator is None:
            self._iterator = iter(self._sampler)
        try:
            return next(self._iterator)
        except StopIteration:
            self._ended = True
            raise
