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

    A generation below one that writes here has been fenced, and can never publish what it uploads. Age
    is a guess, and a wrong one costs a living writer that save, never a commit: the completion of an
    aborted upload fails.
    """
    if generation is not None and generation < newest:
        return f"generation {generation} was replaced by {newest}"
    if age > abandoned_after:
        return f"begun {age:.0f} s ago"
    return ""


class Residue:
    def __init__(self, client: ObjectClient, prefix: str, abandoned_after: float) -> None:
        self._client = client
        self._prefix = prefix
        self._abandoned_after = abandoned_after
        self._newest = -1

    def writing(self, key: str) -> None:
        """This process, whose generation the journal let write, is about to write ``key``."""
        self._newest = max(self._newest, generation_of(key) or 0)

    def collect(self, now: float, limit: int) -> int:
        """Remove at most ``limit``; how many. Where uploads may not be listed there are none to be seen,
        and a lifecycle rule of the bucket has to abort them."""
        removed = 0
        try:
            unfinished = list(self._client.uploads(self._prefix))
        except Refusal as refusal:
            if refusal.kind not in (Kind.DENIED, Kind.INVALID):
                raise
            unfinished = []
        for upload in unfinished:
            generation = generation_of(upload.path.removeprefix(self._prefix))
            if removed < limit and why_dead(
                generation, self._newest, now - upload.begun, self._abandoned_after
            ):
                self._client.abort(upload)
                removed += 1
        for item in self._client.list(self._prefix + PROBES):
            old = now - item.modified > self._abandoned_after
            if removed < limit and old and item.path.startswith(self._prefix + PROBES):
                self._client.delete(item.path)
                removed += 1
        return removed
