"""L3. DurableLoader: hands batches over, learns which were trained, and knows where a restart goes on."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, default_collate, default_convert

from durable_core.clock import SystemClock
from durable_core.data.cursor import Remainder, identity
from durable_core.data.ledger import Ledger
from durable_core.data.loader import adopt
from durable_core.data.loader.answers import Answers
from durable_core.data.loader.choose import OrderChoice
from durable_core.data.loader.left_out import Skips
from durable_core.data.loader.passes import Pass, PassIterator
from durable_core.data.loader.plan import Plan, make_plan, make_source
from durable_core.data.loader.position import Position
from durable_core.data.loader.reading.global_streams import Preserved
from durable_core.data.loader.reading.seeding import SampleRngChoice
from durable_core.data.loader.rows import LedgerRows
from durable_core.data.loader.settings import Settings, check_agree, promised
from durable_core.data.loader.sources.mapped import Source
from durable_core.data.loader.sources.planned import SequenceSource
from durable_core.data.loader.updates import LEAD, Updates, beginning, exactly
from durable_core.data.mixture.nested import is_mixture
from durable_core.data.numbers import whole
from durable_core.data.packing import Packing
from durable_core.data.physical.metrics import Metrics
from durable_core.data.sequence import reweighted
from durable_core.errors import OrderError, UnsupportedError, UsageError
from durable_core.types import Promise

_now = SystemClock().monotonic


class DurableLoader(Answers, LedgerRows, Position):
    """A data loader whose position is what was *trained*: batches acknowledged, not batches fetched.

    Iterate it like a ``DataLoader``; after the step that consumed a batch, call ``acknowledge`` (the
    session and the adapters do). ``state_dict()`` is the position after everything acknowledged.

    * The order of samples is a function of (dataset id, seed, epoch); workers, prefetching and, at
      one global batch (``batch_size * replicas``), the number of replicas never change it.
    * python's, numpy's and torch's global streams are seeded per sample before ``__getitem__`` and
      per batch before ``collate_fn``, so augmentation repeats exactly. The streams of the training
      process itself are left as they were. Code that derives numbers from a stream without drawing from it
      (``np.random.default_rng(torch.initial_seed())``, ``random.getstate()``) needs ``sample_rng="always"``.
    * ``iter()`` begins the next epoch, also when the last one was left early (``break``, a limit on
      batches); but the same epoch again when nothing of it was acknowledged and its end was not seen
      (a look at the first batch costs nothing). Batches of an epoch left early that were handed over
      and not acknowledged count as never trained; after an end that was seen, as trained by a step to come.
    * It is no ``DataLoader`` on purpose: frameworks rebuild those, and leave this alone.

    Batches handed over and never acknowledged are remembered, with the state after each: of a caller that
    never acknowledges any at most 65,536 of them, and 256 MiB (or 64 batches, if those are more).

    Args:
        dataset: map-style with ``__len__``; a ``Mixture`` of such; or an ``IterableDataset`` with
            ``state_dict`` and ``load_state_dict`` (a resume needs the same ``num_workers``).
        batch_size: samples per batch *of this replica*; None only for an iterable dataset that makes its
            own batches, or beside a batch sampler given as ``sampler``.
        shuffle: ``full_prp_v1`` (default) or ``sequential_v1``; iterable datasets order themselves.
        seed: of order and augmentation. None takes torch's initial seed (one replica only). A
            restored seed wins.
        remainder: instead of ``drop_last``: "drop", "short", "wrap", "pad" or "straddle" (see ``Layout``).
            With "pad", samples are dicts and get an entry "pad_mask" (true for what only fills up), or
            ``collate_fn`` has an argument ``pad_mask``, bool [samples].
        dataset_id: identity of the content. Default: the dataset's own ``dataset_id``, or else
            ``unverified:<class>:<length>``.
        sampler: a user's own sampler, or batch sampler (then ``batch_size=None``). One with a state goes on
            over the epochs, each from where the last one stopped or was left; but one with ``set_epoch`` as
            well begins each as it was given, and is told the number.
        promise: what a resume must guarantee; what cannot be made so is refused.
        transform_version: change it to draw other augmentations of the same order.
        sample_rng: False declares that fetching and collating draw no random numbers; what they draw
            after all is then not repeated. "always" seeds each stream for each sample (about 10 us): for code
            that only reads a stream's seed or state, or draws and puts it back, which True does not see: it
            would get other numbers after a resume.
        order: instead of ``shuffle``: a name, or a ``BlockShuffle`` or ``BufferedShuffle``.
        packing: samples are packs of ``packing.length`` tokens (see ``Packing``), planned from ``lengths``
            of the dataset.
        accumulate: batches of an optimizer step. With it a restart may change ``batch_size * replicas``, if
            the product of all three stays and the promise is "exact-order" or weaker.
        stream_shares: each replica reads the whole of an iterable dataset and takes its share of each
            global batch.
        max_skipped: raise ``CorruptError`` at the first batch with which more records than this were left
            out (``SkippedRecord``) since the process began: each replica counts those of its own share.

    Raises:
        UnsupportedError: what was asked for cannot be made exact; the message says what to do.
        UsageError: an argument makes no sense.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        *,
        shuffle: bool | None = None,
        seed: int | None = None,
        num_workers: int = 0,
        drop_last: bool = False,
        collate_fn: Callable[[Any], Any] | None = None,
        replica: int = 0,
        replicas: int = 1,
        dataset_id: str | None = None,
        remainder: Remainder | None = None,
        sampler: Any = None,
        promise: Promise | str = Promise.BITWISE,
        transform_version: str = "",
        sample_rng: SampleRngChoice = True,
        order: OrderChoice | None = None,
        packing: Packing | None = None,
        accumulate: int = 1,
        stream_shares: bool = False,
        max_skipped: int | None = None,
        pin_memory: bool = False,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        in_order: bool = True,
    ) -> None:
        check_agree(dataset, shuffle, order, remainder, drop_last=drop_last, in_order=in_order)
        streaming = isinstance(dataset, IterableDataset)
        dataset_id, self.verified = identity(dataset, dataset_id)
        if collate_fn is None:
            collate_fn = default_convert if streaming and batch_size is None else default_collate
        self._settings = Settings(
            dataset=dataset,
            batch_size=batch_size,
            shuffle=shuffle is not False,
            seed=seed,
            replica=replica,
            replicas=replicas,
            remainder=remainder or ("drop" if drop_last else "short"),
            dataset_id=dataset_id,
            sampler=sampler,
            promise=promised(promise),
            transform_version=transform_version,
            sample_rng=sample_rng,
            num_workers=num_workers,
            collate_fn=collate_fn,
            order=order,
            packing=packing,
            stream_shares=stream_shares,
            accumulate=accumulate,
            max_skipped=max_skipped,
            torch_arguments={
                "pin_memory": pin_memory,
                "prefetch_factor": prefetch_factor,
                "persistent_workers": persistent_workers and not streaming,
                "timeout": timeout,
                "worker_init_fn": worker_init_fn,
                "multiprocessing_context": multiprocessing_context,
            },
        )
        self._source: Source | None = None
        self._given: Any = None  # see ``Source``
        self._metrics = Metrics()
        seeds_here = streaming and num_workers == 0 and sample_rng is not False
        self._own_streams: contextlib.AbstractContextManager[None] = (
            Preserved() if seeds_here else contextlib.nullcontext()
        )
        self._pass: Pass | None = None
        self._skips = Skips(self._settings.max_skipped)
        self._begun = False
        self._plan: Plan = make_plan(self._settings)
        self._updates = Updates()
        self._ledger = Ledger(self._plan.start, carries=self._plan.carries)
        self.before_next: list[Callable[[], None]] = []
        """Called at the start of each ``__next__``, before anything is fetched: the snapshot boundary."""

    @classmethod
    def from_dataloader(
        cls,
        loader: DataLoader[Any] | DurableLoader,
        *,
        replica: int | None = None,
        replicas: int | None = None,
        seed: int | None = None,
        promise: Promise | str = Promise.BITWISE,
        dataset_id: str | None = None,
        **more: Any,
    ) -> DurableLoader:
        """The same batches and settings as a plain ``DataLoader``'s, in a durable order.

        Random, sequential and distributed samplers give way to an order of ours (a distributed one
        names replica and replicas unless these are given; its slicing gives way too). A per-replica
        batch size b makes a global batch of ``b * replicas``. A ``DurableLoader`` is bound (``accumulate`` of
        ``more`` too) and returned.
        ``more``: what a plain loader cannot say (``order``, ``packing``, ``remainder`` ...).

        Raises:
            UnsupportedError: custom samplers and iterable datasets without state, sampling with
                replacement or a part, ``in_order=False``, loaders that iterate in their own way.
        """
        place = {"replica": replica, "replicas": replicas, "seed": seed}
        if isinstance(loader, DurableLoader):
            loader.bind(**{**place, "accumulate": more.get("accumulate")})
            return loader
        arguments = adopt.arguments(
            loader, **place, promise=promised(promise), remainder=more.get("remainder")
        )
        return cls(**{**adopt.without(arguments, more), "dataset_id": dataset_id, **more})

    def bind(
        self, *, replica: int | None = None, replicas: int | None = None, seed: int | None = None,
        accumulate: int | None = None,
    ) -> None:  # fmt: skip
        """Give the loader its place, seed and batches of a step before the first ``iter()``; None: as is."""
        given = {"replica": replica, "replicas": replicas, "seed": seed, "accumulate": accumulate}
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if not changes:
            return
        self._check_not_begun("bind")
        if self._ledger.position != (0, 0):
            raise UsageError("bind() after load_state_dict()", hint="bind first, then restore")
        self._settings = dataclasses.replace(self._settings, **changes)
        self._plan = make_plan(self._settings)
        self._ledger = Ledger(self._plan.start, carries=self._plan.carries)

    def update_weights(self, weights: Mapping[str, Any], lead: int = LEAD) -> int:
        """Other weights for a mixture, from ``lead`` batches after the position on.

        Call it on every replica alike, once the step that the weights come from was acknowledged. Where they
        take effect is settled by the acknowledged position, not by what was fetched ahead, and is part
        of ``state_dict()``: a run killed at any instant draws as if it had not been. Returns the number
        of that batch since the run began, from 0.

        Raises ``UnsupportedError`` without a mixture; ``UsageError`` when batches that far ahead may
        already be planned (``lead`` must be more than what is read ahead), or weights wait for that batch.
        """
        lead, exact = whole("lead", lead, 1), exactly(weights)
        sequence, state = self._plan.sequence, self._ledger.state
        if sequence is None or not sequence.carries:
            raise UnsupportedError("only a mixture has weights that could be changed")
        done = 0 if state is None else state["batches"]
        issued = self._source.issued if isinstance(self._source, SequenceSource) else done
        at = beginning(done, issued, lead, self._updates)
        now = sequence.start(0) if state is None else state["sequence"]
        reweighted(sequence, now, at, exact)  # says what is wrong with them here, not in so many batches
        self._updates.add(at, exact)
        return at

    def acknowledge(self, n: int = 1, *, step: int, no_update: bool = False) -> None:
        """The oldest ``n`` batches handed over were consumed by optimizer step ``step``.

        ``no_update``: the update was skipped (scaler overflow); the data counts as consumed.
        Raises ``OrderError`` for more than were handed over.
        """
        self._ledger.acknowledge(whole("n", n, 1), whole("step", step, 0), no_update)

    def end_epoch(self) -> None:
        """The trainer leaves the epoch here: the cursor moves to the next one.

        Only needed where a trainer stops an epoch early and may save before it calls ``iter()``
        again; without effect when everything of the epoch was acknowledged, or nothing. Batches handed
        over are acknowledgeable until the next epoch hands one over.
        """
        epoch, batch = self._ledger.position
        if batch:
            if self._pass is not None:
                self._pass.close()
                self._pass = None
            self._ledger.leave(epoch + 1)

    # --- iteration ----------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        if self._source is None:
            self._source = make_source(self._settings, self._plan, self._updates, self._given)
        self._begun = True
        self._pass = Pass(self._next_start())
        return PassIterator(self._next, self._pass)

    def _next_start(self) -> tuple[int, int]:
        """Where the pass after this one begins; tells the ledger."""
        last = self._pass
        if last is None:
            return self._ledger.position
        last.close()
        epoch = last.start[0] + 1
        if last.exhausted:  # who saw the end has used all of it, and may still step with the last batches
            self._ledger.follow(epoch)
        elif self._ledger.position > last.start:
            self._ledger.leave(epoch)
        else:
            self._ledger.rewind(*last.start)
            return last.start
        return epoch, 0

    def __len__(self) -> int:
        """Batches in the epoch under way (only under "straddle" not the same in all). Raises TypeError when
        nobody knows: an iterable dataset or sampler, packs, a mixture without end."""
        epoch = self._pass.start[0] if self._pass is not None else self._ledger.position[0]
        batches = self._plan.batches_in(epoch)
        if batches is None:
            way = "; give the mixture epoch_size=" if is_mixture(self.dataset) else ""
            raise TypeError(f"the number of batches is not known before the end{way}")
        return batches

    def set_epoch(self, epoch: int) -> None:
        """Nothing: the epoch is part of the cursor. (Trainers call this out of habit.)"""

    def _next(self, current: Pass) -> Any:
        if current.ended:
            current.exhausted = True
            current.close()
            raise StopIteration
        if current is not self._pass:
            raise UsageError(
                "a newer iterator of this loader has replaced this one",
                hint="one pass at a time: leave the first one, or make a second loader",
            )
        for hook in tuple(self.before_next):
            hook()
        if current.fetching:
            raise OrderError(
                "an earlier batch of this pass could not be fetched, and must not be skipped over",
                hint="restart from the last checkpoint",
            )
        current.fetching = True
        begun = _now()
        with self._own_streams:
            if current.batches is None:
                current.batches = self._opened(current.start)
            delivered = current.take()
        self._metrics.wait.add(_now() - begun)
        if delivered is not None:
            self._skips.count(delivered[0])
        current.fetching = False
        if delivered is None:
            self._end(current)
            current.exhausted = True
            raise StopIteration
        tag, content = delivered
        self._metrics.fetched(tag.seconds, tag.measured)
        self._ledger.hand_over(tag)
        current.ended = tag.last
        return content

    def _end(self, current: Pass) -> None:
        current.ended = True
        self._ledger.end_pass()

    def more(self) -> bool:
        """Whether the pass under way has another batch after the one handed over last. Where only the end
        tells, as with an iterable dataset, that batch is fetched now; it is not handed over by this."""
        current = self._pass
        if current is None or current.ended:
            return False
        if self.streaming and current.ahead is None and current.batches is not None:
            current.fetching = True
            with self._own_streams:
                current.ahead = current.take()
            current.fetching = False
            if current.ahead is None:
                self._end(current)
        return not current.ended
