"""L3. What a store is made to show before a run is trusted to it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from durable_core.errors import UnsupportedError
from durable_core.tier.remote.answers import Kind, Refusal
from durable_core.tier.remote.client import ObjectClient


@dataclass(frozen=True)
class Proof:
    """What was shown. ``checksums``: whether a PUT whose bytes differ from its checksum was refused
    (``None``: this client computes the checksum itself, so a wrong one cannot be sent)."""

    checksums: bool | None

    @property
    def warning(self) -> str:
        """For the user; ``""`` when there is nothing to warn of."""
        if self.checksums is False:
            return (
                "the store takes uploads whose checksum is wrong: damage on the way is found at restore only"
            )
        return ""


def prove(client: ObjectClient, path: str, other: str, mark: str, location: str) -> Proof:
    """Show that a second conditional PUT is refused *and* leaves the first; leaves nothing behind.

    ``path`` and ``other`` are fresh names. Raises ``UnsupportedError``, or the ``Refusal`` of a step that
    failed. ``If-Match`` is not tried, for nothing here relies on it.
    """
    try:
        client.create(path, b"first", mark)
        if client.get(path, 64)[1] != b"first":
            raise _unfit(location, "what was stored is not what is read")
        try:
            client.create(path, b"second", mark)
        except Refusal as refusal:
            if refusal.kind is not Kind.EXISTS:
                raise
        else:
            raise _unfit(location, "a second create of the same key was accepted")
        if client.get(path, 64)[1] != b"first":
            raise _unfit(location, "a create that was refused has overwritten the object")
        return Proof(client.garbled(other, b"checked"))
    finally:
        for made in (path, other):
            with contextlib.suppress(Refusal):  # what was shown counts; what stays is residue
                client.delete(made)


def _unfit(location: str, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"{location}: {what}, so a process that should be dead could overwrite a run",
        hint="use a store that honours If-None-Match: * on PUT, as S3, GCS, Azure, MinIO, Ceph and R2 do",
    )
