"""L5. Trouble, told at once to whoever runs a plain loop: one warning for each event a person must see."""

from __future__ import annotations

import warnings

from durable_core import events
from durable_core.engine.parts import shown

#: Share of the time: what is less is not worth a person's.
WAITED = 0.05


def warn(event: events.Event) -> None:
    """A listener of ``Board``; it is called on the thread the event happened on."""
    sentence = sentence_of(event)
    if sentence is not None:
        say(sentence)


def say(sentence: str) -> None:
    warnings.warn(f"durable: {sentence}", stacklevel=2)


def sentence_of(event: events.Event) -> str | None:
    """What happened and what it means; ``None`` for what needs nobody's attention."""
    if isinstance(event, events.SaveFailed):
        return f"the save of step {event.step} failed, training goes on ({_durable(event)}): {event.error}"
    if isinstance(event, events.SaveSkipped):
        if event.skipped & (event.skipped - 1):
            return None  # said at the 1st, 2nd, 4th, 8th …: a slow disk is one piece of news, not hundreds
        return f"the save of step {event.step} was skipped ({event.reason}); {event.skipped} skipped so far"
    if isinstance(event, events.RpoBreached):
        return (
            f"more than is declared is at risk at step {event.step} "
            f"({_durable(event)}); policy: {event.action}"
        )
    if isinstance(event, events.CollectionFailed):
        return f"old checkpoints could not be removed: {event.error}"
    if isinstance(event, events.SnapshotVoided):
        return (
            f"the state of step {event.step} changed while it was being copied ({event.reason}); from now on "
            "the loop waits for copies. Call settle() before changing weights otherwise than by an optimizer"
        )
    if isinstance(event, events.SnapshotFailed):
        return f"no snapshot of step {event.step} in {event.place}: {event.error}"
    if isinstance(event, events.SnapshotAdopted):
        return (
            f"step {event.step}, which generation {event.replaced} had in {event.place} only, was adopted as "
            f"checkpoint {event.c}"
        )
    if isinstance(event, events.CopyFailed):
        return f"checkpoint {event.c} was not copied to {event.place}; the next one is tried: {event.error}"
    if isinstance(event, events.CopyDamaged):
        return f"{event.key} in {event.place} is damaged ({event.reason}); another copy served"
    if isinstance(event, events.CopyRepaired) and not event.done:
        return f"{event.key} in {event.place} is still damaged: {event.reason}"
    if isinstance(event, events.GoalBreached):
        return (
            f"were the {event.domain} lost now, {event.gap_steps} steps ({event.gap_seconds:.0f} s) would be "
            f"lost with it: more than the declared goal"
        )
    if isinstance(event, events.InputStarved):
        if event.waited < WAITED or event.windows & (event.windows - 1):
            return None  # what was read ahead made up for it; or it is no longer news
        return (
            f"training waits for data, {event.waited:.0%} of its time up to step {event.step}: {event.reason}"
        )
    if isinstance(event, events.MixtureDrifted):
        return f"the mixture has drifted at step {event.step}: {event.reason}"
    if isinstance(event, events.SourceRanOut):
        return f"source {event.source!r} ran out after {event.draws} draws; the others go on without it"
    if isinstance(event, events.SteppedDown):
        return f"checkpoint {event.c} is damaged ({event.reason}); going back to {event.to}"
    if isinstance(event, events.RolesChanged):
        of_first = f"; of {event.was[0]} alone: {shown(event.dropped)}" if event.dropped else ""
        return (
            f"checkpoint {event.c} is of {', '.join(event.was)} and goes on with "
            f"{', '.join(event.now)}{of_first}"
        )
    if isinstance(event, events.NumericFaultFound):
        follows = "training goes on" if event.action == "continue" else "training stops"
        return (
            f"{event.reason} ({event.failure}, found by {event.detector}); nothing from step {event.onset} "
            f"on is to be trusted, and {follows}"
        )
    if isinstance(event, events.PromiseLowered):
        return f"the promise is lowered from {event.was.value} to {event.now.value}: {event.reason}"
    return None


def _durable(event: events.SaveFailed | events.RpoBreached) -> str:
    return (
        "nothing is durable yet" if event.committed_step is None else f"durable: step {event.committed_step}"
    )
