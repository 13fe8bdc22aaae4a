"""The identity of a dataset is its bytes, not its path."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from durable_core.data import DatasetManifest
from durable_core.data.manifest import DataObject
from durable_core.errors import (
    CorruptError,
    DigestMismatchError,
    FormatError,
    UnknownVersionError,
    UsageError,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    base = tmp_path / "corpus"
    (base / "sub").mkdir(parents=True)
    (base / "b.txt").write_bytes(b"two\nlines\n")
    (base / "a.txt").write_bytes(b"one\n")
    (base / "sub" / "c.txt").write_bytes(b"")
    return base


def build(root: Path, **more: object) -> DatasetManifest:
    return DatasetManifest.build(["b.txt", "sub/c.txt", "a.txt"], root, **more)  # type: ignore[arg-type]


def test_objects_stand_in_logical_order(root: Path) -> None:
    manifest = build(root, count=lambda content: content.count(b"\n"))
    assert [(o.name, o.start, o.records, o.nbytes) for o in manifest.objects] == [
        ("a.txt", 0, 1, 4),
        ("b.txt", 1, 2, 10),
        ("sub/c.txt", 3, 0, 0),
    ]
    assert (manifest.records, manifest.nbytes) == (3, 14)
    assert DatasetManifest.from_json(manifest.to_json()) == manifest


def test_the_id_is_that_of_the_content(root: Path, tmp_path: Path) -> None:
    manifest = build(root)
    moved = tmp_path / "elsewhere"
    root.rename(moved)
    again = DatasetManifest.build([moved / "a.txt", moved / "b.txt", moved / "sub" / "c.txt"], moved)
    assert again.dataset_id == manifest.dataset_id and manifest.dataset_id.startswith("sha256:")
    ids = {manifest.dataset_id, build(moved, properties={"tokenizer": "bytes"}).dataset_id}
    (moved / "a.txt").write_bytes(b"onE\n")
    ids.add(build(moved).dataset_id)
    assert len(ids) == 3


def test_an_alias_is_no_identity(root: Path, tmp_path: Path) -> None:
    (root / "latest.txt").symlink_to("a.txt")
    (root / "latest").symlink_to("sub")
    for path in ("latest.txt", "latest/c.txt"):
        with pytest.raises(UsageError, match="symbolic link"):
            DatasetManifest.build([path], root)
    for path in (tmp_path / "x", "../corpus/a.txt"):
        with pytest.raises((UsageError, FormatError)):
            DatasetManifest.build([path], root)


def test_verify_names_what_changed(root: Path) -> None:
    manifest = build(root)
    assert manifest.verify(root) == 3
    (root / "b.txt").write_bytes(b"two\nlinez\n")
    with pytest.raises(DigestMismatchError, match=r"b\.txt"):
        manifest.verify(root)
    (root / "b.txt").write_bytes(b"two\n")
    with pytest.raises(DigestMismatchError, match=r"b\.txt.*4 bytes"):
        manifest.verify(root)
    assert manifest.verify(root, sample=2) == 2  # the first and the last
    (root / "b.txt").unlink()
    with pytest.raises(CorruptError, match=r"b\.txt.*missing"):
        manifest.verify(root, sample=99)
    with pytest.raises(UsageError, match="sample"):
        manifest.verify(root, sample=0)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"version": 2}, UnknownVersionError),
        ({"objects": None}, FormatError),
        ({"objects": [{"name": "a"}]}, FormatError),
        ({"properties": {"a": 1}}, FormatError),
        ({"more": 1}, FormatError),
    ],
)
def test_what_is_no_manifest_is_refused(
    root: Path, change: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        DatasetManifest.from_json(json.dumps({**json.loads(build(root).to_json()), **change}))


def test_objects_must_be_distinct_contiguous_and_below_the_root() -> None:
    one = DataObject("a", "sha256:0", 1, 0, 1)
    for objects in (
        (one, DataObject("a", "sha256:0", 1, 1, 1)),
        (one, DataObject("b", "sha256:0", 1, 2, 1)),
        (DataObject("../a", "sha256:0", 1, 0, 1),),
        (DataObject("/a", "sha256:0", 1, 0, 1),),
        (DataObject("a//b", "sha256:0", 1, 0, 1),),
        (DataObject("a", "sha256:0", -1, 0, 1),),
    ):
        with pytest.raises(FormatError):
            DatasetManifest(objects)
    with pytest.raises(FormatError, match="not JSON"):
        DatasetManifest.from_json("{")
