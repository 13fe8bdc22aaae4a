"""Bad input from the dataset to the ledger: an error that names object and record, or the declared policy.

Every kind of damage through a ``DurableLoader``, with and without workers; what is left out by declaration
is in the ledger, the same whoever reads, and the audit stays sound.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from data_samples import listed, train

from durable_core import DurableSession
from durable_core.data import DurableLoader, Mixture
from durable_core.data.manifest import build, load, save
from durable_core.data.records import RecordDataset
from durable_core.engine.audit import audit
from durable_core.engine.audit.explain import explain
from durable_core.engine.inspect import open_run
from durable_core.errors import (
    CorruptError,
    DigestMismatchError,
    DurableError,
    ObjectNotFoundError,
    RecordError,
    SpecMismatchError,
    UsageError,
)
from durable_core.format.ledger import RowFlag

PER_OBJECT, OBJECTS = 4, 3
SIZE = PER_OBJECT * OBJECTS
BAD = "part-1.jsonl"
OF_BAD = [4, 5, 6, 7]
WORKERS = pytest.mark.parametrize("workers", [0, 2])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three objects of four records each, and their manifest."""
    directory = tmp_path / "data"
    directory.mkdir()
    for number in range(OBJECTS):
        lines = [json.dumps({"i": number * PER_OBJECT + j}) + "\n" for j in range(PER_OBJECT)]
        (directory / f"part-{number}.jsonl").write_text("".join(lines))
    save(build([directory]), directory / "dataset.json")
    return directory


def dataset(root: Path, **more: Any) -> RecordDataset:
    return RecordDataset.open(root / "dataset.json", transform=lambda record: record["i"], **more)


def loader(data: Any, workers: int, batch_size: int = 3, **more: Any) -> DurableLoader:
    return DurableLoader(data, batch_size, seed=3, num_workers=workers, **{"collate_fn": listed, **more})


# --- objects that are not as the manifest says, and a record that does not decode ------------------


def missing(root: Path) -> None:
    (root / BAD).unlink()


def truncated(root: Path) -> None:
    (root / BAD).write_bytes((root / BAD).read_bytes()[:-3])


def swapped(root: Path) -> None:
    shutil.move(root / BAD, root / "aside")
    shutil.copy(root / "part-2.jsonl", root / BAD)


def renamed(root: Path) -> None:
    (root / BAD).rename(root / "part-9.jsonl")


def rewritten(root: Path) -> None:
    (root / BAD).write_bytes((root / BAD).read_bytes().replace(b'"i": 6', b'"i": 9'))


def undecodable(root: Path) -> None:
    """From the start: the manifest has the digest of it."""
    (root / BAD).write_bytes((root / BAD).read_bytes().replace(b'{"i": 6', b'["i": 6'))
    save(build([root]), root / "dataset.json")


DAMAGE: dict[str, tuple[Callable[[Path], None], type[DurableError], list[int]]] = {
    "missing": (missing, ObjectNotFoundError, OF_BAD),
    "truncated": (truncated, DigestMismatchError, OF_BAD),
    "swapped": (swapped, DigestMismatchError, OF_BAD),
    "renamed": (renamed, ObjectNotFoundError, OF_BAD),
    "digest mismatch": (rewritten, DigestMismatchError, OF_BAD),
    "does not decode": (undecodable, RecordError, [6]),
}


@WORKERS
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_an_error_that_names_the_object(damage: str, workers: int, root: Path) -> None:
    harm, kind, _ = DAMAGE[damage]
    harm(root)
    with pytest.raises(kind, match=BAD) as caught:
        train(loader(dataset(root), workers))
    assert type(caught.value) is kind
    error: Any = caught.value
    assert Path(error.key).name == BAD
    if kind is RecordError:
        assert error.ordinal == 2 and "JSONDecodeError" in error.reason


@WORKERS
def test_refetching_what_stays_bad_is_the_same_error(workers: int, root: Path) -> None:
    rewritten(root)
    with pytest.raises(DigestMismatchError, match=BAD):
        train(loader(dataset(root, on_bad="refetch", refetches=1), workers))


# --- left out by declaration ----------------------------------------------------------------------


Left = dict[tuple[int, int], set[int]]
"""The ids left out, by epoch and batch."""


def left_out(rows: Any) -> Left:
    found: Left = {}
    for row in rows:
        if row.skipped:
            found.setdefault((row.epoch, row.batch), set()).update(row.ids.tolist())
    return found


def unmasked(samples: list[int], pad_mask: Any) -> list[int]:
    return [i for i, padding in zip(samples, pad_mask, strict=True) if not padding]


def trained(root: Path, workers: int, on_bad: Any, replicas: int = 1) -> tuple[Left, list[int]]:
    """What an epoch in batches of 6 leaves out, and what it trains; of a share that lost all, nothing."""
    gone: Left = {}
    kept: list[int] = []
    for replica in range(replicas):
        place = {"replica": replica, "replicas": replicas}
        data = dataset(root, on_bad=on_bad)
        one = loader(data, workers, 6 // replicas, **place, remainder="pad", collate_fn=unmasked)
        kept += [i for batch in train(one) for i in batch]
        for batch, ids in left_out(one.drain_rows()).items():
            gone.setdefault(batch, set()).update(ids)
    return gone, sorted(kept)


@pytest.mark.parametrize("on_bad", ["skip", "quarantine"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_the_same_is_left_out_whoever_reads(damage: str, on_bad: str, root: Path) -> None:
    harm, _, ids = DAMAGE[damage]
    harm(root)
    gone, kept = trained(root, 0, on_bad)
    assert set().union(*gone.values()) == set(ids)
    assert kept == [i for i in range(SIZE) if i not in ids]
    assert trained(root, 2, on_bad) == (gone, kept)
    assert trained(root, 0, on_bad, replicas=2) == (gone, kept)


def run(root: Path, where: Path, workers: int, steps: int) -> None:
    """Some steps of two epochs; again, it goes on."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    data = loader(dataset(root, on_bad="skip"), workers, 6)
    state = {"model": model, "optimizer": optimizer, "loader": data}
    with DurableSession.open(where, state=state, every_n_steps=1) as session:
        while session.steps < steps:
            for batch in data:
                model(torch.tensor(batch).float().reshape(-1, 1)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                session.step()
                if session.steps == steps:
                    break
        session.flush()


@pytest.mark.parametrize("damage", ["missing", "does not decode"])
def test_the_audit_lists_what_was_left_out_and_is_sound(damage: str, root: Path, tmp_path: Path) -> None:
    harm, _, ids = DAMAGE[damage]
    harm(root)
    run(root, tmp_path / "run", 0, 1)
    run(root, tmp_path / "run", 2, 4)
    reader = open_run(tmp_path / "run")
    found = audit(reader)
    assert found.sound and found.consumption.ids_checked, found.consumption.findings
    assert (found.to_json()["left_out"], found.to_json()["skipped"]) == (2 * len(ids), 0)
    uses = explain(reader, "6").uses
    assert [(use.epoch, use.left_out) for use in uses] == [(0, True), (1, True)]


@WORKERS
def test_a_share_of_which_nothing_is_left_is_an_error(workers: int, root: Path) -> None:
    missing(root)
    one = loader(dataset(root, on_bad="skip"), workers, PER_OBJECT, shuffle=False)
    batches = iter(one)
    assert next(batches) == [0, 1, 2, 3]
    with pytest.raises(CorruptError, match="all of its records were left out: 4, 5, 6, 7") as caught:
        next(batches)
    assert caught.value.key == "epoch 0 batch 1"


# --- what is refused before anything is read ------------------------------------------------------


class Empty(list[int]):
    dataset_id = "sha256:empty"


SOUND = {"web": [1, 2, 3], "books": [4, 5]}


@pytest.mark.parametrize(
    ("sources", "weights", "message"),
    [
        ({"web": [1], "books": Empty()}, {"web": 1, "books": 1}, "source 'books' is empty"),
        (SOUND, {"web": 0, "books": 0}, "all weights are zero: web, books"),
        (SOUND, {"web": -1, "books": 1}, "'web'.*-1"),
        (SOUND, {"web": math.nan, "books": 1}, "'web'.*nan"),
        (SOUND, {"web": math.inf, "books": 1}, "'web'.*inf"),
    ],
)
def test_sources_and_weights_that_make_no_sense(sources: Any, weights: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DurableLoader(Mixture(sources, weights), 2, seed=1)


def test_a_dataset_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="1 to"):
        DurableLoader(Empty(), 2, seed=1)


def test_user_keys_that_are_doubled_are_named(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_text("".join(json.dumps({"key": key}) + "\n" for key in ("a", "b", "a")))
    with pytest.raises(DurableError, match="a"):
        build([path], key="key")


def test_another_tokenizer_is_refused(root: Path) -> None:
    with pytest.raises(SpecMismatchError, match="the tokenizer is sha256:other") as caught:
        dataset(root).check_tokenizer("sha256:other")
    assert caught.value.fields == ("tokenizer",)


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text.replace('"records":4', '"records":5', 1).replace('"records": 4', '"records": 5', 1),
        lambda text: text.replace("part-1", "part-7"),
        lambda text: text[: len(text) // 2],
    ],
    ids=["a count", "a name", "cut"],
)
def test_a_manifest_edited_by_hand_is_refused(edit: Callable[[str], str], root: Path) -> None:
    path = root / "dataset.json"
    text = edit(path.read_text())
    assert text != path.read_text()
    path.write_text(text)
    with pytest.raises(CorruptError, match=r"dataset\.json"):
        load(path)


# --- a run goes on over other data ----------------------------------------------------------------


def test_other_content_under_the_same_names_is_refused_on_a_restart(root: Path) -> None:
    first = loader(dataset(root), 0)
    train(first, 2)
    rewritten(root)
    save(build([root]), root / "dataset.json")
    with pytest.raises(SpecMismatchError, match="dataset_id"):
        loader(dataset(root), 0).load_state_dict(first.state_dict())
    assert not any(row.flags & RowFlag.SKIPPED for row in first.drain_rows())
