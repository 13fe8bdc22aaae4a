"""L3. Where a loader stands, and how it comes to stand elsewhere."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from durable_core.data.cursor import Cursor
from durable_core.data.ledger import Ledger, Tag
from durable_core.data.loader.passes import Pass
from durable_core.data.loader.plan import Plan, make_plan
from durable_core.data.loader.resume import Saved, accepted, check_draws, check_shares, written
from durable_core.data.loader.settings import Settings
from durable_core.data.loader.sources.mapped import MapSource, Source
from durable_core.data.loader.updates import Updates
from durable_core.data.numbers import whole
from durable_core.errors import UnsupportedError, UsageError

_ORIGIN = (0, 0)


class Position:
    """The part of ``DurableLoader`` that moves it."""

    _settings: Settings
    _plan: Plan
    _ledger: Ledger
    _updates: Updates
    _source: Source | None
    _given: Any
    _pass: Pass | None
    _begun: bool
    _left_out: int = 0  # batches that ``skip`` leaves out at the beginning

    def state_dict(self) -> dict[str, Any]:
        """``cursor`` as a dict, and beside it what the cursor alone cannot say.

        A source with a state of its own (a sequence, a stream, a stateful sampler) adds it as ``source``; a
        sequence (mixture, packs, bounded shuffle), and an order with settings, its description as ``plan``,
        which never changes; a mixture whose weights were changed, all changes as ``updates``. It is
        a copy: what the caller does with it changes nothing here.
        """
        return written(self._ledger.cursor, self._ledger.state, self._plan, self._settings, self._updates)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there at the next ``iter()``. The recorded seed wins over the one given here.

        Raises ``SpecMismatchError`` naming both values when the data differs, ``FormatError`` when
        it is no such state, ``UsageError`` once iteration has begun.
        """
        self._check_not_begun("load_state_dict")
        self.seek(state)

    def seek(self, state: Mapping[str, Any]) -> None:
        """As ``load_state_dict``, also after iteration has begun: the pass under way ends with the batch that
        it handed over last, and what was not acknowledged, or not drained of its rows, is forgotten."""
        saved = Saved.read(state)
        settings = dataclasses.replace(self._settings, seed=saved.cursor.seed)
        same_seed = saved.cursor.seed == self._plan.start.seed
        plan = self._plan if same_seed else make_plan(settings)
        cursor = accepted(saved, plan, promise=settings.promise, workers=settings.counted_workers)
        check_draws(saved.draws, settings)
        if settings.draws_by_share:
            check_shares(saved.replicas, settings.replicas, settings.promise)
        self._warn(saved.cursor, cursor)
        if self._pass is not None:
            self._pass.ended = True
        self.close()
        self._settings, self._plan = settings, plan
        self._updates = saved.updates
        self._ledger = Ledger(cursor, saved.state, carries=plan.carries)

    def _warn(self, saved: Cursor, cursor: Cursor) -> None:
        seed = self._plan.start.seed
        if cursor.seed != seed:
            warnings.warn(f"data: the run's seed {cursor.seed} is used, not {seed}", stacklevel=4)
        if cursor.global_batch != saved.global_batch:
            warnings.warn(
                f"data: batches of {saved.global_batch} samples are now of {cursor.global_batch}: the "
                "order of samples goes on exactly, sums within a step may round otherwise",
                stacklevel=4,
            )

    def skip(self, n: int) -> None:
        """Leave the first ``n`` batches of the data out, at its very beginning: before anything was trained.

        They are in the ledger as left out with the first batch that is trained, and not before: a
        process that has to begin there again has to skip again. Of a map-style dataset in an order they are
        not read; a source with a state of its own reads them. Called again, the last ``n`` counts.

        Raises ``UsageError`` once something was trained or iteration has begun, and for as many batches
        as an epoch has; ``UnsupportedError`` for packs, which are not counted in samples.
        """
        n = whole("n", n, 0)
        self._check_not_begun("skip")
        if self._ledger.position != _ORIGIN:
            raise UsageError(
                f"skip({n}) at {self._at}: only the beginning of the data can be left out",
                hint="a restored loader goes on where the run stands, and nothing has to be skipped",
            )
        if self._settings.packing is not None:
            raise UnsupportedError("batches of packs cannot be left out", hint="leave their documents out")
        batches = self._plan.batches_in(0)
        if batches is not None and n >= batches:
            raise UsageError(f"skip({n}) of an epoch of {batches} batches", hint="begin with fewer")
        self._left_out = n

    @property
    def _at(self) -> str:
        epoch, batch = self._ledger.position
        return f"epoch {epoch} batch {batch}"

    def _opened(self, start: tuple[int, int]) -> Iterator[tuple[Tag, Any]]:
        """The batches from ``start`` on, after those that are left out."""
        source, ledger, n = self._source, self._ledger, self._left_out
        assert source is not None
        if not n or start != _ORIGIN:
            return source.open(*start, ledger.opening)
        if isinstance(source, MapSource):
            for tag in source.tags(n):
                ledger.pass_by(tag)
            return source.open(0, n, None)
        batches = source.open(*start, ledger.opening)
        for tag, _ in itertools.islice(batches, n):
            ledger.pass_by(tag)
        first = next(batches, None)
        if first is None:
            raise UsageError(f"skip({n}) of an epoch of no more batches", hint="begin with fewer")
        return itertools.chain((first,), batches)

    def close(self) -> None:
        """End workers, and the pass under way: what it handed over, not acknowledged, was never trained.

        Harmless when repeated; a later ``iter()`` goes on at the position, with workers of its own.
        """
        if self._pass is not None:
            self._pass.close()
            self._pass = None
            self._ledger.rewind(*self._ledger.position)
        if self._source is not None:
            self._source.close()
            self._given, self._source = self._source.given, None

    def _check_not_begun(self, what: str) -> None:
        if self._begun:
            raise UsageError(f"{what}() after iteration has begun", hint="call it before the first iter()")
