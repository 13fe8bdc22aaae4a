"""Verification: every kind of harm by its own name, in all objects or in a sample; and lineage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from durable_core.data import DatasetManifest
from durable_core.data.files import LocalFile
from durable_core.data.manifest import Built, Fault, Provenance, build, find, lineage, save, verify
from durable_core.data.manifest.verify import KINDS, spread
from durable_core.errors import (
    CorruptError,
    DataUnavailableError,
    DigestMismatchError,
    ObjectNotFoundError,
    UsageError,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    base = tmp_path / "corpus"
    base.mkdir()
    for at, name in enumerate("abcdef"):
        (base / f"{name}.txt").write_text(name * (10 + at))
    return base


@pytest.fixture
def manifest(root: Path) -> DatasetManifest:
    return build([root]).manifest


def swap(root: Path, one: str, two: str) -> None:
    (root / one).rename(root / "tmp")
    (root / two).rename(root / one)
    (root / "tmp").rename(root / two)


def unreadable(root: Path) -> None:
    """A directory in its place: nothing that permissions would hide from root."""
    (root / "b.txt").unlink()
    (root / "b.txt").mkdir()


CORRUPT, OTHER = CorruptError, DigestMismatchError
HARMS: dict[str, tuple[Callable[[Path], object], type[Exception], str]] = {
    "missing": (lambda root: (root / "b.txt").unlink(), CORRUPT, "no such object"),
    "renamed": (lambda root: (root / "b.txt").rename(root / "x"), CORRUPT, "found under the name x"),
    "swapped": (lambda root: swap(root, "b.txt", "d.txt"), OTHER, r"b\.txt holds the bytes of d\.txt"),
    "truncated": (lambda root: (root / "b.txt").write_text("b" * 7), OTHER, "7 bytes .* says 11"),
    "longer": (lambda root: (root / "b.txt").write_text("b" * 12), OTHER, "12 bytes .* says 11"),
    "changed": (lambda root: (root / "b.txt").write_text("B" * 11), OTHER, "content is sha256:"),
    "unreadable": (unreadable, DataUnavailableError, "cannot be read: Is a directory"),
}


def test_every_kind_is_planted_below() -> None:
    assert set(HARMS) == set(KINDS)


@pytest.mark.parametrize("kind", HARMS)
def test_each_harm_has_its_name(root: Path, manifest: DatasetManifest, kind: str) -> None:
    harm, error, words = HARMS[kind]
    assert verify(manifest, root).faults == ()
    harm(root)
    found = verify(manifest, root, jobs=2)
    named = {fault.name: fault for fault in found.faults}
    assert set(named) == ({"b.txt", "d.txt"} if kind == "swapped" else {"b.txt"})
    assert named["b.txt"].kind == kind and (named["b.txt"].start, named["b.txt"].stop) == (1, 2)
    with pytest.raises(error, match=rf"b\.txt: .*{words}.*records 1 to 2"):
        manifest.verify(root)


def test_swapped_in_place_of_one_that_is_missing(root: Path, manifest: DatasetManifest) -> None:
    (root / "c.txt").rename(root / "a.txt")
    faults = {fault.name: (fault.kind, fault.other) for fault in verify(manifest, root).faults}
    assert faults == {"a.txt": ("swapped", "c.txt"), "c.txt": ("missing", None)}


def test_a_directory_that_is_gone(root: Path, manifest: DatasetManifest) -> None:
    found = verify(manifest, root / "elsewhere")
    assert [fault.kind for fault in found.faults] == ["missing"] * 6
    assert (found.looked_at, found.read, found.nbytes) == (6, 0, 0)


def test_others_files_are_none_of_its_business(root: Path, manifest: DatasetManifest) -> None:
    (root / "z.txt").write_text("z")
    assert verify(manifest, root).faults == ()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    names: list[str] = []
    chunks = LocalFile.chunks
    monkeypatch.setattr(LocalFile, "chunks", lambda self, *a: (names.append(self.name), chunks(self, *a))[1])
    yield names


def test_of_a_sample_the_content_and_of_all_the_size(
    root: Path, manifest: DatasetManifest, opened: list[str]
) -> None:
    assert verify(manifest, root, sample=2).read == 2 and opened == ["a.txt", "f.txt"]
    opened.clear()
    assert verify(manifest, root, sample=0.5).read == 3
    assert len(opened) == 3 and {"a.txt", "f.txt"} < set(opened)
    (root / "b.txt").write_text("B" * 11)
    assert verify(manifest, root, sample=2).faults == ()
    (root / "c.txt").write_text("c")
    (root / "d.txt").unlink()
    found: tuple[Fault, ...] = verify(manifest, root, sample=1).faults
    assert [(fault.name, fault.kind) for fault in found] == [("c.txt", "truncated"), ("d.txt", "missing")]


def test_samples_are_spread() -> None:
    assert spread(10, 3) == [0, 4, 9] and spread(10, 1) == [0] and spread(3, 9) == [0, 1, 2]
    assert spread(10, 0.25) == [0, 4, 9] and spread(10, 1.0) == list(range(10)) and spread(0, 2) == []
    for wrong in (0, -1, 0.0, 1.5, float("nan")):
        with pytest.raises(UsageError, match="sample"):
            spread(10, wrong)


# --- lineage -----------------------------------------------------------------------------------------


def derived(tmp_path: Path, name: str, *parents: Built, **more: str) -> Built:
    (tmp_path / name).mkdir()
    (tmp_path / name / "x.txt").write_text(name)
    ids = tuple(each.manifest.dataset_id for each in parents)
    built = build([tmp_path / name], provenance=Provenance(ids, **more))  # type: ignore[arg-type]
    save(built, tmp_path / f"{name}.json")
    return built


def test_lineage_follows_what_is_at_hand(tmp_path: Path) -> None:
    web, code = derived(tmp_path, "web"), derived(tmp_path, "code")
    clean = derived(tmp_path, "clean", web, code, activity="dedup.py@3")
    train = derived(tmp_path, "train", clean, code)
    (tmp_path / "other.json").write_text("[]")
    (tmp_path / "web.json").unlink()
    links = lineage(train.manifest.dataset_id, find([tmp_path]))
    ids = {name: built.manifest.dataset_id for name, built in {
        "web": web, "code": code, "clean": clean, "train": train,
    }.items()}  # fmt: skip
    assert [(link.dataset_id, link.depth) for link in links] == [
        (ids["train"], 0),
        *sorted([(ids["clean"], 1), (ids["code"], 1)]),
        (ids["web"], 2),
    ]
    by_id = {link.dataset_id: link for link in links}
    assert by_id[ids["clean"]].activity == "dedup.py@3"
    assert by_id[ids["web"]].manifest is None and by_id[ids["web"]].path is None
    with pytest.raises(ObjectNotFoundError):
        lineage("sha256:" + "0" * 64, find([tmp_path]))
    with pytest.raises(UsageError, match="no identity"):
        lineage("train", find([tmp_path]))
