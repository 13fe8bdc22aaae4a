"""L3. The packer: documents' lengths in, packs of references out. It never sees a token.

Greedy is best fit with one open pack: what does not fit closes it. (With cuts, a document is cut to
what fits.) So there is one rule, and its memory is the open packs and the document under way.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from durable_core.data.packing.policy import Packing
from durable_core.errors import FormatError, UsageError

Pack = list[int]
"""Four integers a piece: id, epoch, begin, end. [begin, end) are tokens of the document with its
end-of-text token, if the packing appends one."""
FIELDS = 4


def residue(state: Mapping[str, Any]) -> npt.NDArray[np.int64]:
    """What ``Packer.state`` says is offered and not yet out: int64 [pieces, 4], as in ``Pack``.

    A document that is yet to be cut counts as one piece.
    """
    pieces = [value for pack in state["open"] for value in pack]
    return np.array([*pieces, *(state["document"] or ())], dtype=np.int64).reshape(-1, FIELDS)


class Packer:
    """Give it documents with ``offer``, take packs with ``pop`` until that gives None, ``flush`` at the end.

    A document without tokens is not left out: a piece [0, 0) of it goes into the fullest open pack. (A
    pack of ``length`` pieces is closed, so that a run of such documents cannot grow the memory.)

    Args:
        packing: the policy.
        state: of another packer of the same policy, to go on from; it is not changed.

    Raises:
        FormatError: the state cannot be one of this policy.
    """

    def __init__(self, packing: Packing, state: Mapping[str, Any] | None = None) -> None:
        self.packing = packing
        self.closing = False
        self._document: list[int] | None = None  # id, epoch, tokens packed, tokens
        self._packs: dict[int, Pack] = {}  # by age: insertion order
        self._rooms: list[tuple[int, int]] = []  # sorted (room, serial)
        self._shared: set[int] = set()  # packs that a state has been given: copied before they grow
        self._opened = 0
        if state is not None:
            self._restore(state)

    @property
    def hungry(self) -> bool:
        """Whether a document may be offered: the last one is packed, and the end is not reached."""
        return self._document is None and not self.closing

    def offer(self, document: int, epoch: int, length: int) -> None:
        """The next document, ``length`` tokens long (without end-of-text token).

        Raises ``UsageError`` when it is longer than a pack and the policy refuses that, or has a
        negative length, or the packer was not hungry.
        """
        if not self.hungry:
            raise UsageError(
                "the packer still has a document, or was flushed", hint="pop until it gives None"
            )
        packing = self.packing
        tokens = packing.packed(length)
        if length < 0:
            raise UsageError(f"document {document} has {length} tokens")
        if tokens > packing.length and packing.on_long == "error":
            raise UsageError(
                f"document {document} has {tokens} tokens, more than a pack of {packing.length}",
                hint="on_long='split' or 'truncate' packs it",
            )
        self._document = [document, epoch, 0, tokens]

    def flush(self) -> None:
        """There are no more documents: ``pop`` gives the open packs too, oldest first (or drops them)."""
        self.closing = True

    def pop(self) -> Pack | None:
        """The next finished pack; None when that takes another document, or all is out."""
        while self._document is not None:
            pack = self._place(self._document)
            if pack is not None:
                return pack
        if not self.closing or not self._packs:
            return None
        if self.packing.tail == "drop":
            self._packs.clear()
            self._rooms.clear()
            return None
        serial = next(iter(self._packs))
        self._rooms.remove(next(entry for entry in self._rooms if entry[1] == serial))
        return self._packs.pop(serial)

    def state(self) -> dict[str, Any]:
        """The residue, as references: JSON-able, never changed later. Made in O(open packs)."""
        self._shared = set(self._packs)
        document = None if self._document is None else list(self._document)
        return {"open": list(self._packs.values()), "document": document, "closing": self.closing}

    def documents(self) -> set[int]:
        """Ids of the documents that still have a part here: for who keeps their tokens."""
        held = {name for pack in self._packs.values() for name in pack[::FIELDS]}
        return held if self._document is None else held | {self._document[0]}

    def _place(self, document: list[int]) -> Pack | None:
        """Put the document's next piece into a pack; the pack that this finished, if any."""
        packing, rooms = self.packing, self._rooms
        name, epoch, begin, tokens = document
        limit = rooms[0][0] if packing.split and rooms else packing.length
        size = min(tokens - begin, limit)
        index = bisect_left(rooms, (size, 0))
        if index < len(rooms):
            room, serial = rooms.pop(index)
        elif size == packing.length and packing.open_packs > 1:
            room, serial = size, self._open()  # leaves at once: no other has to make way
        elif len(rooms) == packing.open_packs:
            return self._packs.pop(rooms.pop(0)[1])  # the document comes at the next turn
        else:
            room, serial = packing.length, self._open()
        end = begin + size
        document[2] = end
        if end == tokens:
            self._document = None
        if serial in self._shared:
            self._shared.discard(serial)
            self._packs[serial] = self._packs[serial].copy()
        pack = self._packs[serial]
        pack += (name, epoch, begin, end)
        if room == size or len(pack) == FIELDS * packing.length:
            return self._packs.pop(serial)
        insort(rooms, (room - size, serial))
        return None

    def _open(self) -> int:
        self._opened += 1
        self._packs[self._opened] = []
        return self._opened

    def _restore(self, state: Mapping[str, Any]) -> None:
        packs, length = state["open"], self.packing.length
        rooms = [length - sum(pack[3::FIELDS]) + sum(pack[2::FIELDS]) for pack in packs]
        if len(packs) > self.packing.open_packs or any(not 0 < room <= length for room in rooms):
            raise FormatError(
                "packer state", f"{len(packs)} open packs with room for {rooms} do not fit {self.packing}"
            )
        for pack, room in zip(packs, rooms, strict=True):
            serial = self._open()
            self._packs[serial] = pack
            insort(self._rooms, (room, serial))
        self._shared = set(self._packs)
        self._document = None if state["document"] is None else list(state["document"])
        self.closing = state["closing"]
