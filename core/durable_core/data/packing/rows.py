"""L3. From pieces of records to the arrays a model takes. No torch: numpy in, numpy out.

The conventions are those of ``transformers.DataCollatorWithFlattening`` and of flash-attention's
``flash_attn_varlen_func``, so that either attends within each piece only:

* ``position_ids`` begin at 0 with every piece, a continued document's too: its earlier tokens are in
  another row. (transformers finds the boundaries where ``position_ids`` is 0.)
* the label at the first token of a piece is ``ignore_index``: labels are not shifted here, the model does
  that, and would predict this token from the piece before.
* ``cu_seqlens`` is int32 [sequences + 1], cumulative, from 0 to the number of tokens; ``max_seqlen`` an int.

Padding is a sequence of its own: document id -1, positions from 0, no label. So attention that masks by
equal document ids has no empty row, whose softmax would be NaN. A row may well have no label at all (a
rest of one token): divide a loss by ``max(1, loss_mask.sum())``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from durable_core.data.packing.policy import Packing
from durable_core.errors import FormatError

Row = dict[str, npt.NDArray[Any]]
PADDING = -1
"""The document id of padding."""
_PLAIN = Packing(1)


class Piece(NamedTuple):
    """Tokens [begin, end) of a record, which is given whole.

    ``record``: token ids [tokens] as an array, a list or a CPU tensor; or a mapping with "input_ids" and
    perhaps "labels" (taken as they are), "loss_mask" (0: no loss), "loss_weight", each [tokens].
    ``length``: tokens the plan took the record to have, checked if given. ``id``: for messages.
    ``weight``: of the loss for the whole piece, as a mixture gives to a source.
    """

    record: Any
    begin: int
    end: int
    length: int | None = None
    id: int | None = None
    weight: float = 1.0


def assemble(packing: Packing, pieces: Iterable[Piece]) -> Row:
    """One row of ``packing.length`` tokens from the pieces of a pack.

    "input_ids", "position_ids" int64 [length]; "document_ids" int64 [length], the ordinal of the piece in
    the row, -1 at padding; "labels" int64 [length] (if ``packing.labels``), not shifted, as the model shifts
    them; "loss_mask" bool [length], true where the label counts; "loss_weight" float32 [length] (if
    ``packing.loss_weight``), 0 at padding.

    Raises ``FormatError`` naming the record when it is not as planned, or its arrays are not of one length.
    """
    length = packing.length
    tokens = np.full(length, packing.pad_id, dtype=np.int64)
    labels = np.full(length, packing.ignore_index, dtype=np.int64)
    positions = np.zeros(length, dtype=np.int64)
    documents = np.full(length, PADDING, dtype=np.int64)
    weights = np.zeros(length, dtype=np.float32)
    start = 0
    for ordinal, piece in enumerate(pieces):
        stop = start + piece.end - piece.begin
        if stop > length:
            raise FormatError(_name(piece), f"its piece ends at token {stop} of a row of {length}")
        arrays = _read(packing, piece)
        tokens[start:stop], labels[start:stop], weights[start:stop] = arrays
        if stop > start:
            labels[start] = packing.ignore_index
        positions[start:stop] = np.arange(stop - start)
        documents[start:stop] = ordinal
        start = stop
    positions[start:] = np.arange(length - start)
    row: Row = {"input_ids": tokens, "position_ids": positions, "document_ids": documents}
    if packing.labels:
        row["labels"] = labels
    row["loss_mask"] = labels != packing.ignore_index
    if packing.loss_weight:
        row["loss_weight"] = weights
    return row


def cu_seqlens(document_ids: npt.ArrayLike) -> tuple[npt.NDArray[np.int32], int]:
    """``cu_seqlens`` and ``max_seqlen`` of rows laid end to end, for ``flash_attn_varlen_func``.

    ``document_ids``: [length] or [rows, length]; the end of a row ends a sequence, and padding is one.
    transformers takes them as ``cu_seq_lens_q``, ``cu_seq_lens_k``, ``max_length_q`` and ``max_length_k``.
    """
    ids = np.atleast_2d(np.asarray(document_ids))
    begins = np.ones(ids.shape, dtype=bool)
    begins[:, 1:] = ids[:, 1:] != ids[:, :-1]
    bounds = np.append(np.flatnonzero(begins), ids.size).astype(np.int32)
    return bounds, int(np.diff(bounds).max(initial=0))


def flatten(rows: Items[Row]) -> dict[str, Any]:
    """Collate without padding: one row [1, tokens] of all pieces, as ``DataCollatorWithFlattening`` does.

    Each key of ``assemble`` as [1, tokens], with "cu_seq_lens_q", "cu_seq_lens_k" int32 [pieces + 1] and
    "max_length_q", "max_length_k"; "document_ids" count through the batch. All is numpy:
    ``torch.utils.data.default_convert`` makes tensors of it.
    """
    kept = [row["document_ids"] != PADDING for row in rows]
    flat: dict[str, Any] = {
        key: np.concatenate([row[key][keep] for row, keep in zip(rows, kept, strict=True)]) for key in rows[0]
    }
    first = flat["position_ids"] == 0
    bounds = np.append(np.flatnonzero(first), len(first)).astype(np.int32)
    flat["document_ids"] = np.cumsum(first) - 1
    longest = int(np.diff(bounds).max(initial=0))
    batch: dict[str, Any] = {key: values[None] for key, values in flat.items()}
    batch |= {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds}
    return batch | {"max_length_q": longest, "max_length_k": longest}


def loss_tokens(record: Any, packing: Packing = _PLAIN) -> int:
    """Labels of a record that count when it is packed whole: what ``assemble`` marks in "loss_mask".

    The first token never counts. ``packing``: its end-of-text token and ``ignore_index``; default none, -100.
    """
    labels = _read(packing, Piece(record, 0, packing.tokens(record_length(record))))[1]
    return int(np.count_nonzero(labels[1:] != packing.ignore_index))


def record_length(record: Any) -> int:
    """Tokens of a record (see ``Piece``), as ``lengths`` must have them."""
    return len(_fields(record, "a record")["input_ids"])


Arrays = tuple[npt.NDArray[Any], npt.NDArray[Any], "npt.NDArray[Any] | float"]


def _read(packing: Packing, piece: Piece) -> Arrays:
    """Tokens, labels and weights of a piece. Only its own range is converted: a long record has many."""
    name, begin, end = _name(piece), piece.begin, piece.end
    fields = _fields(piece.record, name)
    size = len(fields["input_ids"])
    planned = size if piece.length is None else piece.length
    if size != planned or not 0 <= begin <= end <= packing.tokens(size):
        raise FormatError(
            name,
            f"has {size} tokens where {planned} were planned, of which [{begin}, {end}) are wanted",
            hint="the tokenizer or the data changed: make the lengths again",
        )

    def column(key: str, kinds: str) -> npt.NDArray[Any]:
        values = fields[key]
        _check_list(name, key, values)
        part = np.asarray(values[begin : min(end, size)])
        if len(values) != size or part.ndim != 1 or (part.size and part.dtype.kind not in kinds):
            kind = f"{part.dtype} [{len(values)}]"
            raise FormatError(name, f"{key!r} is {kind}, not one number for each of {size} tokens")
        return part

    tokens = column("input_ids", "iu")
    labels = column("labels", "iu") if fields.get("labels") is not None else tokens
    if fields.get("loss_mask") is not None:
        labels = np.where(column("loss_mask", "biu"), labels, packing.ignore_index)
    weights: npt.NDArray[Any] | float = piece.weight
    if fields.get("loss_weight") is not None:
        weights = column("loss_weight", "iuf") * piece.weight
    eos = packing.eos_id
    if end <= size or eos is None:
        return tokens, labels, weights
    label = packing.ignore_index if labels.size and labels[-1] == packing.ignore_index else eos
    if isinstance(weights, np.ndarray):
        weights = np.append(weights, weights[-1] if weights.size else piece.weight)
    return np.append(tokens, eos), np.append(labels, label), weights


def _fields(record: Any, name: str) -> Mapping[str, Any]:
    fields = record if isinstance(record, Mapping) else {"input_ids": record}
    if "input_ids" not in fields:
        raise FormatError(name, f"has no 'input_ids' among {sorted(map(str, fields))}")
    _check_list(name, "input_ids", fields["input_ids"])
    return fields


def _check_list(name: str, key: str, values: Any) -> None:
    try:
        len(values), values[:0]
    except (TypeError, KeyError, IndexError) as error:
        raise FormatError(name, f"{key!r} is {values!r:.80}, not one number for each token") from error


def _name(piece: Piece) -> str:
    return "a record" if piece.id is None else f"record {piece.id}"
