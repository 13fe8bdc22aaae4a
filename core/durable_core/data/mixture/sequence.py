"""L3. A mixture as a ``Sequence``: sources are chosen for a whole batch, then drawn from in bulk.

The state (JSON):

===========  =====================================================================================
``epoch``    of the mixture; ``left``: samples left in it, with ``epoch_size``
``batch``    global batches taken since the run began: what weight changes are stamped with
``version``  weight changes, removals and returns so far
``stage``    entries of the declared weight schedule in force
``draws``    per source, since the run began; ``units``: tokens, where those are weighed
``debts``    per source, target minus actual, over the denominator of the weights in force
``lanes``    per source, where its own order stands
``limit``    what no |debt| exceeds while those weights hold (quotas)
``weights``  in force instead of the declared ones, after an update; ``pending``: updates to come
``gone``     [source, batch, debt dropped, its denominator] of sources removed when they ran out
===========  =====================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from typing import Any, NamedTuple

import numpy as np

from durable_core.data.mixture import categorical, quota
from durable_core.data.mixture.lanes import Lane, Place, RepeatingLane
from durable_core.data.mixture.merge import joined, reordered
from durable_core.data.mixture.policy import (
    NAMES,
    Policy,
    Weight,
    Weights,
    carry,
    exact_weights,
    settle,
)
from durable_core.data.mixture.state import check_state
from durable_core.data.mixture.tokens import Lookahead, Tokens
from durable_core.data.numbers import whole
from durable_core.data.order import Ids
from durable_core.data.order.arithmetic import derive_keys
from durable_core.data.sequence import Batch, State
from durable_core.errors import ExhaustedError, OrderError, UsageError


class MixedSequence:
    """The draws of a mixture, in global batches. Pure; see the module for its state.

    ``lanes``: one per source. ``tokens``: one per source for the units token and loss_token, else None.
    """

    carries = True

    def __init__(
        self,
        policy: Policy,
        lanes: Ordered[Lane],
        *,
        seed: int,
        tokens: Ordered[Tokens] | None = None,
    ) -> None:
        self.policy, self.name = policy, NAMES[policy.schedule]
        self.description: Mapping[str, Any] = {
            **policy.to_json(),
            "lanes": [lane.description for lane in lanes],
        }
        repeats = policy.exhaustion == "repeat"
        self._lanes = [
            RepeatingLane(lane, source.name) if repeats and not lane.endless else lane
            for lane, source in zip(lanes, policy.sources, strict=True)
        ]
        self._passes = [lane.size for lane in lanes]
        self._seed, self._tokens = seed, tokens
        self._longest = None if tokens is None else max(lengths.longest for lengths in tokens)
        self._known: State = {}  # the last one that was given away: it needs no check
        sizes = np.array([source.size for source in policy.sources], dtype=np.int64)
        self._bases = np.cumsum(sizes) - sizes

    # --- the Sequence ---------------------------------------------------------------------

    def batches(self, global_batch: int) -> int | None:
        """Known with ``epoch_size`` where no source runs out, and where each is drawn to its end once."""
        policy = self.policy
        if policy.epoch_size is not None:
            runs_out = policy.exhaustion in ("stop", "renormalize")
            return None if runs_out else -(-policy.epoch_size // global_batch)
        sizes = [size for size in self._passes if size is not None]
        if policy.exhaustion != "renormalize" or policy.changes or len(sizes) < len(self._passes):
            return None
        return -(-sum(sizes) // global_batch)

    def start(self, epoch: int, before: State | None = None) -> State:
        """Counts, debts and the places in each source go on from ``before``.

        Under ``stop`` a source that had run out begins its next pass; under ``renormalize`` all do, and are
        back with no debts (with ``epoch_size``, once the last of them has run out). Raises ``UsageError`` for
        a later epoch without the state at the end of the one before it.
        """
        if before is not None:
            state = self._reopened(self._checked(before))
        elif epoch == 0:
            state = self._fresh()
        else:
            raise UsageError(
                f"epoch {epoch} of a mixture begins from the state at the end of epoch {epoch - 1}"
            )
        if self.policy.epoch_size is not None:
            state["left"] = self.policy.epoch_size
        state["epoch"] = epoch
        self._known = state
        return state

    def take(self, state: State, count: int) -> tuple[Batch, State]:
        """Raises ``ExhaustedError`` when a source runs out under the policy ``error``, ``FormatError`` for
        what is no state of this mixture."""
        state = self._in_force(self._checked(state))
        count = min(count, state.get("left", count))
        parts: list[Batch] = []
        while count and any(self.policy.weights_at(state)):
            part, state, empty = self._draw(state, count)
            if len(part):
                parts.append(part)
                count -= len(part)
            if empty is not None:
                if self.policy.exhaustion == "stop":
                    break
                state = self._without(state, empty)
        batch = joined(parts) if parts else _NOTHING
        if parts:
            state = {**state, "batch": state["batch"] + 1}
            if "left" in state:
                state["left"] -= len(batch)
        self._known = state
        return batch, state

    # --- beside it ------------------------------------------------------------------------

    def at_batch(self, state: State, batch: int) -> State:
        """For a sequence around this one, whose batches are the global ones: the one being filled."""
        return {**state, "batch": batch}

    def with_update(self, state: State, at_batch: int, weights: Mapping[str, Weight]) -> State:
        """``weights`` from global batch ``at_batch`` on, until a later update or declared change.

        To be called on the state at a *committed* step only, with an ``at_batch`` beyond what has been
        fetched ahead of that step (the caller declares the lead). A restart then finds the update in its
        checkpoint, or comes from before it and makes it again.

        Raises ``OrderError`` when that batch is taken or has its update; ``UsageError`` for bad weights.
        """
        state, at_batch = self._checked(state), whole("at_batch", at_batch, 0)
        pending = state.get("pending", [])
        last = max([state["batch"] - 1, *(at for at, _ in pending)])
        if at_batch <= last:
            raise OrderError(
                f"weights from global batch {at_batch} are too late: batch {last} is taken or has its update",
                hint="declare a lead of more batches than are fetched ahead",
            )
        exact = exact_weights(self.policy.names, weights)
        if self.policy.exhaustion == "renormalize" and not all(exact):
            raise UsageError(
                "under exhaustion='renormalize' each source is drawn to its end: no weight may be 0"
            )
        return {**state, "pending": [*pending, [at_batch, list(exact)]]}

    def _checked(self, state: State) -> State:
        if state is not self._known:
            check_state(self.policy, state)
        return state

    # --- drawing --------------------------------------------------------------------------

    def _draw(self, state: State, count: int) -> tuple[Batch, State, int | None]:
        """Up to ``count`` draws, the state after them, and the source that had none left for the next."""
        weights = self.policy.weights_at(state)
        picks = self._choose(state, weights, count)
        taken = self._serve(state, picks)
        cuts = [
            int(np.flatnonzero(picks == part.source)[len(part.batch)])
            for part in taken
            if len(part.batch) < part.asked
        ]
        empty = None
        if cuts:
            empty, picks = int(picks[min(cuts)]), picks[: min(cuts)]
            taken = self._serve(state, picks)
        return self._merged(picks, taken), self._after(state, weights, taken), empty

    def _choose(self, state: State, weights: Weights, count: int) -> Ids:
        """The sources of the next ``count`` draws; fewer where one that runs out is seen, which is last."""
        if self.policy.schedule == "categorical":
            sources = (field for source in self.policy.sources for field in (source.name, source.dataset_id))
            keys = derive_keys(self.name, self._seed, state["version"], *sources)
            begins = categorical.thresholds(self._odds(weights))
            return categorical.choose(begins, keys, sum(state["draws"]), count)
        if self._tokens is None or self._longest is None:
            picks = quota.choose(weights, state["debts"], quota.draw_rule(weights), count)
        else:
            ahead = Lookahead(self._lanes, state["lanes"], self._tokens, weights, count)
            picks = quota.choose(weights, state["debts"], quota.unit_rule(self._longest), count, ahead)
        return np.array(picks, dtype=np.int64)

    def _odds(self, weights: Weights) -> Weights:
        """Weights of the draws: of tokens, each divided by the tokens that a draw has on average."""
        if self._tokens is None:
            return weights
        common = math.lcm(*(tokens.total for tokens in self._tokens))
        return tuple(
            weight * source.size * (common // tokens.total)
            for weight, source, tokens in zip(weights, self.policy.sources, self._tokens, strict=True)
        )

    def _serve(self, state: State, picks: Ids) -> list[_Taken]:
        counts = np.bincount(picks, minlength=len(self._lanes)).tolist()
        return [
            _Taken(source, count, *self._lanes[source].take(state["lanes"][source], count))
            for source, count in enumerate(counts)
            if count
        ]

    def _merged(self, picks: Ids, taken: list[_Taken]) -> Batch:
        """The draws of each source, put where it was picked, in the ids of the mixture."""
        if not taken:
            return _NOTHING
        rows = np.empty(len(picks), dtype=np.int64)
        rows[np.argsort(picks, kind="stable")] = np.arange(len(picks))
        batch = reordered(joined([part.batch for part in taken]), rows)
        bases = self._bases[picks]
        if batch.packs is not None:
            bases = np.repeat(bases, np.diff(batch.packs))
        return Batch(batch.ids + bases, batch.epochs, batch.begins, batch.ends, batch.packs)

    def _after(self, state: State, weights: Weights, taken: list[_Taken]) -> State:
        drawn, amounts, lanes = [0] * len(self._lanes), [0] * len(self._lanes), list(state["lanes"])
        for source, _, batch, place in taken:
            drawn[source], lanes[source] = len(batch), place
            if self._tokens is not None:
                amounts[source] = int(self._tokens[source].of(batch.ids).sum())
        after = {
            **state,
            "lanes": lanes,
            "draws": [a + b for a, b in zip(state["draws"], drawn, strict=True)],
        }
        if self._tokens is not None:
            after["units"] = [a + b for a, b in zip(state["units"], amounts, strict=True)]
        after["debts"] = settle(state["debts"], weights, drawn if self._tokens is None else amounts)
        return after

    # --- other weights --------------------------------------------------------------------

    def _in_force(self, state: State) -> State:
        """After every change due at this batch, by the batches they are due at, declared ones first."""
        due = state["batch"] + 1
        while True:
            declared = [at for at, _ in self.policy.changes[state["stage"] :]][:1] or [due]
            updated = [at for at, _ in state.get("pending", ())][:1] or [due]
            if min(declared + updated) >= due:
                return state
            changed = dict(state)
            if declared <= updated:
                changed["stage"] += 1
                changed.pop("weights", None)
            else:
                (_, changed["weights"]), *rest = changed.pop("pending")
                if rest:
                    changed["pending"] = rest
            state = self._rebased(state, changed)

    def _without(self, state: State, source: int) -> State:
        """``source`` ran out and its weight goes. Raises ``ExhaustedError`` where that is not to happen."""
        policy = self.policy
        if policy.exhaustion == "error":
            raise ExhaustedError(policy.names[source], policy.sources[source].size, batch=state["batch"])
        record = [source, state["batch"], state["debts"][source], sum(policy.weights_at(state))]
        return self._rebased(state, {**state, "gone": [*state.get("gone", ()), record]})

    def _rebased(self, before: State, changed: State) -> State:
        weights = self.policy.weights_at(changed)
        debts = carry(before["debts"], self.policy.weights_at(before), weights)
        return self._limited({**changed, "debts": debts, "version": before["version"] + 1})

    def _limited(self, state: State) -> State:
        """With what no debt exceeds from here on, where anything can be said of it."""
        weights = self.policy.weights_at(state)
        if self.policy.schedule == "quota" and any(weights):
            state["limit"] = quota.limit(state["debts"], weights, self._longest)
        return state

    # --- epochs ---------------------------------------------------------------------------

    def _fresh(self) -> State:
        zeros = [0] * len(self._lanes)
        lanes = [lane.start() for lane in self._lanes]
        state: State = {"batch": 0, "version": 0, "stage": 0, "draws": zeros, "debts": zeros, "lanes": lanes}
        if self._tokens is not None:
            state["units"] = zeros
        return self._limited(state)

    def _reopened(self, before: State) -> State:
        """Sources that had run out begin again, where their policy has them do so at an epoch."""
        policy, places = self.policy, before["lanes"]
        if policy.exhaustion not in ("stop", "renormalize"):
            return dict(before)
        spent = [self._spent(i, place) for i, place in enumerate(places)]
        if policy.exhaustion == "renormalize":
            # One that ran out with the last batch has not been asked for more, and still has its weight.
            left = zip(policy.weights_at(before), spent, strict=True)
            ended = policy.epoch_size is None or not any(weight and not gone for weight, gone in left)
            again = [ended] * len(places)
        else:
            again = spent
        lanes = [
            lane.again(place) if anew else place
            for lane, place, anew in zip(self._lanes, places, again, strict=True)
        ]
        state = {**before, "lanes": lanes}
        if policy.exhaustion != "renormalize" or not all(again):
            return state
        state.pop("gone", None)
        state |= {"debts": [0] * len(lanes), "version": before["version"] + 1}
        return self._limited(state)

    def _spent(self, source: int, place: Place) -> bool:
        return not len(self._lanes[source].take(place, 1)[0])


class _Taken(NamedTuple):
    source: int
    asked: int
    batch: Batch
    place: Place


_NOTHING = Batch(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
