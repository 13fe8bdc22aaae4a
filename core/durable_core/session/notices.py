"""L5. Trouble, told at once to whoever runs a plain loop: one warning for each event a person must see."""

from __future__ import annotations

import warnings

from durable_core import events


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
    if isinstance(event, events.SteppedDown):
        return f"checkpoint {event.c} is damaged ({event.reason}); going back to {event.to}"
    if isinstance(event, events.ReplayMismatched):
        return f"the replay differs from what was trained before the failure: {event.reason}"
    if isinstance(event, events.PromiseLowered):
        return f"the promise is lowered from {event.was.value} to {event.now.value}: {event.reason}"
    return None


def _durable(event: events.SaveFailed | events.RpoBreached) -> str:
    return (
        "nothing is durable yet" if event.committed_step is None else f"durable: step {event.committed_step}"
    )
