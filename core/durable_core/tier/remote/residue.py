"""L3. What dead writers leave in an object store: uploads begun and never completed, objects of a probe."""

from __future__ import annotations

from durable_core.format import layout
from durable_core.tier.remote.answers import Kind, Refusal
from durable_core.tier.remote.client import ObjectClient

PROBES = f"{layout.TMP}probe-"


def generation_of(key: str) -> int | None:
    parsed = layout.parse_checkpoint_key(key)
    return None if parsed is None else parsed.name.generation


def why_dead(generation: int | None, newest: int, age: float, abandoned_after: float) -> str:
    """Why the writer of an upload can be taken for dead; ``""`` when it may be alive.

    A generation below one that has written here is fenced, and can never publish what it uploads. Age
    is a guess, and a wrong one costs a living writer that save, never a commit: the completion of an
    aborted upload fails.
    """
    if generation is not None and generation < newest:
        return f"generation {generation} was replaced by {newest}"
    if age > abandoned_after:
        return f"begun {age:.0f} s ago"
    return ""


def collect(client: ObjectClient, prefix: str, *, now: float, abandoned_after: float, limit: int) -> int:
    """Remove at most ``limit``; how many. Where uploads may not be listed there are none to be seen, and
    a lifecycle rule of the bucket has to abort them.

    An object or upload named after a generation proves that the journal let that generation write.
    """
    removed = 0
    try:
        unfinished = list(client.uploads(prefix))
    except Refusal as refusal:
        if refusal.kind not in (Kind.DENIED, Kind.INVALID):
            raise
        unfinished = []
    if unfinished:
        written = [item.path for item in client.list(prefix + layout.CHECKPOINTS)]
        seen = [
            generation_of(path.removeprefix(prefix)) for path in (*written, *(u.path for u in unfinished))
        ]
        newest = max((generation for generation in seen if generation is not None), default=0)
        for upload in unfinished:
            generation = generation_of(upload.path.removeprefix(prefix))
            if removed < limit and why_dead(generation, newest, now - upload.begun, abandoned_after):
                client.abort(upload)
                removed += 1
    for item in client.list(prefix + PROBES):
        old = now - item.modified > abandoned_after
        if removed < limit and old and item.path.startswith(prefix + PROBES):
            client.delete(item.path)
            removed += 1
    return removed
