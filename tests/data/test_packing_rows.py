"""Rows: what a model gets of a pack, by the conventions of transformers and flash-attention."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import default_collate, default_convert

from durable_core.data.order import FullPermutation
from durable_core.data.packing import (
    PackedSequence,
    Packing,
    Piece,
    assemble,
    cu_seqlens,
    flatten,
    loss_tokens,
)
from durable_core.data.packing.rows import record_length
from durable_core.data.sequence import OrderedSequence
from durable_core.errors import FormatError

PACKING = Packing(8, pad_id=9, eos_id=2)
X = -100


def listed(row: dict[str, Any]) -> dict[str, Any]:
    return {key: np.asarray(value).tolist() for key, value in row.items()}


def test_a_row_of_two_documents_and_padding() -> None:
    row = assemble(PACKING, [Piece([5, 6, 7], 1, 4), Piece([], 0, 0), Piece(np.array([3], np.uint16), 0, 2)])
    assert listed(row) == {
        "input_ids": [6, 7, 2, 3, 2, 9, 9, 9],
        "position_ids": [0, 1, 2, 0, 1, 0, 1, 2],
        "document_ids": [0, 0, 0, 2, 2, -1, -1, -1],
        "labels": [X, 7, 2, X, 2, X, X, X],
        "loss_mask": [False, True, True, False, True, False, False, False],
    }
    assert {row[key].dtype for key in ("input_ids", "position_ids", "document_ids", "labels")} == {
        np.dtype(np.int64)
    }
    bounds, longest = cu_seqlens(row["document_ids"])
    assert (bounds.tolist(), longest, bounds.dtype) == ([0, 3, 5, 8], 3, np.int32)


def test_masks_labels_and_weights_of_a_record() -> None:
    packing = Packing(8, eos_id=2, labels=False, loss_weight=True)
    chat = {"input_ids": [5, 6, 7], "loss_mask": [0, 1, 0], "loss_weight": [1.0, 2.0, 3.0]}
    told = {"input_ids": torch.tensor([5, 6, 7]), "labels": torch.tensor([X, X, 4])}
    row = listed(assemble(packing, [Piece(chat, 0, 4), Piece(told, 0, 4, weight=0.5)]))
    assert "labels" not in row
    assert row["loss_mask"] == [False, True, False, False, False, False, True, True]
    assert row["loss_weight"] == [1.0, 2.0, 3.0, 3.0, 0.5, 0.5, 0.5, 0.5]
    labels = listed(assemble(Packing(8, eos_id=2), [Piece(chat, 0, 4), Piece(told, 0, 4)]))["labels"]
    assert labels == [X, 6, X, X, X, X, 4, 2]
    own = listed(assemble(Packing(4, ignore_index=-1), [Piece(chat, 0, 3)]))["labels"]
    assert own == [-1, 6, -1, -1]


@pytest.mark.parametrize(
    ("record", "wrong"),
    [
        ({"text": "a"}, "no 'input_ids' among"),
        (None, "'input_ids' is None, not one number for each token"),
        ({"input_ids": 5}, "'input_ids' is 5, not"),
        ({"input_ids": {"a": 1}}, "'input_ids' is {'a': 1}, not"),
        ({"input_ids": np.array(5)}, "'input_ids' is array\\(5\\), not"),
        ({"input_ids": [1, 2], "labels": 5}, "'labels' is 5, not"),
        ([1.5, 2.0], "'input_ids' is float64"),
        ([[1], [2]], "'input_ids' is int64"),
        ({"input_ids": [1, 2], "labels": [1]}, "'labels' is int64 \\[1\\]"),
        ({"input_ids": [1, 2], "loss_mask": ["a", "b"]}, "'loss_mask' is <U1"),
        ([1], "1 tokens where 1 were planned, of which \\[0, 2\\) are wanted"),
        ([1, 2, 3], "3 tokens where 2 were planned.*make the lengths again"),
    ],
)
def test_a_record_that_is_not_as_planned_is_named(record: Any, wrong: str) -> None:
    planned = 2 if record == [1, 2, 3] else None
    with pytest.raises(FormatError, match=f"^record 17: .*{wrong}"):
        assemble(Packing(8), [Piece(record, 0, 2, planned, 17)])


def test_more_than_a_row_is_refused() -> None:
    with pytest.raises(FormatError, match="ends at token 9 of a row of 8"):
        assemble(PACKING, [Piece([1] * 20, 0, 5), Piece([1] * 20, 0, 4)])


def reference_flattening(documents: list[list[int]]) -> dict[str, Any]:
    """What ``DataCollatorWithFlattening(return_flash_attn_kwargs=True)`` is documented to give."""
    lengths = [len(document) for document in documents]
    return {
        "input_ids": [[token for document in documents for token in document]],
        "labels": [[token if at else X for document in documents for at, token in enumerate(document)]],
        "position_ids": [[at for length in lengths for at in range(length)]],
        "cu_seq_lens_q": [0, *np.cumsum(lengths).tolist()],
        "max_length_q": max(lengths),
    }


def test_flattened_rows_are_those_of_padding_free_training() -> None:
    packing = Packing(6)
    rows = [
        assemble(packing, [Piece([1, 2, 3], 0, 3), Piece([4], 0, 1)]),
        assemble(packing, [Piece([5, 6], 0, 2), Piece([7, 8, 9, 10], 0, 4)]),
    ]
    flat = flatten(rows)
    expected = reference_flattening([[1, 2, 3], [4], [5, 6], [7, 8, 9, 10]])
    assert {key: np.asarray(flat[key]).tolist() for key in expected} == expected
    assert flat["document_ids"].tolist() == [[0, 0, 0, 1, 2, 2, 3, 3, 3, 3]]
    tensors = default_convert(flat)
    assert tensors["cu_seq_lens_k"].dtype == torch.int32 and type(tensors["max_length_k"]) is int
    batch = default_collate(rows)
    bounds, longest = cu_seqlens(batch["document_ids"])
    assert (bounds.tolist(), longest) == ([0, 3, 4, 6, 8, 12], 4)  # one of them is padding


def test_attention_within_documents_equals_attention_to_each_alone() -> None:
    """The mask that ``document_ids`` stand for, through torch's own attention."""
    row = assemble(Packing(8), [Piece([1, 2, 3], 0, 3), Piece([4, 5], 0, 2)])
    documents = torch.from_numpy(row["document_ids"])
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 8, 4).unbind()
    same = documents[:, None] == documents[None, :]
    causal = torch.ones(8, 8, dtype=torch.bool).tril()
    packed = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=(same & causal)[None])
    bounds, _ = cu_seqlens(row["document_ids"])
    for begin, end in pairwise(bounds):
        part = slice(int(begin), int(end))
        alone = torch.nn.functional.scaled_dot_product_attention(
            q[:, part], k[:, part], v[:, part], is_causal=True
        )
        torch.testing.assert_close(packed[:, part], alone)
    assert packed.isfinite().all()


RECORDS = st.lists(
    st.lists(st.tuples(st.integers(3, 900), st.booleans()), max_size=20).map(
        lambda pairs: {"input_ids": [t for t, _ in pairs], "loss_mask": [m for _, m in pairs]}
    ),
    min_size=1,
    max_size=20,
)
PACKINGS = [Packing(7, eos_id=2), Packing(7), Packing(21, policy="best_fit", window=3, eos_id=2)]


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(PACKINGS), RECORDS)
def test_the_rows_of_an_epoch_hold_the_documents(packing: Packing, records: list[Any]) -> None:
    lengths = [record_length(record) for record in records]
    order = FullPermutation(len(records), dataset_id="rows", seed=1)
    packed = PackedSequence(OrderedSequence(order), packing, lengths)
    batch, _ = packed.take(packed.start(0), 1000)
    assert batch.begins is not None and batch.ends is not None and batch.packs is not None
    found: dict[int, list[int]] = {i: [] for i in range(len(records))}
    counted = 0
    for first, last in pairwise(batch.packs):
        pieces = [
            Piece(records[i], int(batch.begins[p]), int(batch.ends[p]), lengths[i], i)
            for p in range(first, last)
            for i in [int(batch.ids[p])]
        ]
        row = assemble(packing, pieces)
        counted += int(row["loss_mask"].sum())
        for ordinal, piece in enumerate(pieces):
            assert piece.id is not None
            mine = row["document_ids"] == ordinal
            found[piece.id] += row["input_ids"][mine].tolist()
            assert row["position_ids"][mine].tolist() == list(range(piece.end - piece.begin))
        assert np.all(row["labels"][row["document_ids"] == -1] == packing.ignore_index)
    eos = [] if packing.eos_id is None else [packing.eos_id]
    assert found == {i: record["input_ids"] + eos for i, record in enumerate(records)}
    if not packing.split:
        assert counted == sum(loss_tokens(record, packing) for record in records)


def test_loss_tokens_of_a_record() -> None:
    assert loss_tokens([]) == 0
    assert loss_tokens([5]) == 0
    assert loss_tokens([5, 6, 7]) == 2
    assert loss_tokens({"input_ids": [5, 6, 7], "labels": [5, X, 7]}) == 1
    assert loss_tokens({"input_ids": [5, 6, 7], "loss_mask": [1, 1, 0]}) == 1
    assert loss_tokens([5, 6, 7], PACKING) == 3
    with pytest.raises(FormatError, match="a record"):
        loss_tokens({"text": "a"})
