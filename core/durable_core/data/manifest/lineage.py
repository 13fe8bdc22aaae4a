"""L3. Where a dataset came from, as far as the manifests at hand say."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from durable_core.data.manifest.describe import check_identity
from durable_core.data.manifest.model import DatasetManifest
from durable_core.data.manifest.store import load
from durable_core.errors import CorruptError, ObjectNotFoundError


@dataclass(frozen=True)
class Link:
    """One dataset in the lineage of another. ``depth``: derivations between them, 0 for itself; ``manifest``
    and where it lies, None when it is not at hand; ``activity``: what made it."""

    dataset_id: str
    depth: int
    path: str | None = None
    manifest: DatasetManifest | None = None

    @property
    def activity(self) -> str | None:
        return None if self.manifest is None else self.manifest.about.provenance.activity


def find(directories: Iterable[str | os.PathLike[str]]) -> dict[str, tuple[str, DatasetManifest]]:
    """dataset id -> (path, manifest), of the ``*.json`` in the directories that are whole manifests."""
    found: dict[str, tuple[str, DatasetManifest]] = {}
    for directory in directories:
        for path in sorted(Path(directory).glob("*.json")):
            try:
                manifest = load(path)
            except CorruptError:
                continue  # some other JSON, or one that is edited: it has no id to be found by
            found.setdefault(manifest.dataset_id, (str(path), manifest))
    return found


def lineage(dataset_id: str, known: Mapping[str, tuple[str, DatasetManifest]]) -> tuple[Link, ...]:
    """The dataset and all it was derived from, breadth first, each once.

    Raises ``UsageError`` for what is no id, ``ObjectNotFoundError`` when ``known`` has no such dataset.
    """
    if check_identity(dataset_id, "dataset") not in known:
        raise ObjectNotFoundError(dataset_id, "the manifests at hand")
    links: dict[str, Link] = {}
    level = [dataset_id]
    depth = 0
    while level:
        for each in level:
            path, manifest = known.get(each, (None, None))
            links[each] = Link(each, depth, path, manifest)
        parents = (m.about.provenance.derived_from for each in level if (m := links[each].manifest))
        level = sorted({parent for group in parents for parent in group} - links.keys())
        depth += 1
    return tuple(links.values())
