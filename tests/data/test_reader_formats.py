"""Every reader keeps one contract: records by ordinal, in any order; or an error with the object's name."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="the data extra is not installed")

from reader_samples import RECORDS, SAMPLES, same

from durable_core.data.files import File, open_file
from durable_core.data.readers import (
    Held,
    ObjectIndex,
    ObjectReader,
    companion_of,
    detect,
    index_object,
    open_object,
)
from durable_core.errors import CorruptError, FormatError, RecordError, UnsupportedError, UsageError

Made = tuple[str, Path, list[Any]]


@pytest.fixture(params=SAMPLES, scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    format, make = SAMPLES[request.param]
    path = tmp_path_factory.mktemp("object") / request.param
    return format, path, make(path)


def companion(format: str, path: Path) -> File | None:
    name = companion_of(format, str(path))
    return None if name is None else open_file(name)


def index(format: str, path: Path, **more: Any) -> ObjectIndex:
    return index_object(format, open_file(path), companion=companion(format, path), **more)


def reader(format: str, path: Path, found: ObjectIndex | None = None, **more: Any) -> ObjectReader:
    return open_object(format, open_file(path), found, companion=companion(format, path), **more)


def test_a_name_tells_the_format_or_nothing(made: Made) -> None:
    format, path, _ = made
    assert detect(path.name) in (format.partition(":")[0], None)
    assert detect("data.BIN") is detect("README.md") is None and detect("shard.Parquet") == "parquet"


def test_records_by_ordinal_in_any_order(made: Made) -> None:
    format, path, expected = made
    found = index(format, path)
    assert found.records == len(expected)
    opened = reader(format, path, found)
    assert len(opened) == len(expected)
    ordinals = [i for i in range(len(expected)) for _ in range(2)]
    random.Random(1).shuffle(ordinals)
    got = opened.read(ordinals)
    assert all(same(record, expected[i]) for record, i in zip(got, ordinals, strict=True)), got
    assert opened.read([]) == []
    for beyond in (-1, len(expected)):
        with pytest.raises(UsageError, match=f"record {beyond} of {len(expected)}"):
            opened.read([beyond])
    opened.close()


def test_without_an_index_it_is_made_first(made: Made) -> None:
    format, path, expected = made
    opened = reader(format, path)
    assert same(opened.read([len(expected) - 1])[0], expected[-1])
    opened.close()


def test_threads_share_a_reader(made: Made) -> None:
    format, path, expected = made
    opened = reader(format, path, held=Held(0))
    wrong: list[Any] = []

    def work(seed: int) -> None:
        ordinals = random.Random(seed).choices(range(len(expected)), k=30)
        got = opened.read(ordinals)
        wrong.extend(i for record, i in zip(got, ordinals, strict=True) if not same(record, expected[i]))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    opened.close()
    assert not wrong


def test_what_is_given_may_be_changed_and_stays_when_the_reader_is_closed(made: Made) -> None:
    format, path, expected = made
    opened = reader(format, path)
    record = opened.read([0])[0]
    for value in record.values() if isinstance(record, dict) else [record]:
        if isinstance(value, np.ndarray) and value.size:
            value += 1
    again = opened.read([0])[0]
    opened.close()
    assert same(again, expected[0])


def test_a_truncated_object_is_an_error_with_its_name(made: Made, tmp_path: Path) -> None:
    format, path, expected = made
    if format in ("blob", "text", "text:paragraphs"):
        pytest.skip("every beginning of a text is a text: the digest tells")
    whole = path.read_bytes()
    short = tmp_path / path.name
    if path.with_suffix(".bin").exists() and path.suffix == ".idx":
        os.link(path.with_suffix(".bin"), short.with_suffix(".bin"))
    for size in (0, 1, len(whole) // 3, len(whole) - 1 - (16 if format == "jsonl+gzip" else 0)):
        short.write_bytes(whole[:size])
        try:
            opened = reader(format, short)
            got = opened.read(range(len(opened)))
            opened.close()
        except CorruptError as error:
            assert error.key == str(short) or error.key == short.name
        else:
            assert len(got) < len(expected) or format in ("jsonl", "tar", "bin:uint16:4"), size


def test_truncated_after_it_was_indexed(made: Made, tmp_path: Path) -> None:
    format, path, expected = made
    if format == "arrow" or path.suffix == ".idx":
        pytest.skip("mapped or read whole when it is opened")
    found, short = index(format, path), tmp_path / path.name
    size = path.stat().st_size
    short.write_bytes(path.read_bytes()[: size // 3])
    with pytest.raises(CorruptError, match=short.name):
        reader(format, short, found).read(range(len(expected)))


def test_a_missing_object(made: Made) -> None:
    format, path, _ = made
    gone = path.with_name("gone-" + path.name)
    with pytest.raises(Exception, match="gone-"):
        index(format, gone)


# --- columns, lengths, keys --------------------------------------------------------------------

WITH_COLUMNS = ["a.parquet", "file.arrow", "stream.arrow", "a.jsonl", "a.jsonl.gz", "a.jsonl.zst"]


@pytest.mark.parametrize("name", WITH_COLUMNS)
def test_columns_lengths_and_keys(name: str, tmp_path: Path) -> None:
    format, make = SAMPLES[name]
    expected = make(tmp_path / name)
    found = index(format, tmp_path / name, tokens="tokens", key="id")
    assert found.lengths is not None and found.lengths.tolist() == list(range(1, RECORDS + 1))
    assert found.lengths.dtype == np.int64
    assert found.keys == tuple(f"r{i}" for i in range(RECORDS)) and found.ids_rule == "key:id"
    opened = reader(format, tmp_path / name, found, columns=["text", "id"])
    assert list(opened.read([7])[0].items()) == [("text", expected[7]["text"]), ("id", "r7")]
    with pytest.raises(CorruptError, match="absent"):
        reader(format, tmp_path / name, found, columns=["absent"]).read([0])
    with pytest.raises(CorruptError, match="absent"):
        index(format, tmp_path / name, tokens="absent")


@pytest.mark.parametrize("name", ["a.mds", "a.mds.zstd"])
def test_columns_lengths_and_keys_of_mds(name: str, tmp_path: Path) -> None:
    format, make = SAMPLES[name]
    make(tmp_path / name)
    found = index(format, tmp_path / name, tokens="tokens", key="n")
    assert found.lengths is not None and found.lengths.tolist() == [1, 2, 3]
    assert found.keys == ("0", "-1", "-2")
    assert reader(format, tmp_path / name, found, columns=["n"]).read([2]) == [{"n": -2}]
    with pytest.raises(FormatError, match="no column 'absent'"):
        reader(format, tmp_path / name, found, columns=["absent"])


def test_lengths_of_token_files(tmp_path: Path) -> None:
    def lengths(name: str, **more: Any) -> list[int]:
        format, make = SAMPLES[name]
        make(tmp_path / name)
        found = index(format, tmp_path / name, **more).lengths
        assert found is not None and found.dtype == np.int64
        return found.tolist()

    assert lengths("a.npy") == [5] * RECORDS
    assert lengths("blocks.npy") == lengths("raw.bin") == [4, 4, 2]
    assert lengths("a.safetensors", tokens="grid") == [5] * RECORDS
    assert lengths("a.idx") == list(range(1, RECORDS + 1))


def test_formats_that_are_none() -> None:
    file = open_file("/nowhere/a")
    with pytest.raises(UsageError, match="no format 'csv'"):
        open_object("csv", file)
    with pytest.raises(UnsupportedError, match="tar under gzip"):
        open_object(detect("a.tar.gz") or "", file)
    with pytest.raises(UsageError, match="at most 0 arguments"):
        open_object("jsonl:lines", file)
    with pytest.raises(UsageError, match="bin:uint16:2048"):
        open_object("bin:uint16", file)
    with pytest.raises(UsageError, match="no number of elements"):
        open_object("npy:-3", file)


def test_a_record_that_does_not_decode_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": \n{"a": 3}\n[1]\n"\xff"\n')
    opened = reader("jsonl", path, columns=["a"])
    assert opened.read([2, 0]) == [{"a": 3}, {"a": 1}]
    for ordinal in (1, 3, 4):
        with pytest.raises(RecordError, match=rf"a\.jsonl: record {ordinal}: ") as caught:
            opened.read([0, ordinal])
        assert caught.value.ordinal == ordinal
