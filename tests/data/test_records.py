"""A dataset by its manifest: records by id, and bad input by the declared policy, never in silence."""

from __future__ import annotations

import gzip
import hashlib
import json
import multiprocessing
import pickle
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="the data extra is not installed")

import pyarrow as pa
import pyarrow.parquet as pq
from data_samples import listed, train
from reader_samples import SAMPLES, same

from durable_core.data import DatasetManifest, DurableLoader
from durable_core.data.cache import DataCache
from durable_core.data.files import LocalLocation
from durable_core.data.manifest import build, save
from durable_core.data.records import RecordDataset
from durable_core.errors import (
    CorruptError,
    DataUnavailableError,
    DigestMismatchError,
    FormatError,
    ObjectNotFoundError,
    RecordError,
    SkippedRecord,
    SpecMismatchError,
    UsageError,
)
from durable_core.format.ledger import RowFlag

PER_OBJECT = (4, 0, 5, 3)
TOTAL = sum(PER_OBJECT)


def value(i: int) -> dict[str, Any]:
    return {"i": i, "text": f"record {i}"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Four objects of JSON lines, the second of them empty."""
    directory, i = tmp_path / "data", 0
    directory.mkdir()
    for number, count in enumerate(PER_OBJECT):
        lines = [json.dumps(value(i + j)) + "\n" for j in range(count)]
        (directory / f"part-{number}.jsonl").write_text("".join(lines))
        i += count
    return directory


@pytest.fixture
def manifest(root: Path) -> DatasetManifest:
    return build([root]).manifest


def values(dataset: Any) -> list[int]:
    return [dataset[i]["i"] for i in range(len(dataset))]


# --- reading -----------------------------------------------------------------------------------


def test_every_record_by_its_id(manifest: DatasetManifest, root: Path) -> None:
    dataset = RecordDataset(manifest, root)
    assert len(dataset) == TOTAL and dataset.dataset_id == manifest.dataset_id
    order = np.random.default_rng(0).permutation(TOTAL)
    assert [dataset[i] for i in order] == [value(i) for i in order]
    assert dataset.blocks.tolist() == [4, 5, 3]
    assert dataset.locate(4) == ("part-2.jsonl", 0) and dataset.locate(11) == ("part-3.jsonl", 2)
    for beyond in (-1, TOTAL):
        with pytest.raises(IndexError):
            dataset[beyond]
    assert [record["i"] for record in dataset] == list(range(TOTAL))
    dataset.close()
    assert dataset[5] == value(5)


def test_columns_and_transform(manifest: DatasetManifest, root: Path) -> None:
    dataset = RecordDataset(manifest, root, columns=["text"], transform=lambda record: record["text"].upper())
    assert dataset[7] == "RECORD 7"


@pytest.mark.parametrize("name", [name for name in SAMPLES if name not in ("LICENSE", "picture", "raw.bin")])
def test_each_format_through_a_manifest(name: str, tmp_path: Path) -> None:
    format, make = SAMPLES[name]
    (tmp_path / "data").mkdir()
    expected = make(tmp_path / "data" / name)
    manifest = build([tmp_path / "data" / name], format=format).manifest
    cache = DataCache(tmp_path / "cache", 1 << 30)
    for more in (
        {},
        {"cache": cache},
        {"index_dir": tmp_path / "tables"},
        {"index_dir": tmp_path / "tables"},
    ):
        dataset = RecordDataset(manifest, tmp_path / "data", **more)
        assert all(same(dataset[i], expected[i]) for i in reversed(range(len(expected))))
        dataset.close()
    assert cache.usage().pinned == 0


def test_the_manifest_file_brings_its_lengths(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"tokens": [[1], [1, 2], [1, 2, 3]]}), path)
    save(build([path], tokens="tokens"), tmp_path / "manifest.json")
    dataset = RecordDataset.open(tmp_path / "manifest.json")
    assert dataset.lengths is not None and dataset.lengths.tolist() == [1, 2, 3]
    assert dataset.lengths.dtype == np.int64
    assert dataset[2]["tokens"].tolist() == [1, 2, 3]
    with pytest.raises(FormatError, match=r"shape \(2,\) for 3 records"):
        RecordDataset.open(tmp_path / "manifest.json", loss_lengths=[1, 2])


@pytest.mark.parametrize("where", [None, "~/data"])
def test_the_home_directory_may_be_written_as_a_tilde(
    where: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"tokens": [[1], [1, 2]]}), tmp_path / "data" / "a.parquet")
    save(build([tmp_path / "data"], tokens="tokens"), tmp_path / "data" / "manifest.json")
    monkeypatch.setenv("HOME", str(tmp_path))
    dataset = RecordDataset.open("~/data/manifest.json", where, index_dir="~/tables")
    assert dataset[1]["tokens"].tolist() == [1, 2]


def test_few_objects_are_open_at_once_and_those_in_use_stay(manifest: DatasetManifest, root: Path) -> None:
    dataset = RecordDataset(manifest, root, max_open=1, held_bytes=0, read_ahead=4)
    wrong: list[int] = []

    def work(seed: int) -> None:
        for i in np.random.default_rng(seed).integers(0, TOTAL, 200).tolist():
            if dataset[i] != value(i):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    dataset.close()
    assert not wrong
    open_now = [link.resolve() for link in Path("/proc/self/fd").iterdir() if link.exists()]
    assert not [path for path in open_now if path.is_relative_to(root)]


def _report(dataset: RecordDataset, queue: Any) -> None:
    dataset.prefetch(range(TOTAL))
    queue.put([dataset[i]["i"] for i in range(TOTAL)])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_another_process_opens_its_own(method: str, manifest: DatasetManifest, root: Path) -> None:
    dataset = RecordDataset(manifest, root, read_ahead=2)
    dataset.prefetch(range(TOTAL))
    assert dataset[0] == value(0)
    context: Any = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=_report, args=(dataset, queue))
    child.start()
    assert queue.get(timeout=60) == list(range(TOTAL))
    child.join(60)
    assert values(dataset) == list(range(TOTAL))
    dataset.close()
    assert pickle.loads(pickle.dumps(dataset))[3] == value(3)


@pytest.mark.parametrize("workers", [0, 2])
def test_in_a_durable_loader(workers: int, manifest: DatasetManifest, root: Path) -> None:
    def run(dataset: RecordDataset, workers: int) -> list[Any]:
        loader = DurableLoader(dataset, 5, seed=3, num_workers=workers, collate_fn=listed)
        assert loader.dataset_id == manifest.dataset_id and loader.verified
        return train(loader)

    batches = run(RecordDataset(manifest, root, read_ahead=3), workers)
    assert sorted(record["i"] for batch in batches for record in batch) == list(range(TOTAL))
    assert batches == run(RecordDataset(manifest, root), 0)


# --- reading ahead -----------------------------------------------------------------------------


def test_reading_ahead_gives_the_same_and_raises_for_its_own_id(
    manifest: DatasetManifest, root: Path
) -> None:
    (root / "part-2.jsonl").unlink()
    dataset = RecordDataset(manifest, root, read_ahead=2)
    dataset.prefetch([11, 4, 0, 5, 1])
    assert dataset[11] == value(11)
    with pytest.raises(ObjectNotFoundError, match=r"part-2\.jsonl"):
        dataset[4]
    assert dataset[0] == value(0)
    with pytest.raises(ObjectNotFoundError):
        dataset[5]
    assert dataset[1] == value(1)
    dataset.close()


def test_what_is_read_ahead_is_bounded_by_bytes_as_stored(manifest: DatasetManifest, root: Path) -> None:
    dataset = RecordDataset(manifest, root, read_ahead=2, ahead_bytes=70)  # some 29 bytes a record
    dataset.prefetch(range(TOTAL))
    ahead = dataset._here().ahead
    assert ahead is not None and ahead.depth == 2
    assert values(dataset) == list(range(TOTAL))
    assert ahead.depth == ahead.nbytes == 0
    dataset.close()


# --- bad input ---------------------------------------------------------------------------------


def missing(root: Path) -> None:
    (root / "part-2.jsonl").unlink()


def truncated(root: Path) -> None:
    path = root / "part-2.jsonl"
    path.write_bytes(path.read_bytes()[:-5])


def swapped(root: Path) -> None:
    shutil.move(root / "part-2.jsonl", root / "x")
    shutil.move(root / "part-3.jsonl", root / "part-2.jsonl")
    shutil.move(root / "x", root / "part-3.jsonl")


def renamed(root: Path) -> None:
    (root / "part-2.jsonl").rename(root / "part-9.jsonl")


def changed(root: Path) -> None:
    path = root / "part-2.jsonl"
    path.write_bytes(path.read_bytes().replace(b"record 6", b"record 9"))


DAMAGE: dict[str, tuple[Callable[[Path], None], type[Exception]]] = {
    "missing": (missing, ObjectNotFoundError),
    "renamed": (renamed, ObjectNotFoundError),
    "truncated": (truncated, DigestMismatchError),
    "swapped": (swapped, DigestMismatchError),
    "changed": (changed, DigestMismatchError),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("cached", [False, True])
def test_bad_objects_fail_by_name(
    damage: str, cached: bool, manifest: DatasetManifest, root: Path, tmp_path: Path
) -> None:
    harm, error = DAMAGE[damage]
    harm(root)
    cache = DataCache(tmp_path / "cache", 1 << 20) if cached else None
    dataset = RecordDataset(manifest, root, cache=cache)
    assert dataset[0] == value(0)
    for i in (4, 8):
        with pytest.raises(error, match=r"part-2\.jsonl"):
            dataset[i]


@pytest.mark.parametrize("damage", DAMAGE)
def test_quarantine_leaves_out_the_object_and_says_so(
    damage: str, manifest: DatasetManifest, root: Path
) -> None:
    DAMAGE[damage][0](root)
    dataset = RecordDataset(manifest, root, on_bad="quarantine")
    with pytest.raises(
        SkippedRecord, match=r"part-2\.jsonl: record 2 \(id 6\) is left out by on_bad='quarantine'"
    ):
        dataset[6]
    assert list(dataset.quarantined) == ["part-2.jsonl"]
    assert dataset[0] == value(0)
    shutil.rmtree(root)  # it is not looked at again
    with pytest.raises(SkippedRecord) as caught:
        dataset[4]
    assert (caught.value.key, caught.value.ordinal, caught.value.id) == ("part-2.jsonl", 0, 4)


@pytest.mark.parametrize("policy", ["skip", "quarantine"])
def test_a_frame_that_is_damaged_takes_its_own_records_whoever_reads_first(
    policy: Any, tmp_path: Path, root: Path
) -> None:
    """What is met in a read depends on who read before, so it says nothing of the rest of the object."""
    frames = [gzip.compress(b"".join(b'{"i":%d}\n' % i for i in range(k, k + 4))) for k in range(0, 20, 4)]
    place, tables = tmp_path / "framed", tmp_path / "tables"
    place.mkdir()
    path = place / "a.jsonl.gz"
    path.write_bytes(b"".join(frames))
    manifest = build([place]).manifest
    RecordDataset(manifest, place, index_dir=tables)[0]  # which keeps where records begin
    data, at = bytearray(path.read_bytes()), len(frames[0]) + len(frames[1]) - 10
    data[at] ^= 0xFF
    path.write_bytes(data)
    for order in (range(20), reversed(range(20))):
        dataset = RecordDataset(manifest, place, index_dir=tables, verify="size", on_bad=policy)
        left_out = set()
        for i in order:
            try:
                assert dataset[i] == {"i": i}
            except SkippedRecord:
                left_out.add(i)
        assert left_out == {4, 5, 6, 7} and not dataset.quarantined


def test_an_object_quarantined_before_is_left_out_from_the_start(
    manifest: DatasetManifest, root: Path
) -> None:
    dataset = RecordDataset(manifest, root, on_bad="quarantine", quarantined=["part-3.jsonl"])
    with pytest.raises(SkippedRecord, match="declared"):
        dataset[9]
    with pytest.raises(UsageError, match="no object 'part-9'"):
        RecordDataset(manifest, root, quarantined=["part-9"])


def test_an_object_that_vanishes_in_mid_run(manifest: DatasetManifest, root: Path) -> None:
    dataset = RecordDataset(manifest, root, on_bad="skip")
    assert dataset[0] == value(0)
    missing(root)
    with pytest.raises(SkippedRecord, match=r"record 0 \(id 4\)"):
        dataset[4]
    assert dataset[9] == value(9)


def test_a_whole_directory_that_is_gone_is_no_reason_to_skip_it(
    manifest: DatasetManifest, root: Path
) -> None:
    dataset = RecordDataset(manifest, root, on_bad="skip")
    shutil.rmtree(root)
    with pytest.raises(DataUnavailableError, match="nothing is at"):
        dataset[0]


def test_refetch_reads_again_from_the_origin_and_not_for_ever(
    manifest: DatasetManifest, root: Path, tmp_path: Path
) -> None:
    cache = DataCache(tmp_path / "cache", 1 << 20)
    dataset = RecordDataset(manifest, root, cache=cache, on_bad="refetch", refetches=2)
    assert values(dataset) == list(range(TOTAL))
    dataset.close()
    rotten = cache._path(manifest.objects[2].digest)
    rotten.chmod(0o644)
    rotten.write_bytes(rotten.read_bytes().replace(b'{"i": 6', b'["i": 6'))
    assert dataset[6] == value(6)
    assert rotten.read_bytes() == (root / "part-2.jsonl").read_bytes()

    changed(root)
    dataset.close()
    cache.evict()  # the copy is whole: `drop` would keep it
    with pytest.raises(DigestMismatchError, match=r"part-2\.jsonl"):
        dataset[6]


@pytest.fixture
def broken(root: Path) -> DatasetManifest:
    """A record that was no JSON from the start: the digest is right."""
    path = root / "part-2.jsonl"
    path.write_bytes(path.read_bytes().replace(b'{"i": 6', b'["i": 6'))
    return build([root]).manifest


@pytest.mark.parametrize("policy", ["fail", "refetch"])
def test_a_record_that_does_not_decode_fails_by_name(
    policy: Any, broken: DatasetManifest, root: Path
) -> None:
    dataset = RecordDataset(broken, root, on_bad=policy)
    assert dataset[5] == value(5)
    with pytest.raises(RecordError, match=r"part-2\.jsonl: record 2: JSONDecodeError") as caught:
        dataset[6]
    assert (caught.value.key, caught.value.ordinal) == ("part-2.jsonl", 2)


@pytest.mark.parametrize("policy", ["skip", "quarantine"])
@pytest.mark.parametrize("threads", [0, 2])
def test_a_record_that_does_not_decode_is_left_out_alone(
    policy: Any, threads: int, broken: DatasetManifest, root: Path
) -> None:
    dataset = RecordDataset(broken, root, on_bad=policy, read_ahead=threads)
    dataset.prefetch(range(TOTAL))
    for i in range(TOTAL):
        if i == 6:
            with pytest.raises(SkippedRecord, match=r"record 2 \(id 6\) is left out.*JSONDecodeError"):
                dataset[i]
        else:
            assert dataset[i] == value(i)
    assert not dataset.quarantined
    dataset.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_left_out_is_in_the_ledger(workers: int, broken: DatasetManifest, root: Path) -> None:
    (root / "part-3.jsonl").unlink()
    dataset = RecordDataset(broken, root, on_bad="skip")
    loader = DurableLoader(dataset, 5, seed=3, num_workers=workers, collate_fn=listed)
    trained = [record["i"] for batch in train(loader) for record in batch]
    assert sorted(trained) == [0, 1, 2, 3, 4, 5, 7, 8]
    rows = loader.drain_rows()
    left_out = [id for row in rows if row.flags & RowFlag.SKIPPED for id in row.ids.tolist()]
    assert sorted(left_out) == [6, 9, 10, 11]
    kept = [id for row in rows if not row.flags & RowFlag.SKIPPED for id in row.ids.tolist()]
    assert sorted(kept) == sorted(trained)


@pytest.mark.parametrize("workers", [0, 2])
def test_no_more_than_declared_is_left_out(workers: int, broken: DatasetManifest, root: Path) -> None:
    dataset = RecordDataset(broken, root, on_bad="skip")
    enough = {"seed": 3, "num_workers": workers, "collate_fn": listed}
    assert sum(map(len, train(DurableLoader(dataset, 5, **enough, max_skipped=1)))) == TOTAL - 1
    with pytest.raises(CorruptError, match="more than max_skipped=0") as caught:
        train(DurableLoader(dataset, 5, **enough, max_skipped=0))
    assert not isinstance(caught.value, SkippedRecord)


@pytest.mark.parametrize("verify", ["open", "size"])
def test_what_verify_sees(verify: Any, manifest: DatasetManifest, root: Path) -> None:
    changed(root)
    dataset = RecordDataset(manifest, root, verify=verify)
    if verify == "size":
        assert dataset[6]["text"] == "record 9"
    else:
        with pytest.raises(DigestMismatchError):
            dataset[6]
    truncated(root)
    dataset.close()
    with pytest.raises(DigestMismatchError):
        dataset[4]


def test_an_object_is_digested_once_a_process_until_it_changes(manifest: DatasetManifest, root: Path) -> None:
    read: list[str] = []

    class Watched(LocalLocation):
        def file(self, name: str) -> Any:
            file = super().file(name)
            whole = file.chunks

            def chunks(*given: Any) -> Any:
                read.append(name)
                return whole(*given)

            file.chunks = chunks  # type: ignore[method-assign]
            return file

    dataset = RecordDataset(manifest, Watched(root), max_open=1)
    for _ in range(3):
        assert values(dataset) == list(range(TOTAL))
    assert sorted(read) == ["part-0.jsonl", "part-2.jsonl", "part-3.jsonl"]
    changed(root)
    with pytest.raises(DigestMismatchError):
        values(dataset)


def test_tables_of_offsets_are_kept_by_digest(manifest: DatasetManifest, root: Path, tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    assert values(RecordDataset(manifest, root, index_dir=tables)) == list(range(TOTAL))
    kept = sorted(tables.iterdir())
    assert len(kept) == 3
    kept[0].write_bytes(b"torn")
    assert values(RecordDataset(manifest, root, index_dir=tables)) == list(range(TOTAL))
    assert kept[0].stat().st_size > 4

    cache = DataCache(tmp_path / "cache", 1 << 20)
    assert values(RecordDataset(manifest, root, cache=cache)) == list(range(TOTAL))
    assert len(list((tmp_path / "cache" / "tables").iterdir())) == 3
    (tmp_path / "file").touch()  # no place for tables is no reason to stop
    assert values(RecordDataset(manifest, root, index_dir=tmp_path / "file")) == list(range(TOTAL))


def test_a_table_that_is_damaged_or_of_other_bytes_is_made_again(
    manifest: DatasetManifest, root: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    assert values(RecordDataset(manifest, root, index_dir=kept)) == list(range(TOTAL))
    for table in kept.iterdir():
        data = bytearray(table.read_bytes())
        data[-6] ^= 0x01  # of an offset
        table.write_bytes(data)
    assert values(RecordDataset(manifest, root, index_dir=kept)) == list(range(TOTAL))

    # Of an object whose digest nobody looked at, and that is another one, no table is kept under its digest.
    path = root / "part-2.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'{"i": 5, ', b'{"i":\n5, '))
    for table in kept.iterdir():
        table.unlink()
    with pytest.raises(FormatError):
        RecordDataset(manifest, root, index_dir=kept, verify="size")[5]
    assert not list(kept.iterdir())
    RecordDataset(manifest, root, index_dir=kept, verify="size")[0]
    assert len(list(kept.iterdir())) == 1
    path.write_bytes(whole)
    assert values(RecordDataset(manifest, root, index_dir=kept)) == list(range(TOTAL))


def test_a_copy_in_the_cache_is_digested_once_a_process(
    manifest: DatasetManifest, root: Path, tmp_path: Path
) -> None:
    def dataset(**how: Any) -> RecordDataset:
        return RecordDataset(manifest, root, cache=DataCache(tmp_path / "cache", 1 << 20), **how)

    def spoil() -> None:
        for path in (tmp_path / "cache" / "objects").glob("*/*"):
            path.chmod(0o644)
            path.write_bytes(path.read_bytes().replace(b"record", b"recOrd"))

    expected = [value(i) for i in range(TOTAL)]
    assert [dataset()[i] for i in range(TOTAL)] == expected
    spoil()
    assert dataset(verify="size")[0] == {"i": 0, "text": "recOrd 0"}
    again = dataset()
    assert [again[i] for i in range(TOTAL)] == expected  # fetched again
    shutil.rmtree(root)
    whole = dataset()
    assert [whole[i] for i in range(TOTAL)] == expected  # and what is right is not fetched
    spoil()
    with pytest.raises(ObjectNotFoundError):
        dataset()[0]


def test_the_tokenizer_must_be_the_manifests(root: Path) -> None:
    from durable_core.data.manifest import Tokenizer

    digest = "sha256:" + hashlib.sha256(b"tokenizer").hexdigest()
    other = "sha256:" + hashlib.sha256(b"another").hexdigest()
    dataset = RecordDataset(build([root], tokenizer=Tokenizer(digest=digest)).manifest, root)
    dataset.check_tokenizer(digest)
    with pytest.raises(SpecMismatchError, match=f"{other}.*{digest}") as caught:
        dataset.check_tokenizer(other)
    assert caught.value.fields == ("tokenizer",)
    with pytest.raises(SpecMismatchError, match="none that it names"):
        RecordDataset(build([root]).manifest, root).check_tokenizer(digest)


def test_what_is_not_as_the_manifest_says_comes_with_its_place_and_a_way_out(
    manifest: DatasetManifest, root: Path
) -> None:
    with pytest.raises(ObjectNotFoundError, match=r"root that dataset sha256:\w+ was built with.*--root"):
        RecordDataset(manifest, root.parent)[0]
    changed(root)
    with pytest.raises(DigestMismatchError, match=f"at {root} .*durable data verify.*on_bad=") as caught:
        RecordDataset(manifest, root)[4]
    assert caught.value.key == "part-2.jsonl"
    with pytest.raises(SkippedRecord, match="a DurableLoader goes on without it") as left_out:
        RecordDataset(manifest, root, on_bad="skip")[4]
    assert left_out.value.why.startswith("content is not sha256:")


def test_paths_in_place_of_what_they_name(manifest: DatasetManifest, root: Path) -> None:
    with pytest.raises(UsageError, match=r"RecordDataset\.open.*load"):
        RecordDataset("web.json", root)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="DataCache"):
        RecordDataset(manifest, root, cache="directory")  # type: ignore[arg-type]


def test_arguments_that_make_no_sense(manifest: DatasetManifest, root: Path) -> None:
    wrong: list[dict[str, Any]] = [
        {"on_bad": "hope"},
        {"verify": "never"},
        {"ahead_items": 0},
        {"read_ahead": -1},
    ]
    for more in wrong:
        with pytest.raises(UsageError):
            RecordDataset(manifest, root, **more)
    with pytest.raises(UsageError, match="no format 'csv'"):
        RecordDataset(manifest, root, format="csv")[0]
