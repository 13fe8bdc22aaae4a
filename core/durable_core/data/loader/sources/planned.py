"""L3. Batches of a sequence (a mixture, packs, a bounded shuffle): planned in the training process.

Every replica computes the whole global batch, on ids and lengths alone, and asks its workers for the
contiguous share that is its own. The state after each batch travels with the batch.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from durable_core.data.cursor import Remainder
from durable_core.data.ledger import Tag
from durable_core.data.loader.reading.fetch import Pieces, Ticket
from durable_core.data.loader.sources.mapped import MapLoader, MapReader, Reading
from durable_core.data.order import Ids
from durable_core.data.packing import Packing
from durable_core.data.rng import SampleSeeds
from durable_core.data.sequence import Batch, Sequence, State, epoch_batches, opened, reweighted
from durable_core.errors import DurableError, UnsupportedError, UsageError

Weights = Mapping[str, Any]


@dataclass(frozen=True)
class Share:
    """The part of each global batch that is one replica's."""

    global_batch: int
    remainder: Remainder
    replica: int
    replicas: int

    def ticket(self, epoch: int, batch: int, taken: Batch) -> Ticket:
        """Asks for this replica's samples of ``taken``, filled up if the batch is to be (see ``Layout``).

        What fills a share up repeats its last sample, or that of the whole batch if it has none. Raises
        ``UnsupportedError`` when the samples cannot be shared evenly.
        """
        real, places = len(taken), len(taken)
        if self.remainder == "pad":
            places = self.global_batch
        if places % self.replicas:
            raise UnsupportedError(
                f"epoch {epoch} ends with a batch of {real} samples, which {self.replicas} replicas cannot "
                "share evenly",
                hint='drop_last=True leaves them out, remainder="pad" fills the batch up',
            )
        first = real * self.replica // self.replicas
        last = real * (self.replica + 1) // self.replicas
        samples = np.arange(first, last)
        padded = places // self.replicas - (last - first)
        if padded:
            samples = np.append(samples, np.full(padded, last - 1 if last > first else real - 1))
        return _ticket(epoch, batch, first, taken, samples, padded)


_Planned = tuple[int, bool, State]
"""Samples of a batch, whether it is the last of its epoch, and the state after it."""


class SequenceSource(MapReader):
    """A sequence read by anyone: its state is all that a restart needs, its batches are everyone's.

    The state that travels is ``{"batches": number of batches before it since the run began, "sequence":
    the sequence's own}``. ``updates`` are new weights by that number: the caller adds to it.
    """

    def __init__(
        self,
        dataset: Any,
        sequence: Sequence,
        share: Share,
        *,
        reading: Reading,
        seeds: SampleSeeds | None,
        packing: Packing | None = None,
        updates: Mapping[int, Weights] | None = None,
    ) -> None:
        self.batches = epoch_batches(sequence, share.global_batch, drop=share.remainder == "drop")
        self.issued = 0
        """Batches since the run began that have been planned: new weights cannot reach them any more."""
        self._sequence, self._share = sequence, share
        self._updates: Mapping[int, Weights] = {} if updates is None else updates
        self._planned: deque[_Planned] = deque()
        self._refused: DurableError | None = None
        self._loader = MapLoader(dataset, reading, seeds, packing)

    def open(self, epoch: int, batch: int, state: Any) -> Iterator[tuple[Tag, Any]]:
        self._planned.clear()
        self._refused = None
        for tag, content in self._loader.run(self._tickets(epoch, batch, state)):
            # planned in this order, delivered in this order
            tag.samples, tag.last, tag.state = self._planned.popleft()
            yield tag, content
        if self._refused is not None:  # only now: what was planned before it is good
            raise self._refused

    def _tickets(self, epoch: int, batch: int, state: Any) -> Iterator[Ticket]:
        number: int = 0 if state is None else state["batches"]
        now: Any = None if state is None else state["sequence"]
        if batch and now is None:
            raise UsageError(f"no state was recorded for batch {batch} of {self._sequence.name}")
        whole, drops = self._share.global_batch, self._share.remainder == "drop"
        held: tuple[Ticket, _Planned] | None = None
        for k in range(batch, sys.maxsize if self.batches is None else self.batches):
            try:
                if not k:
                    number, now = self._opened(epoch, number, now)
                taken, now = self._sequence.take(self._weighted(now, number), whole)
                if not len(taken) or (len(taken) < whole and drops):
                    _check_not_empty(epoch, k, len(taken), whole)
                    if held is not None:
                        held = held[0], _before_tail(held[1], len(taken), number, now)
                    break
                ticket = self._share.ticket(epoch, k, taken)
            except DurableError as error:
                self._refused = error
                break
            number += 1
            self.issued = number
            if held is not None:
                yield self._issue(*held)
            last = len(taken) < whole or k + 1 == self.batches
            held = ticket, (len(taken), last, {"batches": number, "sequence": now})
            if last or not drops:  # else only the next one says whether it is the last
                yield self._issue(*held)
                held = None
            if last:
                return
        if held is not None:
            yield self._issue(*held)

    def _opened(self, epoch: int, number: int, before: State | None) -> tuple[int, State]:
        """Where the epoch begins, ``number`` batches being taken before it, and the number there."""
        state, passed = opened(
            self._sequence,
            epoch,
            before,
            self._share.global_batch,
            drop=self._share.remainder == "drop",
            change=lambda state, passed: self._weighted(state, number + passed),
        )
        return number + passed, state

    def _weighted(self, state: State, number: int) -> State:
        """With the weights that were given for batch ``number``, if any were."""
        if number not in self._updates:
            return state
        return reweighted(self._sequence, state, number, self._updates[number])

    def _issue(self, ticket: Ticket, planned: _Planned) -> Ticket:
        self._planned.append(planned)
        return ticket


def _before_tail(planned: _Planned, tail: int, number: int, after: State) -> _Planned:
    """The last full batch, ``tail`` samples that are dropped after it.

    The next epoch begins after those: before them, a source that they exhaust would never count as spent.
    The sequence has counted them as a batch.
    """
    return planned[0], True, {"batches": number + 1, "sequence": after} if tail else planned[2]


def _check_not_empty(epoch: int, batch: int, count: int, whole: int) -> None:
    if batch:
        return
    raise UsageError(
        f"epoch {epoch} is empty: {count} samples"
        + (f" do not fill one global batch of {whole}, and the remainder is dropped" if count else ""),
        hint="lower batch_size or keep the last batch (drop_last=False)" if count else "look at the sources",
    )


def _ticket(epoch: int, batch: int, part: int, taken: Batch, samples: Ids, padded: int) -> Ticket:
    """The ticket of some samples of a global batch, each given by its number in it."""
    places, packs = samples, None
    if taken.packs is not None:
        first, counts = taken.packs[samples], np.diff(taken.packs)[samples]
        limits = np.concatenate([[0], np.cumsum(counts)])
        packs = limits
        places = np.arange(limits[-1]) + np.repeat(first - limits[:-1], counts)
    begins = None if taken.begins is None else taken.begins[places]
    ends = None if taken.ends is None else taken.ends[places]
    pieces = Pieces(taken.epochs[places], begins, ends, packs)
    return Ticket(epoch, batch, part, taken.ids[places], padded, pieces)
