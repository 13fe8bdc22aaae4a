"""durable audit --explain and --at: where one sample went, and what any committed checkpoint consumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cli_runs import BATCH, EPOCHS, SIZE, Durable

from durable_core import DurableSession
from durable_core.cli import output
from durable_core.data import DurableLoader, Mixture, Packing
from durable_core.data.order import make_order
from durable_core.errors import SkippedRecord


def order(epoch: int) -> list[int]:
    """Of the run of ``cli_runs.train``."""
    name = f"unverified:list:{SIZE}"
    ids: list[int] = make_order("full_prp_v1", SIZE, dataset_id=name, seed=1).ids(epoch, 0, SIZE).tolist()
    return ids


@pytest.mark.parametrize("sample", [0, 7, SIZE - 1])
def test_a_sample_is_found_in_each_epoch_at_its_place(root: Path, durable: Durable, sample: int) -> None:
    found = durable("audit", root, "--explain", sample, "--json")
    assert found.code == 0 and found.document["id"] == sample
    uses = [(u["step"], u["epoch"], u["batch"], u["place"]) for u in found.document["uses"]]
    places = [divmod(order(epoch).index(sample), BATCH) for epoch in range(EPOCHS)]
    per_epoch = SIZE // BATCH
    assert uses == [(e * per_epoch + k + 1, e, k, at) for e, (k, at) in enumerate(places)]
    assert all(
        use["applied"] and not use["left_out"] and use["tokens"] is None for use in found.document["uses"]
    )


def test_checkpoints_that_hold_its_effect_are_those_from_its_first_step_on(
    root: Path, durable: Durable
) -> None:
    last = order(0)[-1]  # batch 4: step 5, first committed at step 6
    found = durable("audit", root, "--explain", last, "--json").document
    listed = durable("ls", root, "--json").document["checkpoints"]
    assert found["checkpoints"] == [c["c"] for c in listed if c["step"] >= 5 and c["state"] == "committed"]
    assert found["uses"][0]["c"] == 2
    human = durable("audit", root, "--explain", last).out
    assert "applied" in human and len(human.splitlines()) == 5


def test_up_to_an_earlier_checkpoint(root: Path, durable: Durable) -> None:
    last = order(0)[-1]
    early = durable("audit", root, "--explain", last, "--at", 1, "--json")
    assert early.code == 0 and early.document["uses"] == [] and early.document["step"] == 3
    assert "was not consumed by step 3" in durable("audit", root, "--explain", last, "--at", 1).out
    whole = durable("audit", root, "--at", 1, "--json").document
    assert (whole["ok"], whole["head"], whole["steps"], whole["samples"]) == (True, 1, 3, 3 * BATCH)
    assert durable("audit", root, "--at", 99).code == output.NOT_FOUND


@pytest.mark.parametrize("sample", [SIZE, "-1", "x", "books:3"])
def test_what_is_no_sample_of_the_run_is_an_error_that_says_so(
    root: Path, durable: Durable, sample: object
) -> None:
    found = durable("audit", root, "--explain", sample, "--json")
    assert found.code == output.NOT_FOUND and str(sample).split(":")[0] in found.document["error"]["message"]


def test_a_step_without_an_update_applied_nothing(tmp_path: Path, durable: Durable) -> None:
    model = torch.nn.Linear(1, 1)
    loader = DurableLoader(list(range(SIZE)), batch_size=BATCH, seed=1)
    state = {"model": model, "loader": loader}
    with DurableSession.open(tmp_path / "run", state=state, every_n_steps=1) as session:
        taken = iter(loader)
        next(taken)
        loader.acknowledge(step=1, no_update=True)
        session.step()
    found = durable("audit", tmp_path / "run", "--explain", order(0)[0], "--json").document
    assert [use["applied"] for use in found["uses"]] == [False] and found["checkpoints"] == []
    assert "no update" in durable("audit", tmp_path / "run", "--explain", order(0)[0]).out


class Weighed:
    """Four records of as many tokens as are said; the first is left out."""

    def __init__(self, tokens: int) -> None:
        self.lengths = [tokens] * 4

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        if index == 0:
            raise SkippedRecord("a.jsonl", "does not decode")
        return list(range(self.lengths[index]))


def test_shares_are_told_in_what_is_weighed(tmp_path: Path, durable: Durable) -> None:
    mixture = Mixture({"a": Weighed(2), "b": Weighed(4)}, {"a": 1, "b": 1}, unit="token", epoch_size=6)
    loader = DurableLoader(mixture, 2, seed=1, packing=Packing(8), drop_last=True)
    with DurableSession.open(tmp_path / "run", state={"loader": loader}, every_n_steps=1) as session:
        for _ in loader:
            session.step()
    told = durable("audit", tmp_path / "run", "--json").document["sources"]
    assert [source["due_in"] for source in told] == ["tokens", "tokens"]
    assert told[0]["due"] == told[1]["due"] == sum(source["tokens"] for source in told) / 2
    assert " tokens" in durable("audit", tmp_path / "run").out


def test_what_was_left_out_is_in_the_conclusion(tmp_path: Path, durable: Durable) -> None:
    loader = DurableLoader(Weighed(2), batch_size=4, seed=1)
    with DurableSession.open(tmp_path / "run", state={"loader": loader}, every_n_steps=1) as session:
        for _ in loader:
            session.step()
    assert "3 consumed, 1 left out by declaration" in durable("audit", tmp_path / "run").out


def test_a_mixture_is_told_by_source(tmp_path: Path, durable: Durable) -> None:
    sources = {"web": list(range(8)), "books": list(range(4))}
    loader = DurableLoader(Mixture(sources, {"web": 2, "books": 1}), batch_size=3, seed=1)
    with DurableSession.open(tmp_path / "run", state={"loader": loader}, every_n_steps=1) as session:
        for _, _ in zip(range(4), loader, strict=False):
            session.step()
    found = durable("audit", tmp_path / "run", "--json")
    assert found.code == 0 and found.document["ids_checked"]
    assert found.document["by_source"] == {"web": 8, "books": 4}
    table = durable("audit", tmp_path / "run").out
    assert "web" in table and "due" in table and "exactly once" in table
    by_name = durable("audit", tmp_path / "run", "--explain", "books:2", "--json").document
    by_number = durable("audit", tmp_path / "run", "--explain", 8 + 2, "--json").document
    assert by_name == by_number and (by_name["source"], by_name["id"]) == ("books", 2)
    assert len(by_name["uses"]) == 1
    for wrong in ("books:4", "films:0", 12):
        missing = durable("audit", tmp_path / "run", "--explain", wrong, "--json")
        assert missing.code == output.NOT_FOUND and "web:0 to 7" in missing.document["error"]["hint"]
