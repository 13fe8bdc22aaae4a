"""L3. Packing for streams: documents without ids or known lengths, so the residue is tokens."""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import IterableDataset

from durable_core.data.loader.sources.mapped import is_stateful
from durable_core.data.packing.packer import FIELDS, Pack, Packer
from durable_core.data.packing.policy import Packing
from durable_core.data.packing.rows import Piece, Row, assemble
from durable_core.errors import SpecMismatchError, UnsupportedError, UsageError

Document = dict[str, npt.NDArray[Any]]
COLUMNS = ("input_ids", "labels", "loss_mask", "loss_weight")


class PackedStream(IterableDataset[Row]):
    """Rows (see ``assemble``) packed from the documents of an iterable, with an exact position.

    Each item is one document: token ids, or a mapping with "input_ids" (see ``Piece``; other keys are left
    out). The state is the iterable's own, and the documents read and not yet all handed out: with greedy
    at most one, with best fit those of the open packs, at most ``window * length`` tokens and one more. So
    keep the window small with workers: every batch brings a state. Each worker packs its own share.

    Args:
        iterable: has ``state_dict`` and ``load_state_dict``; so may its iterator.
        packing: the policy.

    Raises:
        UnsupportedError: the iterable has no state to go on from.
        UsageError: while iterating, an item is no document.
        SpecMismatchError: a loaded state is of another packing; ``fields`` names what differs.
    """

    def __init__(self, iterable: Any, packing: Packing) -> None:
        if not is_stateful(iterable):
            raise UnsupportedError(
                f"{type(iterable).__name__} has no state_dict, so its position cannot be restored",
                hint="give it state_dict and load_state_dict, or a map-style dataset with lengths",
            )
        self.iterable, self.packing = iterable, packing
        self._packer = Packer(packing)
        self._documents: dict[int, _Held] = {}
        self._read = 0
        self._iterator: Any = None
        self._loaded: Any = None  # the iterator's state, in a tuple, between load_state_dict and iter

    def set_epoch(self, epoch: int) -> None:
        """Passed on to the iterable, if it listens."""
        if hasattr(self.iterable, "set_epoch"):
            self.iterable.set_epoch(epoch)

    def __iter__(self) -> Iterator[Row]:
        loaded, self._loaded, self._iterator = self._loaded, None, None
        if loaded is None:
            self._packer, self._documents, self._read = Packer(self.packing), {}, 0
        elif loaded[0] is not None:
            self._iterator = iter(self.iterable)
            self._iterator.load_state_dict(copy.deepcopy(loaded[0]))
        return self._rows()

    def state_dict(self) -> dict[str, Any]:
        """The position after the last row handed out. JSON-able, if the iterable's state is."""
        return {
            "packing": self.packing.description,
            "packer": self._packer.state(),
            "read": self._read,
            "documents": {str(ordinal): held.encoded() for ordinal, held in self._documents.items()},
            "iterable": copy.deepcopy(self.iterable.state_dict()),
            "iterator": copy.deepcopy(self._iterator.state_dict()) if is_stateful(self._iterator) else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next ``iter`` goes on from there."""
        recorded, mine = state["packing"], self.packing.description
        differing = tuple(key for key in mine if recorded.get(key) != mine[key])
        if differing:
            was, now = [recorded.get(key) for key in differing], [mine[key] for key in differing]
            raise SpecMismatchError(
                f"the stream was packed with {', '.join(differing)} = {was} and now with {now}",
                fields=differing,
                hint="pack as the run did, or start another run",
            )
        self._packer = Packer(self.packing, state["packer"])
        self._documents = {int(key): _Held.decode(value) for key, value in state["documents"].items()}
        self._read = state["read"]
        if self._packer.closing:  # nothing more is read: a state left lying there would end the next pass too
            self._loaded = (None,)
        else:
            self.iterable.load_state_dict(copy.deepcopy(state["iterable"]))
            self._loaded = (state["iterator"],)

    def _rows(self) -> Iterator[Row]:
        packer = self._packer
        while True:
            pack = packer.pop()
            if pack is not None:
                yield self._row(pack)
            elif packer.closing:
                return
            else:
                self._feed(packer)

    def _feed(self, packer: Packer) -> None:
        if self._iterator is None:
            self._iterator = iter(self.iterable)
        try:
            item = next(self._iterator)
        except StopIteration:
            packer.flush()
            return
        document = _document(item, self._read)
        self._documents[self._read] = _Held(document)
        packer.offer(self._read, 0, len(document["input_ids"]))
        self._read += 1

    def _row(self, pack: Pack) -> Row:
        pieces = []
        for at in range(0, len(pack), FIELDS):
            ordinal, _, begin, end = pack[at : at + FIELDS]
            pieces.append(Piece(self._documents[ordinal].columns, begin, end, id=ordinal))
        row = assemble(self.packing, pieces)
        held = self._packer.documents()
        for ordinal in set(pack[::FIELDS]) - held:
            del self._documents[ordinal]
        return row


class _Held:
    """A document in the residue, and its encoding once it was asked for: states are taken at every row."""

    def __init__(self, columns: Document) -> None:
        self.columns = columns
        self._encoded: dict[str, list[str]] | None = None

    def encoded(self) -> dict[str, list[str]]:
        """Per column the little-endian type and base64 of the bytes: text is never copied by a deep copy."""
        if self._encoded is None:
            self._encoded = {key: _encode(values) for key, values in self.columns.items()}
        return self._encoded

    @classmethod
    def decode(cls, encoded: Mapping[str, list[str]]) -> _Held:
        return cls({key: _decode(*parts) for key, parts in encoded.items()})


def _encode(values: npt.NDArray[Any]) -> list[str]:
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return [little.dtype.str, base64.b64encode(little.tobytes()).decode("ascii")]


def _decode(dtype: str, text: str) -> npt.NDArray[Any]:
    return np.frombuffer(base64.b64decode(text), dtype=np.dtype(dtype))


def _document(item: Any, ordinal: int) -> Document:
    """The columns of an item as arrays of our own: the iterable may go on changing what it gave."""
    fields = item if isinstance(item, Mapping) else {"input_ids": item}
    given = {key: np.array(fields[key]) for key in COLUMNS if fields.get(key) is not None}
    tokens = given.get("input_ids")
    if tokens is None or tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
        what = f"no 'input_ids' among {sorted(map(str, fields))}" if tokens is None else f"{tokens.dtype}"
        raise UsageError(f"item {ordinal} of the stream is no document of token ids: {what}")
    if tokens.dtype == np.int64 and (not tokens.size or -(1 << 31) <= tokens.min() <= tokens.max() < 1 << 31):
        given["input_ids"] = tokens.astype(np.int32)  # half the state
    return given
