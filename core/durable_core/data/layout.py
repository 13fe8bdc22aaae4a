"""L3. The layout: how the positions of epochs are cut into global batches, and those into shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from durable_core.errors import UnsupportedError, UsageError

Remainder = Literal["drop", "short", "wrap", "pad", "straddle"]
REMAINDERS: tuple[Remainder, ...] = ("drop", "short", "wrap", "pad", "straddle")


class Span(NamedTuple):
    """Positions [start, stop) of one epoch."""

    epoch: int
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """How epochs of ``size`` positions are cut into global batches of ``global_batch`` samples.

    ``remainder`` says what becomes of the last ``size % global_batch`` positions of an epoch:

    * ``drop`` leaves them out;
    * ``short`` makes a smaller last batch;
    * ``wrap`` fills the last batch up with the first positions of the same epoch (those samples are
      then seen twice in it, by declaration);
    * ``pad`` fills it up with masked places, ``padded`` of them at the end of each replica's share: every
      batch has ``global_batch`` places, and as many samples as it has places that are not masked;
    * ``straddle`` lets batches run on over the boundary: global batch k, counted from the very beginning,
      is [kG, (k+1)G) of the endless row of epochs. It belongs to the epoch in which it starts, so the
      number of batches in an epoch depends on the epoch (by one).

    Only under ``straddle`` does a batch hold positions of two epochs, and never of more.
    """

    size: int
    global_batch: int
    remainder: Remainder

    def __post_init__(self) -> None:
        if self.size < 1 or self.global_batch < 1:
            raise UsageError(f"size {self.size} and global batch {self.global_batch} must be at least 1")
        if self.remainder not in REMAINDERS:
            raise UsageError(f"remainder {self.remainder!r} is not one of {', '.join(REMAINDERS)}")
        if self.remainder == "wrap" and self.global_batch > 2 * self.size:
            raise UsageError(
                f"a batch of {self.global_batch} would hold each of {self.size} samples more than twice",
                hint="lower batch_size",
            )
        if self.remainder == "straddle" and self.global_batch > self.size:
            raise UsageError(
                f"no batch of {self.global_batch} would start in some epochs of {self.size} samples",
                hint="lower batch_size",
            )
        if self.remainder == "drop" and self.global_batch > self.size:
            raise UsageError(
                f"{self.size} samples do not fill one global batch of {self.global_batch}, and the "
                "remainder is dropped: an epoch would be empty",
                hint="lower batch_size or keep the last batch (drop_last=False)",
            )

    @property
    def batches(self) -> int:
        """Global batches in every epoch. Raises ``UsageError`` under ``straddle``: see ``batches_in``."""
        if self.remainder == "straddle":
            raise UsageError("the number of batches depends on the epoch when batches straddle epochs")
        return self.batches_in(0)

    def batches_in(self, epoch: int) -> int:
        """Global batches that start in ``epoch``."""
        if self.remainder == "straddle":
            return self._first(epoch + 1) - self._first(epoch)
        if self.remainder == "drop":
            return self.size // self.global_batch
        return -(-self.size // self.global_batch)

    @property
    def tail(self) -> int:
        """Samples in the last global batch of an epoch."""
        return self.global_batch if self.remainder == "straddle" else self.samples(0, self.batches - 1)

    def interval(self, batch: int, epoch: int | None = None) -> tuple[int, int]:
        """Positions [start, stop) of the samples of a global batch, counted from the start of its epoch.

        Under ``wrap`` and ``straddle`` stop may exceed ``size``. ``epoch`` matters under ``straddle``
        alone, and must be given there.
        """
        if epoch is None and self.remainder == "straddle":
            raise UsageError("where a batch starts depends on the epoch when batches straddle epochs")
        epoch = epoch or 0
        batches = self.batches_in(epoch)
        if not 0 <= batch < batches:
            raise UsageError(f"batch {batch} is outside [0, {batches})")
        start = batch * self.global_batch
        if self.remainder == "straddle":
            start += self._first(epoch) * self.global_batch - epoch * self.size
        stop = start + self.global_batch
        return start, min(stop, self.size) if self.remainder in ("short", "pad") else stop

    def share(self, batch: int, replica: int, replicas: int, epoch: int | None = None) -> tuple[int, int]:
        """The contiguous part of ``interval`` that one replica takes; the parts differ by at most one."""
        start, stop = self.interval(batch, epoch)
        count = stop - start
        return start + count * replica // replicas, start + count * (replica + 1) // replicas

    def spans(self, epoch: int, batch: int, replica: int = 0, replicas: int = 1) -> tuple[Span, ...]:
        """What a replica takes of a global batch (all of it, by default), each position in its own epoch.

        In logical order, without masked places; ``order.spanned_ids`` looks the ids up. None, one or two.
        """
        start, stop = self.share(batch, replica, replicas, epoch)
        spans = []
        while start < stop:
            turn, begin = divmod(start, self.size)
            end = min(begin + stop - start, self.size)
            spans.append(Span(epoch + turn if self.remainder == "straddle" else epoch, begin, end))
            start += end - begin
        return tuple(spans)

    def padded(self, epoch: int, batch: int, replica: int = 0, replicas: int = 1) -> int:
        """Masked places at the end of a replica's share (of the whole batch, by default).

        Its first ``global_batch / replicas - padded`` places hold the samples of ``spans``, perhaps
        none. Always 0 unless the remainder is ``pad``.
        """
        if self.remainder != "pad":
            return 0
        self.check_shares(replicas)
        start, stop = self.share(batch, replica, replicas, epoch)
        return self.global_batch // replicas - (stop - start)

    def samples(self, epoch: int, batch: int, end: int | None = None) -> int:
        """Samples, masked places not counted, in one batch of an epoch, or in batches [batch, end)."""
        end = batch + 1 if end is None else end
        if batch >= end:
            return 0
        return self.interval(end - 1, epoch)[1] - self.interval(batch, epoch)[0]

    def check_shares(self, replicas: int) -> None:
        """Raise ``UnsupportedError`` unless every batch can be shared evenly by that many replicas."""
        places = (self.global_batch, self.global_batch if self.remainder == "pad" else self.tail)
        for count in places:
            if count % replicas:
                raise UnsupportedError(
                    f"a batch of {count} samples cannot be shared evenly by {replicas} replicas",
                    hint='use drop_last=True, remainder="pad" to fill it with masked places, or "wrap" to '
                    "fill it with samples seen twice",
                )

    def position(self, step: int) -> tuple[int, int]:
        """(epoch, next batch in it) after ``step`` batches from the very beginning; both from 0."""
        if self.remainder == "straddle":
            epoch = step * self.global_batch // self.size
            return epoch, step - self._first(epoch)
        return divmod(step, self.batches)

    def step(self, epoch: int, batch: int) -> int:
        """Batches before batch ``batch`` of ``epoch``, from the very beginning: undoes ``position``."""
        first = self._first(epoch) if self.remainder == "straddle" else epoch * self.batches
        return first + batch

    def _first(self, epoch: int) -> int:
        """Under ``straddle``: the first global batch that starts in ``epoch``."""
        return -(-epoch * self.size // self.global_batch)
