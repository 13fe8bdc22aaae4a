"""The loader over mixtures, packs and orders by the object: killed after any batch, read by anyone."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
import pytest
from data_samples import Drawing, interrupted, listed, train
from sequence_samples import Tokens
from torch.utils.data import DataLoader

from durable_core.data import DurableLoader
from durable_core.data.mixture import Mixture
from durable_core.data.packing import Packing
from durable_core.data.shuffle import BlockShuffle, BufferedShuffle
from durable_core.errors import CorruptError, FormatError, SpecMismatchError, UnsupportedError, UsageError


def plain(batches: list[Any]) -> list[Any]:
    """Comparable: arrays as lists."""
    found: list[Any] = json.loads(json.dumps(batches, default=lambda array: array.tolist()))
    return found


def mixture(**more: Any) -> Mixture:
    sources = {"a": Drawing(13), "b": Drawing(7), "c": Drawing(29)}
    return Mixture(sources, {"a": 3, "b": 1, "c": 2}, **{"epoch_size": 30, **more})


def documents(**more: Any) -> Mixture:
    sources = {"a": Tokens(30), "b": Tokens(11), "c": Tokens(25)}
    return Mixture(sources, {"a": 3, "b": 1, "c": 2}, **more)


GREEDY, BEST = Packing(8), Packing(16, policy="best_fit", window=4)

KINDS: dict[str, dict[str, Any]] = {
    "blocks": {"dataset": Tokens, "order": BlockShuffle(2)},
    "buffer": {"dataset": Tokens, "order": BufferedShuffle(6)},
    "greedy": {"dataset": Tokens, "packing": GREEDY},
    "best fit": {"dataset": Tokens, "packing": BEST},
    "buffer, best fit": {"dataset": Tokens, "packing": BEST, "order": BufferedShuffle(6)},
    "quota": {"dataset": mixture},
    "categorical": {"dataset": lambda: mixture(schedule="categorical")},
    "stop": {"dataset": lambda: mixture(exhaustion="stop", epoch_size=None)},
    "tokens": {"dataset": lambda: documents(unit="token", epoch_size=40)},
    "renormalize": {"dataset": lambda: documents(exhaustion="renormalize")},
    "documents": {"dataset": lambda: documents(unit="document", epoch_size=40), "packing": GREEDY},
    "rows": {"dataset": lambda: documents(unit="packed", epoch_size=24), "packing": BEST},
}


def make(kind: str, batch_size: int = 4, **more: Any) -> DurableLoader:
    settings = {**KINDS[kind], "seed": 5, "collate_fn": listed, **more}
    return DurableLoader(settings.pop("dataset")(), batch_size, **settings)


def epochs(count: int, *args: Any, **more: Any) -> list[Any]:
    loader = make(*args, **more)
    return plain([batch for _ in range(count) for batch in train(loader)])


@pytest.mark.parametrize("kind", KINDS)
def test_resume_after_every_batch_of_two_epochs(kind: str) -> None:
    whole = epochs(2, kind)
    assert len(whole) >= 8
    for stop in range(len(whole) + 1):
        taken = interrupted(lambda: make(kind), stop, len(whole), ahead=stop % 3)
        assert plain(taken) == whole, stop


@pytest.mark.parametrize("kind", ["buffer", "greedy", "quota", "rows"])
def test_workers_change_nothing(kind: str) -> None:
    whole = epochs(2, kind)
    assert epochs(2, kind, num_workers=2, persistent_workers=True) == whole
    for stop, workers in ((3, (0, 2)), (len(whole) // 2, (2, 0)), (len(whole) // 2 + 2, (2, 1))):
        lives = [make(kind, num_workers=number) for number in reversed(workers)]
        taken = interrupted(lives.pop, stop, len(whole), ahead=2)
        assert plain(taken) == whole, stop


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("remainder", ["drop", "pad"])
def test_replicas_share_the_same_global_batches(kind: str, remainder: str) -> None:
    """The union of what they trained is the whole, and each takes as much as the others."""
    one = make(kind, 12, remainder=remainder, collate_fn=unmasked if remainder == "pad" else listed)
    whole = [plain(train(one)), rows_of(one)]
    for replicas in (2, 3, 4):
        shares, rows = [], []
        for r in range(replicas):
            part = make(
                kind, 12 // replicas, replica=r, replicas=replicas, remainder=remainder,
                collate_fn=unmasked if remainder == "pad" else listed,
            )  # fmt: skip
            shares.append(plain(train(part)))
            rows.append(rows_of(part))
        assert [list(chain(*parts)) for parts in zip(*shares, strict=True)] == whole[0]
        assert [tuple(map(list, map(chain.from_iterable, zip(*parts, strict=True))))
                for parts in zip(*rows, strict=True)] == whole[1]  # fmt: skip


def unmasked(samples: list[Any], pad_mask: Any) -> list[Any]:
    return [sample for sample, padding in zip(samples, pad_mask.tolist(), strict=True) if not padding]


def rows_of(loader: DurableLoader) -> list[Any]:
    found = []
    for row in loader.drain_rows():
        amounts = [] if row.amounts is None else row.amounts.tolist()
        found.append((row.ids.tolist(), amounts))
    return found


# --- what is in a pack ---------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", [GREEDY, BEST])
def test_packs_hold_every_token_once_and_the_ledger_says_how_many(packing: Packing) -> None:
    data = Tokens()
    loader = DurableLoader(data, 3, packing=packing, seed=5, collate_fn=listed)
    batches = train(loader)
    tokens = [
        token for batch in batches for row in batch for token in row["input_ids"][row["document_ids"] >= 0]
    ]
    assert sorted(tokens) == sorted(chain(*(data[i]["input_ids"].tolist() for i in range(len(data)))))
    used: Counter[int] = Counter()
    for row in loader.drain_rows():
        assert row.amounts is not None
        for index, amount in zip(row.ids.tolist(), row.amounts.tolist(), strict=True):
            used[index] += amount
    assert [used[i] for i in range(len(data))] == data.lengths.tolist()
    assert loader.cursor.consumed_samples == sum(map(len, batches))


def test_a_record_is_read_once_for_all_its_pieces_in_a_batch() -> None:
    data = Tokens()
    loader = DurableLoader(data, 4, packing=Packing(2), seed=5)
    batch = next(iter(loader))
    assert batch["input_ids"].shape == (4, 2) and len(data.reads) == len(set(data.reads)) < 4
    assert set(batch) == {"input_ids", "position_ids", "document_ids", "labels", "loss_mask"}


def test_padded_packs_have_no_label() -> None:
    loader = DurableLoader(Tokens(), 9, packing=BEST, seed=5, remainder="pad")
    last = train(loader)[-1]
    padding = last["pad_mask"]
    assert 0 < int(padding.sum()) < 9
    assert not last["loss_mask"][padding].any() and (last["labels"][padding] == -100).all()
    assert last["loss_mask"][~padding].any(dim=1).all()


def test_the_loss_weight_of_a_source_goes_into_its_tokens() -> None:
    data = documents(unit="document", loss_weights={"a": 0.5, "b": 2.0})
    loader = DurableLoader(data, 4, packing=Packing(8, loss_weight=True), seed=5)
    batches = train(loader, 6)
    weights = {float(w) for batch in batches for w in batch["loss_weight"].unique()}
    assert {0.5, 1.0, 2.0} <= weights <= {0.0, 0.5, 1.0, 2.0}


def test_a_tokenizer_that_changed_is_an_error_that_names_the_record() -> None:
    data = Tokens()
    data.sizes = data.sizes + 1
    with pytest.raises(FormatError, match=r"record 0.*the tokenizer or the data changed"):
        next(iter(DurableLoader(data, 4, packing=GREEDY, seed=5, shuffle=False)))


def test_what_a_choice_needs_is_said() -> None:
    bare = Drawing(20)
    for options, error, message in (
        ({"packing": GREEDY}, UnsupportedError, "durable data build --tokens"),
        ({"order": BlockShuffle(2)}, UnsupportedError, "`blocks`"),
        ({"order": BufferedShuffle(2)}, UnsupportedError, "`blocks`"),
        ({"sampler": range(20), "packing": GREEDY}, UsageError, "neither order nor packing"),
        ({"packing": GREEDY, "dataset": mixture()}, UsageError, "unit"),
        ({"order": BlockShuffle(2), "dataset": mixture()}, UnsupportedError, "source"),
    ):
        with pytest.raises(error, match=message):
            DurableLoader(options.pop("dataset", bare), 4, seed=5, **options)
    with pytest.raises(UsageError, match="window must be 1"):
        BlockShuffle(0)


def test_another_policy_lengths_or_window_is_another_run() -> None:
    state = make("greedy").state_dict()
    with pytest.raises(SpecMismatchError, match=r"packing\.length was 8 and is now 9"):
        make("greedy", packing=Packing(9)).load_state_dict(state)
    longer = Tokens()
    longer.lengths = longer.lengths + 1
    with pytest.raises(SpecMismatchError, match="lengths was"):
        make("greedy", dataset=lambda: longer).load_state_dict(state)
    with pytest.raises(SpecMismatchError, match="order was"):
        make("blocks", order=BlockShuffle(3)).load_state_dict(make("blocks").state_dict())
    with pytest.raises(SpecMismatchError):
        make("quota", dataset=lambda: mixture(window=7, loss_weights=None, epoch_size=31)).load_state_dict(
            make("quota").state_dict()
        )


def test_the_recorded_seed_wins() -> None:
    whole = epochs(1, "quota")
    first = make("quota")
    train(first, 2)
    other = make("quota", seed=99)
    with pytest.warns(UserWarning, match="seed 5 is used, not 99"):
        other.load_state_dict(first.state_dict())
    assert plain(train(other)) == whole[2:]


@pytest.mark.parametrize("kind", ["buffer", "greedy", "best fit", "quota", "tokens", "rows"])
def test_a_step_may_be_cut_into_other_batches(kind: str) -> None:
    whole = [sample for batch in epochs(1, kind) for sample in batch]
    first = make(kind, 2, accumulate=2, promise="exact-order")
    taken = train(first, 4)
    again = make(kind, 4, promise="exact-order")
    with pytest.warns(UserWarning, match="batches of 2 samples are now of 4"):
        again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    taken += train(again)
    assert plain([sample for batch in taken for sample in batch]) == whole


def test_weights_of_a_mixture_change_where_declared() -> None:
    loader = DurableLoader(mixture(epoch_size=None), 6, seed=5, collate_fn=listed)
    train(loader, 2)
    loader.update_weights({"a": 1, "b": 0, "c": 0}, lead=3)
    again = DurableLoader(mixture(epoch_size=None), 6, seed=5, collate_fn=listed)
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    later = train(loader, 8)
    assert train(again, 8) == later
    rows = loader.drain_rows()[2:]
    from_b = [int(((row.ids >= 13) & (row.ids < 20)).sum()) for row in rows]
    assert 0 < sum(from_b[:3]) < 5 and sum(from_b[4:]) == 0  # what was owed comes first


@pytest.mark.parametrize("packing", [None, GREEDY])
def test_a_mixture_without_end_may_be_shared_later_by_any_number(packing: Packing | None) -> None:
    """Nobody has to say what becomes of a last batch that never comes."""
    unit = "sample" if packing is None else "document"
    options: dict[str, Any] = {"seed": 5, "packing": packing, "collate_fn": listed}
    one = DurableLoader(documents(unit=unit), 4, **options)
    train(one, 3)
    two = DurableLoader(documents(unit=unit), 2, replica=1, replicas=2, **options)
    two.load_state_dict(one.state_dict())
    assert plain(train(two, 2)) == [batch[2:] for batch in plain(train(one, 2))]
    with pytest.raises(UnsupportedError, match="drop_last=True"):
        DurableLoader(documents(unit=unit, exhaustion="stop"), 2, replicas=2, **options)


def test_a_plain_loader_over_a_mixture_without_end_needs_no_word_about_it() -> None:
    given = DataLoader(mixture(epoch_size=None), 2, shuffle=True, collate_fn=listed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaders = [
            DurableLoader.from_dataloader(given, seed=5, replica=r, replicas=n) for r, n in ((0, 1), (1, 2))
        ]
    assert [loader.cursor.remainder for loader in loaders] == ["short", "short"]


# --- records left out ------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("options", [{}, {"packing": GREEDY}, {"order": BufferedShuffle(6)}])
def test_records_left_out_by_declaration_are_in_the_ledger(options: dict[str, Any], workers: int) -> None:
    def new(bad: tuple[int, ...]) -> DurableLoader:
        data = Tokens(bad=bad)
        return DurableLoader(data, 4, seed=5, collate_fn=listed, num_workers=workers, **options)

    good, loader = new(()), new((3, 17))
    whole, left = plain(train(good)), plain(train(loader))
    rows = loader.drain_rows()
    assert {i for row in rows if row.skipped for i in row.ids.tolist()} == {3, 17}
    assert not {3, 17} & {i for row in rows if not row.skipped for i in row.ids.tolist()}
    first = next(row for row in rows if row.skipped)
    beside = next(row for row in rows if not row.skipped and row.batch == first.batch)
    assert (first.step, first.epoch, beside.skipped) == (beside.step, beside.epoch, False)
    assert loader.cursor == good.cursor  # the position is the plan's
    assert [a == b for a, b in zip(whole, left, strict=True)].count(False) in (1, 2, 3, 4)


def test_a_batch_of_which_nothing_is_left_is_an_error() -> None:
    loader = DurableLoader(Tokens(bad=tuple(range(40))), 4, seed=5, num_workers=1)
    with pytest.raises(CorruptError, match="epoch 0 batch 0: all of its records were left out"):
        next(iter(loader))


def test_what_getitems_leaves_out_is_left_out() -> None:
    class Batched(Tokens):
        def __getitems__(self, ids: list[int]) -> list[Any]:
            return [self.refused(i) if i in self.bad else np.array(i) for i in ids]

    loader = DurableLoader(Batched(bad=(1,)), 4, shuffle=False, seed=5, collate_fn=listed)
    assert len(next(iter(loader))) == 3
    loader.acknowledge(step=1)
    assert [row.ids.tolist() for row in loader.drain_rows()] == [[0, 2, 3], [1]]


# --- prefetching datasets ---------------------------------------------------------------------------------


def test_a_dataset_is_told_what_comes() -> None:
    class Told(Tokens):
        def __init__(self) -> None:
            super().__init__()
            self.told: list[Any] = []

        def prefetch(self, ids: Any) -> None:
            self.told.append(sorted(set(ids)))

    data = Told()
    next(iter(DurableLoader(data, 4, packing=GREEDY, seed=5)))
    assert data.told == [sorted(data.reads)]
