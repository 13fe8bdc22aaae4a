"""L3. What people and frameworks ask a loader, answered from its settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from durable_core.data.ledger import Ledger
from durable_core.data.loader.plan import Plan, Settings
from durable_core.data.physical.metrics import Metrics
from durable_core.types import Promise


class Answers:
    """The part of ``DurableLoader`` that only reports."""

    _settings: Settings
    _plan: Plan
    _ledger: Ledger
    _metrics: Metrics

    def metrics(self) -> Metrics:
        """What reading has cost so far, summed over the workers; ``lead``: handed over and not trained.

        ``wait`` is what the training loop waited for batches, ``fetch`` what each took in its worker (not
        known of iterable datasets); without workers they are the same. The rest is what the dataset itself
        measures: a ``Metrics`` in its attribute ``metrics``.
        """
        self._metrics.lead = self._ledger.outstanding
        if not self.num_workers:
            self._metrics.fetch = self._metrics.wait
        return self._metrics

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
        """The strongest promise the data can keep."""
        return self._plan.guarantees

    @property
    def streaming(self) -> bool:
        """Whether the dataset is iterable rather than map-style."""
        return self._settings.streaming

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
