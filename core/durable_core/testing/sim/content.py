"""What simulated training computes: bytes that betray any mixing of histories.

The *history* at a step is a hash chain over every step trained, and by which generation. Every slice,
document and ledger row of a checkpoint carries it, so a checkpoint put together from two steps, two
lineages or two generations shows at once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from durable_core.format import digests, shard
from durable_core.types import SliceInfo, SliceKey

ROOT = "root"
BASE = "state/base"  # never changes, so it can be reused


@dataclass(frozen=True)
class Model:
    """A replica after ``step`` steps."""

    history: str = ROOT
    step: int = 0

    def trained(self, generation: int) -> Model:
        return Model(advance(self.history, generation, self.step + 1), self.step + 1)


def advance(history: str, generation: int, step: int) -> str:
    return hashlib.blake2b(f"{history}|{generation}|{step}".encode(), digest_size=8).hexdigest()


def slices_of(model: Model, role: str) -> dict[str, bytes]:
    """Logical key -> bytes that ``role`` stages."""
    mark = f"{model.history}:{model.step}:".encode()
    return {
        BASE: b"the base never changes" * 40,  # most of the bytes, as a frozen model is
        "state/w": mark * 3 + b"w",
        "state/b": mark + b"b",
        "state/n": mark + f"n:{role}".encode(),  # differs between replicas
        f"roles/{role}/rng": mark + f"rng:{role}".encode(),
    }


def documents_of(model: Model, role: str) -> dict[str, Any]:
    mark = {"history": model.history, "step": model.step}
    return {"state": mark, "role": {**mark, "role": role}}


def rows_of(trained: Mapping[int, int], after: int | None, upto: int) -> bytes:
    """A ledger segment: ``[step, generation]`` for the steps in ``(after, upto]``."""
    first = 0 if after is None else after
    rows = [[step, trained[step]] for step in sorted(trained) if first < step <= upto]
    return json.dumps(rows).encode()


def describe(staged: Mapping[str, bytes]) -> tuple[SliceInfo, ...]:
    return tuple(
        SliceInfo(
            SliceKey(key, (0,), (len(data),)), "U8", (len(data),), len(data), digests.xxh3(data),
            digests.crc32c(data),
        )
        for key, data in sorted(staged.items())
    )  # fmt: skip


def pack(
    staged: Mapping[str, bytes], role: str, pieces: Iterable[SliceKey]
) -> tuple[bytes, int, tuple[int, ...]]:
    """A shard of these slices: its bytes, the length of its header, where each slice begins."""
    keys = [piece.key for piece in pieces]
    parts = [staged.get(key) or staged[key.removeprefix(f"roles/{role}/")] for key in keys]
    entries = [(key, "U8", (len(part),), len(part)) for key, part in zip(keys, parts, strict=True)]
    header, begins = shard.layout(entries, align=8)
    order = shard.write_order(begins, [len(part) for part in parts])
    return header + b"".join(parts[i] for i in order), len(header), tuple(begins)
