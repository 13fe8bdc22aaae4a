"""The identity of a dataset is its bytes and what is said of them, not a path, nor an order of listing."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from durable_core.data import DatasetManifest
from durable_core.data.manifest import (
    Access,
    DataObject,
    Lengths,
    MixturePolicy,
    Provenance,
    SampleIds,
    Tokenizer,
)
from durable_core.data.manifest.describe import Description
from durable_core.errors import (
    DigestMismatchError,
    FormatError,
    ObjectNotFoundError,
    UnknownVersionError,
    UsageError,
)

A, B, C = ("sha256:" + letter * 64 for letter in "abc")

EVERYTHING = Description(
    dataset_version="3",
    schema="id: int64, text: string",
    schema_version="2",
    format="parquet",
    compression="zstd",
    split="train",
    filter="langid>0.9",
    dedup="minhash-128",
    transform="graph-7",
    packing="greedy-4096-v1",
    sample_ids=SampleIds("key", "id"),
    provenance=Provenance((A, B), "clean.py@1f3", "data team", (C,)),
    tokenizer=Tokenizer("llama-3", A, B),
    mixture=MixturePolicy("web 0.7, code 0.3", replacement=False, exhaustion="repeat"),
    access=Access("internal", "research"),
    lengths=Lengths(A, 12, "column tokens"),
    properties={"note": "x"},
)
OBJECTS = (
    DataObject("a", A, 10, 0, 2), DataObject("empty", B, 0, 2, 0), DataObject("b", C, 20, 2, 3),
)  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    base = tmp_path / "corpus"
    (base / "sub").mkdir(parents=True)
    (base / "b.txt").write_bytes(b"two\nlines\n")
    (base / "a.txt").write_bytes(b"one\n")
    (base / "sub" / "c.txt").write_bytes(b"")
    return base


def build(root: Path, **more: Any) -> DatasetManifest:
    return DatasetManifest.build(["b.txt", "sub/c.txt", "a.txt"], root, **more)


def test_objects_stand_in_logical_order(root: Path) -> None:
    manifest = build(root, count=lambda content: content.count(b"\n"))
    assert [(o.name, o.start, o.stop, o.nbytes) for o in manifest.objects] == [
        ("a.txt", 0, 1, 4),
        ("b.txt", 1, 3, 10),
        ("sub/c.txt", 3, 3, 0),
    ]
    assert (manifest.records, manifest.nbytes) == (3, 14)
    assert DatasetManifest.from_json(manifest.to_json()) == manifest


def test_the_id_is_that_of_the_content(root: Path, tmp_path: Path) -> None:
    manifest = build(root)
    moved = tmp_path / "elsewhere"
    root.rename(moved)
    again = DatasetManifest.build([moved / "a.txt", moved / "b.txt", moved / "sub" / "c.txt"], moved)
    assert again.dataset_id == manifest.dataset_id and manifest.dataset_id.startswith("sha256:")
    assert DatasetManifest.build([moved]).dataset_id == manifest.dataset_id
    ids = {manifest.dataset_id, build(moved, properties={"tokenizer": "bytes"}).dataset_id}
    (moved / "a.txt").write_bytes(b"onE\n")
    ids.add(build(moved).dataset_id)
    assert len(ids) == 3


def test_the_order_of_listing_says_nothing() -> None:
    manifest = DatasetManifest(OBJECTS, EVERYTHING)
    document = json.loads(manifest.to_json())
    for seed in range(6):
        random.Random(seed).shuffle(document["objects"])
        shuffled = dict(random.Random(seed).sample(list(document.items()), len(document)))
        again = DatasetManifest.from_json(json.dumps(shuffled))
        assert again == manifest and again.dataset_id == manifest.dataset_id
    swapped = dataclasses.replace(
        EVERYTHING, provenance=Provenance((B, A), "clean.py@1f3", "data team", (C,))
    )
    assert DatasetManifest(OBJECTS[::-1], swapped).dataset_id == manifest.dataset_id


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    )
    return [path] if inner is None else [leaf for name, each in inner for leaf in leaves(each, (*path, name))]


def other(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("sha256:"):
        return "sha256:" + "d" * 64
    return {bool: lambda: not value, int: lambda: value + 1, str: lambda: value + "x"}[type(value)]()


LEAVES = [
    leaf
    for leaf in leaves(json.loads(DatasetManifest(OBJECTS, EVERYTHING).to_json()))
    if leaf[0] != "version"
]


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: ".".join(map(str, leaf)))
def test_every_field_is_part_of_the_id_and_an_edit_is_noticed(leaf: tuple[Any, ...]) -> None:
    document = json.loads(DatasetManifest(OBJECTS, EVERYTHING).to_json())
    where = document
    for name in leaf[:-1]:
        where = where[name]
    where[leaf[-1]] = other(where[leaf[-1]])
    with pytest.raises((DigestMismatchError, FormatError)) as caught:
        DatasetManifest.from_json(json.dumps(document), key="corpus.json")
    if isinstance(caught.value, DigestMismatchError):
        assert "edited" in str(caught.value) and "corpus.json" in str(caught.value)
    else:  # it cannot even be: a range that does not fit, a rule there is none of
        assert leaf[-1] in (0, 1, "records", "rule", "exhaustion")


def test_every_field_is_there_and_null_where_nothing_was_given() -> None:
    document = json.loads(DatasetManifest(OBJECTS[:1]).to_json())
    assert document.keys() == {"dataset_id", "version", "objects"} | {
        each.name for each in dataclasses.fields(Description)
    }
    assert document["tokenizer"] == {"version": None, "digest": None, "vocabulary": None}
    assert document["sample_ids"] == {"rule": "object-ordinal", "column": None}
    assert document["objects"] == [{"name": "a", "digest": A, "bytes": 10, "records": 2, "range": [0, 2]}]
    for name in document:
        without = {key: value for key, value in document.items() if key != name}
        with pytest.raises(FormatError, match=name):
            DatasetManifest.from_json(json.dumps(without))


def test_version_1_is_still_read_under_its_own_id() -> None:
    old = {
        "version": 1,
        "properties": {"tokens": "bytes"},
        "objects": [{"name": "latest", "digest": A, "nbytes": 3, "start": 0, "records": 3}],
    }
    manifest = DatasetManifest.from_json(json.dumps(old))
    assert (
        manifest.dataset_id
        == "sha256:"
        + hashlib.sha256(json.dumps(old, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    )
    assert manifest.about.properties == {"tokens": "bytes"} and manifest.records == 3
    assert DatasetManifest.from_json(manifest.to_json()) == manifest


def test_an_alias_is_no_identity(root: Path, tmp_path: Path) -> None:
    (root / "link.txt").symlink_to("a.txt")
    (root / "now").symlink_to("sub")
    for source in ("link.txt", "now/c.txt", "."):
        with pytest.raises(UsageError, match="symbolic link"):
            DatasetManifest.build([source], root)
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(UsageError, match="outside"):
        DatasetManifest.build([tmp_path / "x.txt"], root)
    with pytest.raises(ObjectNotFoundError, match=r"gone\.txt"):
        DatasetManifest.build(["gone.txt"], root)


@pytest.mark.parametrize("name", ["latest", "latest/a.txt", "web-latest.jsonl", "x/LATEST.txt", "current"])
def test_a_name_that_will_mean_something_else_is_refused(name: str) -> None:
    with pytest.raises(FormatError, match="alias"):
        DatasetManifest((DataObject(name, A, 1, 0, 1),))


@pytest.mark.parametrize("name", ["lately.txt", "current-affairs.txt", "latest_news_2024.txt", "v3/a"])
def test_other_names_are_not(name: str) -> None:
    assert DatasetManifest((DataObject(name, A, 1, 0, 1),)).records == 1


def test_where_it_is_read_from_may_be_an_alias(root: Path) -> None:
    (root.parent / "latest").symlink_to("corpus")
    assert (
        DatasetManifest.build([root.parent / "latest"]).dataset_id == DatasetManifest.build([root]).dataset_id
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: Provenance(derived_from=("corpus/latest",)),
        lambda: Provenance(used=("s3://bucket/filter.bin",)),
        lambda: Tokenizer(digest="llama-3"),
        lambda: SampleIds("key"),
        lambda: SampleIds("object-ordinal", "id"),
        lambda: SampleIds("line"),
        lambda: MixturePolicy(exhaustion="wrap"),
        lambda: Description(properties={"a": 1}),  # type: ignore[dict-item]
    ],
)
def test_what_cannot_be_said_of_a_dataset(make: Any) -> None:
    with pytest.raises(UsageError):
        make()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"version": 3}, UnknownVersionError),
        ({"version": True}, UnknownVersionError),
        ({"version": "2"}, UnknownVersionError),
        ({"objects": None}, FormatError),
        ({"objects": [{"name": "a"}]}, FormatError),
        ({"objects": [{"name": "a", "digest": A, "bytes": 1, "records": 1, "range": [0, 2]}]}, FormatError),
        ({"objects": [{"name": "a", "digest": A, "bytes": 1, "records": 1, "range": []}]}, FormatError),
        ({"properties": {"a": 1}}, FormatError),
        ({"tokenizer": None}, FormatError),
        ({"split": 1}, FormatError),
        ({"mixture": {"policy": None, "replacement": 1, "exhaustion": None}}, FormatError),
        ({"provenance": {"derived_from": ["x"], "activity": None, "agent": None, "used": []}}, FormatError),
        ({"more": 1}, FormatError),
    ],
)
def test_what_is_no_manifest_is_refused(change: dict[str, object], error: type[Exception]) -> None:
    document = json.loads(DatasetManifest(OBJECTS, EVERYTHING).to_json())
    with pytest.raises(error):
        DatasetManifest.from_json(json.dumps({**document, **change}))


def test_objects_must_be_distinct_contiguous_and_below_the_root() -> None:
    one = DataObject("a", A, 1, 0, 1)
    for objects in (
        (one, DataObject("a", A, 1, 1, 1)),
        (one, DataObject("b", A, 1, 2, 1)),
        (one, DataObject("b", A, 1, 0, 1)),
        (DataObject("../a", A, 1, 0, 1),),
        (DataObject("/a", A, 1, 0, 1),),
        (DataObject("a//b", A, 1, 0, 1),),
        (DataObject("a", A, -1, 0, 1),),
        (DataObject("a", A, 1, 0, -1),),
        (DataObject("a", "sha256:0", 1, 0, 1),),
    ):
        with pytest.raises(FormatError):
            DatasetManifest(objects)
    with pytest.raises(FormatError, match="JSON"):
        DatasetManifest.from_json("{")
