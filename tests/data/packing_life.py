"""A process that packs, records each row it consumed, and dies at the row it is told.

The record (position after the row, digests of all rows) is replaced by one rename, so a death before it
consumes the row again and a death after it does not: both must lead to the same rows.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from durable_core.data.order import FullPermutation
from durable_core.data.packing import PackedSequence, Packing, Piece, assemble
from durable_core.data.sequence import OrderedSequence

DOCUMENTS = 150
PACKINGS = {
    "greedy": Packing(64, eos_id=1),
    "best_fit": Packing(64, policy="best_fit", window=8),
    "stream": Packing(64, policy="best_fit", window=4, eos_id=1),
}


def document(index: int) -> list[int]:
    length = (index * 7919) % 41 + 10 * (index % 9 == 0) * (index % 11)
    return [(index * 31 + at) % 997 + 2 for at in range(length)]


class Documents:
    """The documents as an iterable with a state."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Iterator[list[int]]:
        while self.next < DOCUMENTS:
            self.next += 1
            yield document(self.next - 1)

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


def planned(packing: Packing, state: Any) -> Iterator[tuple[dict[str, Any], Any]]:
    """(row, position after it) of a packed sequence."""
    lengths = [len(document(i)) for i in range(DOCUMENTS)]
    order = FullPermutation(DOCUMENTS, dataset_id="life", seed=5)
    packed = PackedSequence(OrderedSequence(order), packing, lengths)
    state = packed.start(0) if state is None else state
    while True:
        batch, state = packed.take(state, 1)
        if not len(batch):
            return
        assert batch.begins is not None and batch.ends is not None
        pieces = zip(batch.ids.tolist(), batch.begins.tolist(), batch.ends.tolist(), strict=True)
        yield (
            assemble(packing, [Piece(document(i), begin, end, lengths[i], i) for i, begin, end in pieces]),
            state,
        )


def streamed(packing: Packing, state: Any) -> Iterator[tuple[dict[str, Any], Any]]:
    """(row, position after it) of a packed stream."""
    from durable_core.data.loader.packed_stream import PackedStream  # waits for torch

    stream = PackedStream(Documents(), packing)
    if state is not None:
        stream.load_state_dict(state)
    for row in stream:
        yield row, stream.state_dict()


def live(kind: str, record: Path, die_at: int | None, *, before: bool) -> list[str]:
    """Go on from ``record`` to the end of the epoch, or die at row ``die_at``, recorded or not."""
    known = json.loads(record.read_text()) if record.exists() else {"rows": [], "state": None}
    rows = known["rows"]
    source = streamed if kind == "stream" else planned
    for row, state in source(PACKINGS[kind], known["state"]):
        text = json.dumps({key: np.asarray(value).tolist() for key, value in sorted(row.items())})
        rows.append(hashlib.sha256(text.encode()).hexdigest())
        dying = len(rows) - 1 == die_at
        if dying and before:
            os._exit(9)
        fresh = record.with_suffix(".new")
        fresh.write_text(json.dumps({"rows": rows, "state": state}))
        fresh.replace(record)
        if dying:
            os._exit(9)
    return list(rows)


if __name__ == "__main__":
    kind, path, row, when = sys.argv[1:]
    live(kind, Path(path), None if row == "-" else int(row), before=when == "before")
