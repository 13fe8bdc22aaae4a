"""L3. What people and frameworks ask a loader, answered from its settings."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from durable_core.data.ledger import Ledger
from durable_core.data.loader.choose import endless
from durable_core.data.loader.passes import Pass
from durable_core.data.loader.plan import Plan
from durable_core.data.loader.settings import Settings
from durable_core.data.physical.metrics import Metrics
from durable_core.data.physical.supply import Need, Verdict, judge
from durable_core.types import Promise


class Answers:
    """The part of ``DurableLoader`` that only reports."""

    _settings: Settings
    _plan: Plan
    _ledger: Ledger
    _metrics: Metrics
    _pass: Pass | None

    def metrics(self) -> Metrics:
        """What reading has cost so far, summed over the workers; ``lead``: handed over and not trained.

        ``wait`` is what the training loop waited for batches, ``fetch`` what each took in its worker and
        ``compute`` the CPU seconds of that (neither is known of iterable datasets); without workers ``fetch``
        is ``wait``. The rest is what the dataset itself measures: a ``Metrics`` in its attribute ``metrics``.
        """
        self._metrics.lead = self._ledger.outstanding
        if not self.num_workers:
            self._metrics.fetch = self._metrics.wait
        return self._metrics

    def supply(
        self, step_s: float, *, batches: int | None = None, measured: Metrics | None = None, q: float = 0.99
    ) -> Verdict:
        """Whether reading keeps up with steps of ``step_s`` seconds, not counting what they wait for data.

        In tokens where samples are packs, else in samples, of this replica. The quantile ``q`` of a fetch
        decides, and not the mean alone; where it does not suffice, what holds reading back is named.
        ``batches`` in a step: by default ``accumulate``; ``measured``: all since this loader was made::

            verdict = loader.supply(step_s=0.25)
            if not verdict.sufficient:
                print(verdict.reason, verdict.bottleneck)  # "I/O", "decode", "memory" or "parallelism"

        Raises ``UsageError`` where ``step_s`` is not above 0.
        """
        settings = self._settings
        samples = max(settings.global_batch // settings.replicas, 1)
        tokens = samples * (1 if settings.packing is None else settings.packing.length)
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        need = Need(tokens, step_s, settings.accumulate if batches is None else batches)
        return judge(need, measured or self.metrics(), workers=self.num_workers, cpus=cpus, q=q)

    @property
    def dataset(self) -> Any:
        """The user's dataset, as given."""
        return self._settings.dataset

    @property
    def dataset_id(self) -> str:
        """Its identity; ``verified`` says whether it stands for the content."""
        return self._settings.dataset_id

    @property
    def batch_size(self) -> int | None:
        """Samples per batch of this replica."""
        return self._settings.batch_size

    @property
    def global_batch(self) -> int:
        """Samples per batch over all replicas; 0 when a batch sampler decides."""
        return self._settings.global_batch

    @property
    def seed(self) -> int:
        """The seed in force."""
        return self._ledger.cursor.seed

    @property
    def replica(self) -> int:
        """Which share of each global batch this loader gives."""
        return self._settings.replica

    @property
    def replicas(self) -> int:
        """How many share a global batch."""
        return self._settings.replicas

    @property
    def guarantees(self) -> Promise:
        """The strongest promise the data can keep, with as many replicas as before."""
        return self._plan.guarantees

    def guarantees_at(self, replicas: int) -> Promise:
        """The strongest promise when a restart has ``replicas`` of them.

        Other shares add up otherwise, so bits go; the samples of each batch stay. A dataset with
        ``__getitems__`` draws for its share at once: what it then makes of a sample is not what it was.
        """
        if replicas == self.replicas:
            return self.guarantees
        kept = Promise.COVERAGE if self._settings.draws_by_share else Promise.EXACT_ORDER
        return kept if self.guarantees.implies(kept) else self.guarantees

    @property
    def streaming(self) -> bool:
        """Whether the dataset is iterable rather than map-style."""
        return self._settings.streaming

    @property
    def endless(self) -> bool:
        """Whether an epoch is known to have no end (of a mixture that begins its sources again for ever)."""
        return self._plan.sequence is not None and endless(self._plan.sequence)

    @property
    def passing(self) -> int:
        """The epoch of the pass under way, or of the last one; before the first that of the position."""
        return self._ledger.position[0] if self._pass is None else self._pass.start[0]

    @property
    def drop_last(self) -> bool:
        return self._settings.remainder == "drop"

    @property
    def num_workers(self) -> int:
        return self._settings.num_workers

    @property
    def collate_fn(self) -> Callable[[Any], Any]:
        return self._settings.collate_fn

    @property
    def pin_memory(self) -> bool:
        return bool(self._settings.torch_arguments["pin_memory"])

    @property
    def sampler(self) -> Any:
        """The user's own sampler, if any. Orders of ours are no iterators (see ``DurableSampler``)."""
        return self._settings.sampler
