"""Records over s3 through the same code as from a disk: ranges, streams, the cache, and what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="the data extra is not installed")

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from remote_servers import BUCKET, raw_client

from durable_core.data.cache import DataCache
from durable_core.data.manifest import build
from durable_core.data.records import RecordDataset
from durable_core.errors import DataUnavailableError, DigestMismatchError, ObjectNotFoundError, SkippedRecord

ROWS = [{"id": i, "tokens": list(range(i % 7))} for i in range(40)]


def _jsonl(path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))


def _zstd(path: Path) -> None:
    lines = [json.dumps(row).encode() + b"\n" for row in ROWS]
    path.write_bytes(zstandard.compress(b"".join(lines[:17])) + zstandard.compress(b"".join(lines[17:])))


def _parquet(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=8)


def _npy(path: Path) -> None:
    np.save(path, np.arange(80).reshape(40, 2))


MAKE = {"a.jsonl": _jsonl, "a.jsonl.zst": _zstd, "a.parquet": _parquet, "a.npy": _npy}


@pytest.fixture
def url(weed: str, prefix: str) -> str:
    return f"s3://{BUCKET}/{prefix}/data?endpoint={weed}"


@pytest.fixture
def client(weed: str) -> Any:
    return raw_client(weed)


@pytest.mark.parametrize("name", MAKE)
def test_the_same_records_and_the_same_id(
    name: str, url: str, client: Any, prefix: str, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    MAKE[name](tmp_path / "data" / name)
    content = (tmp_path / "data" / name).read_bytes()
    client.put_object(Bucket=BUCKET, Key=f"{prefix}/data/{name}", Body=content)
    here, there = build([tmp_path / "data"]).manifest, build([url]).manifest
    assert here.dataset_id == there.dataset_id
    expected = list(RecordDataset(here, tmp_path / "data"))
    cache = DataCache(tmp_path / "cache", 1 << 20)
    order = np.random.default_rng(1).permutation(len(expected)).tolist()
    for more in ({}, {"verify": "size"}, {"read_ahead": 0}, {"cache": cache}):
        dataset = RecordDataset(there, url, **more)
        dataset.prefetch(order)
        for i in order:
            assert (
                np.array_equal(dataset[i], expected[i]) if name == "a.npy" else _same(dataset[i], expected[i])
            )
        dataset.close()
    client.delete_object(Bucket=BUCKET, Key=f"{prefix}/data/{name}")
    assert _same(RecordDataset(there, url, cache=cache)[3], expected[3])


def _same(a: Any, b: Any) -> bool:
    return repr(a) == repr(b)


def test_what_is_bad_there_is_told_as_it_is_here(url: str, client: Any, prefix: str, tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        client.put_object(
            Bucket=BUCKET, Key=f"{prefix}/data/{name}", Body=b"".join(b"[%d]\n" % i for i in range(4))
        )
    manifest = build([url]).manifest
    client.put_object(Bucket=BUCKET, Key=f"{prefix}/data/a.jsonl", Body=b"[9]\n" * 4)
    client.delete_object(Bucket=BUCKET, Key=f"{prefix}/data/b.jsonl")
    dataset = RecordDataset(manifest, url)
    dataset.prefetch(range(8))
    for i in range(4):
        with pytest.raises(DigestMismatchError, match=r"a\.jsonl: content is not"):
            dataset[i]
    for i in range(4, 8):
        with pytest.raises(ObjectNotFoundError, match=r"b\.jsonl"):
            dataset[i]
    dataset.close()
    cached = RecordDataset(manifest, url, cache=DataCache(tmp_path / "cache", 1 << 20), on_bad="skip")
    with pytest.raises(SkippedRecord, match=r"a\.jsonl: record 2 \(id 2\)"):
        cached[2]


def test_a_store_that_does_not_answer_is_no_bad_record(url: str, client: Any, prefix: str) -> None:
    from durable_core.data.files import open_location
    from durable_core.data.physical.retry import Retries

    client.put_object(Bucket=BUCKET, Key=f"{prefix}/data/a.jsonl", Body=b"1\n2\n")
    manifest = build([url]).manifest
    nobody = open_location(
        f"s3://{BUCKET}/{prefix}/data?endpoint=http://127.0.0.1:9",
        retries=Retries(attempts=2, base_s=0, cap_s=0, timeout_s=5),
    )
    with pytest.raises(DataUnavailableError, match=r"a\.jsonl"):
        RecordDataset(manifest, nobody, on_bad="skip")[0]
