"""L3. The mixture as a user makes it: a map-style dataset over all its sources, and a policy over them."""

from __future__ import annotations

import bisect
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Ordered
from functools import cached_property
from itertools import accumulate
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from durable_core.data.cursor import identity, length
from durable_core.data.mixture.lanes import Lane, OrderLane, SequenceLane, UniformLane
from durable_core.data.mixture.nested import check_none_inside
from durable_core.data.mixture.policy import Exhaustion, Policy, Schedule, Source, Unit, Weight, exact_weights
from durable_core.data.mixture.report import SourceReport, report
from durable_core.data.mixture.sequence import MixedSequence
from durable_core.data.mixture.tokens import Tokens
from durable_core.data.numbers import LENGTHS_WANTED
from durable_core.data.order import BLOCK_PERMUTATION, FULL_PERMUTATION, Ids, make_order
from durable_core.data.physical.metrics import Metrics, PerProcess
from durable_core.data.sequence import OrderedSequence, Sequence
from durable_core.data.shuffle import BlockShuffle
from durable_core.errors import UnsupportedError, UsageError

Packing = Callable[[Sequence, npt.NDArray[Any]], Sequence]
"""Makes the packs of a sequence of records, from the tokens of each record, integers [records]."""

UNVERIFIED = "unverified:"


class Mixture:
    """Several datasets drawn in declared ratios, as one map-style dataset and the sequence that reads it.

    Iterated by a plain DataLoader it is only the concatenation, every record once: give it to
    ``DurableLoader`` (or to a Trainer with ``DurableCheckpoint``, which does).

    Record j of source i is record ``bases[i] + j`` of the mixture. Sources need ``__len__`` and
    ``__getitem__``; ``dataset_id``, ``lengths``, ``loss_lengths``, ``blocks`` and ``prefetch`` are passed on.

    Args:
        sources: datasets by name, at least one record each. The order of the names is part of the mixture.
        weights: by name, relative; exact: floats by their decimal text. 0: not drawn for the time being.
        schedule: "quota": counts never stray from the target by as much as one draw (``quota_v1``);
            "categorical": independent draws (``categorical_v1``).
        unit: what is weighed. A draw is a "sample", a "document" (packed with those of other sources) or
            a row "packed" from one source; "token" and "loss_token" weigh each draw by ``lengths`` or
            ``loss_lengths``, and no source's debt then exceeds the longest record.
        exhaustion: when a source without replacement is due and has no more: "repeat" begins its next epoch,
            in another order; "stop" ends the epoch of the mixture (the next, perhaps a short one, goes on,
            with a new one of that source); "renormalize" goes on with the others; "error" raises
            ``ExhaustedError``.
        replacement: True, or by name: draw records of that source independently, for ever.
        loss_weights: by name (1.0 for the others): put into each sample as ``loss_weight``. Draws nothing.
        weight_schedule: (global batch since the run began, weights) from which on other weights hold, as
            pairs or a mapping; debt is carried over. Documents packed across sources are taken by the 256:
            those in hand come first.
        window: draws over which deviations are measured.
        epoch_size: samples of an epoch of the mixture; None: "repeat" never ends.
        dataset_id: instead of the digest of the sources' ids and the policy.

    Raises ``UsageError``, naming source and value, for what makes no sense; ``UnsupportedError`` for sources
    without a length, or without lengths where tokens are weighed.
    """

    def __init__(
        self,
        sources: Mapping[str, Any],
        weights: Mapping[str, Weight],
        *,
        schedule: Schedule = "quota",
        unit: Unit = "sample",
        exhaustion: Exhaustion = "repeat",
        replacement: bool | Mapping[str, bool] = False,
        loss_weights: Mapping[str, float] | None = None,
        weight_schedule: Iterable[tuple[int, Mapping[str, Weight]]] | Mapping[int, Mapping[str, Weight]] = (),
        window: int = 1000,
        epoch_size: int | None = None,
        dataset_id: str | None = None,
    ) -> None:
        names = _named(sources)
        replaced = replacement if isinstance(replacement, Mapping) else dict.fromkeys(names, replacement)
        _check_known("replacement", replaced, names)
        ids = {name: identity(data) for name, data in sources.items()}
        self.policy = Policy(
            sources=tuple(
                Source(name, ids[name][0], _size(name, data), bool(replaced.get(name, False)))
                for name, data in sources.items()
            ),
            weights=exact_weights(names, weights),
            schedule=schedule,
            unit=unit,
            exhaustion=exhaustion,
            changes=tuple((at, exact_weights(names, new)) for at, new in _listed(weight_schedule)),
            epoch_size=epoch_size,
            window=window,
            loss_weights=_loss_weights(names, loss_weights),
        )
        self.sources = dict(sources)
        ends = list(accumulate(source.size for source in self.policy.sources))
        self.bases: tuple[int, ...] = (0, *ends[:-1])
        self._size, self._datasets = ends[-1], tuple(sources.values())
        self._measuring = [data for data in self._datasets if _measures(data)]
        self._measured = PerProcess()
        verified = all(known and not name.startswith(UNVERIFIED) for name, known in ids.values())
        own = self.policy.digest if verified else f"{UNVERIFIED}mixture:{self.policy.digest}"
        self.dataset_id = own if dataset_id is None else dataset_id
        if self.policy.counts_tokens:
            self._tokens()  # lengths that cannot be weighed are refused now, not at the first batch

    # --- the dataset ----------------------------------------------------------------------

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Any:
        """The sample of the source; with ``loss_weights`` a mapping, to which ``loss_weight`` is added."""
        source, record = self.locate(index)
        sample = self._datasets[source][record]
        if self.policy.loss_weights is None:
            return sample
        if not isinstance(sample, Mapping):
            raise UnsupportedError(
                f"record {record} of source {self.policy.names[source]!r} is a {type(sample).__name__}, "
                "which has no place for its loss weight",
                hint="return a dict, or leave loss_weights out and weigh by source in the training step",
            )
        return {**sample, "loss_weight": self.policy.loss_weights[source]}

    def locate(self, index: int) -> tuple[int, int]:
        """(source, record in it) of a record of the mixture. Raises ``IndexError``."""
        at = operator.index(index)
        if not 0 <= at < self._size:
            raise IndexError(f"record {at} of a mixture of {self._size}")
        source = bisect.bisect_right(self.bases, at) - 1
        return source, at - self.bases[source]

    def sources_of(self, ids: Ids) -> Ids:
        """The source of each id of the mixture, int64."""
        return np.searchsorted(np.array(self.bases), ids, side="right").astype(np.int64) - 1

    def prefetch(self, ids: Ids) -> None:
        """Passed on to each source that reads ahead, in its own ids."""
        wanted = np.asarray(ids, dtype=np.int64)
        sources = self.sources_of(wanted)
        for source in np.unique(sources).tolist():
            ahead = getattr(self._datasets[source], "prefetch", None)
            if ahead is not None:
                ahead(wanted[sources == source] - self.bases[source])

    @property
    def metrics(self) -> Metrics | None:
        """What its sources have measured in this process, added up; None where no source measures anything.
        Looking at it takes what is new from those that have an attribute ``metrics`` (a ``Metrics``)."""
        if not self._measuring:
            return None
        total = self._measured.here()
        for data in self._measuring:
            total.merge(data.metrics.take())
        return total

    @cached_property
    def lengths(self) -> npt.NDArray[Any]:
        """Tokens of each record, put together at first use. ``AttributeError`` unless all have them."""
        return self._joined("lengths")

    @cached_property
    def loss_lengths(self) -> npt.NDArray[Any]:
        """Tokens of each record that count in the loss, as ``lengths``."""
        return self._joined("loss_lengths")

    @cached_property
    def blocks(self) -> npt.NDArray[Any]:
        """Records of each object, as ``lengths``."""
        return self._joined("blocks")

    def __getstate__(self) -> dict[str, Any]:
        """Without what was put together: workers need none of it."""
        return {key: value for key, value in self.__dict__.items() if key not in _PUT_TOGETHER}

    # --- the sequence ---------------------------------------------------------------------

    def sequence(
        self, *, seed: int, packing: Packing | None = None, order: str | BlockShuffle = FULL_PERMUTATION
    ) -> Sequence:
        """What is drawn, under ``seed``; each source in an ``order`` of its own.

        A ``BlockShuffle`` permutes the objects of each source; it needs their ``blocks``.
        ``packing`` packs the rows of each source for the unit "packed", and else the documents of all.
        Raises ``UsageError`` where unit and packing do not fit.
        """
        policy = self.policy
        if policy.unit == "packed" and packing is None:
            raise UsageError("the unit is a packed row, and no packing is given", hint="pass packing=")
        if policy.unit == "sample" and packing is not None:
            raise UsageError(
                "the unit is a sample, so nothing is packed", hint="use unit='document' or 'packed'"
            )
        inner = packing if policy.unit == "packed" else None
        mixed = MixedSequence(
            policy,
            [self._lane(i, seed, order, inner) for i in range(len(policy.sources))],
            seed=seed,
            tokens=self._tokens() if policy.counts_tokens else None,
        )
        return mixed if packing is None or inner is not None else packing(mixed, self._all_lengths())

    def report(self, state: Mapping[str, Any]) -> dict[str, SourceReport]:
        """Targets and actual counts by source, from a state of the mixture's sequence."""
        return report(self.policy, state)

    def _lane(self, index: int, seed: int, order: str | BlockShuffle, packing: Packing | None) -> Lane:
        source, data = self.policy.sources[index], self._datasets[index]
        context: dict[str, Any] = {"dataset_id": source.dataset_id, "source": source.name, "seed": seed}
        if source.replacement and packing is not None:
            raise UnsupportedError(
                f"source {source.name!r} is drawn with replacement: it has no epoch to make packed rows of",
                hint="use unit='document', or draw it without replacement",
            )
        if source.replacement:
            return UniformLane(source.size, **context)
        if isinstance(order, BlockShuffle):
            blocks = _attribute(source.name, data, "blocks", "records of each object, in order")
            drawn = make_order(BLOCK_PERMUTATION, source.size, **context, blocks=blocks, window=order.window)
        else:
            drawn = make_order(order, source.size, **context)
        if packing is None:
            return OrderLane(drawn)
        return SequenceLane(packing(OrderedSequence(drawn), _attribute(source.name, data, "lengths")))

    def _tokens(self) -> list[Tokens]:
        name = "lengths" if self.policy.unit == "token" else "loss_lengths"
        return [
            Tokens(source.name, source.size, _attribute(source.name, data, name))
            for source, data in zip(self.policy.sources, self._datasets, strict=True)
        ]

    def _all_lengths(self) -> npt.NDArray[Any]:
        """Those kept; ``UnsupportedError`` for the first source without any."""
        for source, data in zip(self.policy.names, self._datasets, strict=True):
            _attribute(source, data, "lengths")
        return self.lengths

    def _needed(self, name: str) -> npt.NDArray[Any]:
        pairs = zip(self.policy.names, self._datasets, strict=True)
        return np.concatenate([np.asarray(_attribute(source, data, name)) for source, data in pairs])

    def _joined(self, name: str) -> npt.NDArray[Any]:
        try:
            return self._needed(name)
        except UnsupportedError as error:
            raise AttributeError(error.message) from error


_PUT_TOGETHER = ("lengths", "loss_lengths", "blocks")


def _attribute(source: str, data: Any, name: str, meaning: str = "one a record") -> Any:
    value = getattr(data, name, None)
    if value is None:
        raise UnsupportedError(
            f"source {source!r} has no {name}, which this mixture needs to know before it reads",
            hint=LENGTHS_WANTED
            if name == "lengths"
            else f"give the dataset an int64 attribute `{name}`, {meaning}",
        )
    if name in ("lengths", "loss_lengths") and np.shape(value) != (len(data),):
        count = " x ".join(map(str, np.shape(value)))
        raise UsageError(f"source {source!r} has {len(data)} records and {count} {name}")
    return value


def _measures(data: Any) -> bool:
    return isinstance(getattr(data, "metrics", None), Metrics)


def _named(sources: Any) -> tuple[str, ...]:
    """The names of the sources, in order; none of them holds a mixture of its own."""
    if not isinstance(sources, Mapping) or not all(isinstance(name, str) for name in sources):
        raise UsageError(f"sources are datasets by name, not {sources!r:.80}", hint="{name: dataset, ...}")
    if not sources:
        raise UsageError("a mixture needs at least one source")
    for name, data in sources.items():
        check_none_inside(f"source {name!r}", data)
    return tuple(sources)


def _listed(schedule: Any) -> Iterable[tuple[Any, Any]]:
    """Entries of a weight schedule, each in two parts; in a mapping, by the batch they begin with."""
    try:
        pairs = schedule.items() if isinstance(schedule, Mapping) else schedule
        return [(at, weights) for at, weights in pairs]
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"weight_schedule is {schedule!r:.80}, not pairs of a global batch and the weights from it on"
        ) from error


def _size(name: str, data: Any) -> int:
    size = length(data)
    if size is None:
        raise UnsupportedError(f"source {name!r} has no length", hint="a mixture is over map-style datasets")
    if size < 1:
        raise UsageError(f"source {name!r} is empty: it has {size} records", hint="leave it out")
    return size


def _loss_weights(names: Ordered[str], given: Mapping[str, float] | None) -> tuple[float, ...] | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise UsageError(f"loss_weights are given by the names of the sources, not as {given!r:.80}")
    _check_known("loss_weights", given, names)
    for name, value in given.items():
        if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value) or value < 0:
            raise UsageError(f"the loss weight of source {name!r} is {value!r}, not a finite number from 0")
    return tuple(float(given.get(name, 1.0)) for name in names)


def _check_known(what: str, given: Mapping[str, Any], names: Ordered[str]) -> None:
    unknown = sorted(set(given) - set(names), key=repr)
    if unknown:
        raise UsageError(f"{what} is given for {', '.join(map(repr, unknown))}, and no source is called so")
