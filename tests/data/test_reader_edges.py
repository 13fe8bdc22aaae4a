"""What one format alone can do wrong, and what the libraries of others make of the same bytes."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="the data extra is not installed")

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from reader_samples import GOLDEN, LINES, RECORDS, golden, megatron, same, tar
from safetensors.numpy import save_file

from durable_core.data.files import open_file
from durable_core.data.readers import Held, check_unique, frames, index_object, open_object
from durable_core.errors import FormatError, RecordError, UnsupportedError, UsageError


def read(format: str, path: Path, **more: Any) -> list[Any]:
    reader = open_object(format, open_file(path), **more)
    try:
        return reader.read(range(len(reader)))
    finally:
        reader.close()


# --- parquet and arrow -------------------------------------------------------------------------


def test_a_row_group_is_decoded_once_for_the_reads_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    plain = pq.ParquetFile.read_row_group

    def counted(self: Any, group: int, **more: Any) -> Any:
        decoded.append(group)
        return plain(self, group, **more)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    pq.write_table(pa.table({"i": range(40)}), tmp_path / "a.parquet", row_group_size=10)
    held = Held()
    reader = open_object("parquet", open_file(tmp_path / "a.parquet"), held=held)
    shuffled = np.random.default_rng(0).permutation(40).tolist()
    assert [row["i"] for row in reader.read(shuffled)] == shuffled
    assert sorted(decoded) == [0, 1, 2, 3] and held.nbytes
    for i in shuffled:
        reader.read([i])
    assert len(decoded) == 4
    reader.close()
    assert held.nbytes == 0

    small = open_object("parquet", open_file(tmp_path / "a.parquet"), held=Held(100))
    decoded.clear()
    small.read([0, 10, 0, 10])  # together: group by group
    assert decoded == [0, 1]
    for i in (0, 10, 0, 10):
        small.read([i])
    assert decoded == [0, 1, 0, 1, 0, 1]
    small.close()


def test_a_row_group_that_does_not_decode_names_the_record(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"i": range(1000)}), path, row_group_size=500, compression="zstd", use_dictionary=False
    )
    data = bytearray(path.read_bytes())
    begin = pq.read_metadata(path).row_group(1).column(0).data_page_offset
    data[begin : begin + 200] = bytes(200)
    path.write_bytes(data)
    reader = open_object("parquet", open_file(path))
    assert reader.read([499]) == [{"i": 499}]
    with pytest.raises(RecordError, match=r"a\.parquet: record 777: ") as caught:
        reader.read([777])
    assert caught.value.ordinal == 777


def test_what_columns_hold(tmp_path: Path) -> None:
    rows = [
        {"n": [1, 2], "h": [1, None], "s": ["a"], "d": {"x": 1}, "none": None, "e": []},
        {"n": None, "h": [3, 4], "s": [], "d": None, "none": None, "e": []},
    ]
    types = {
        "n": pa.list_(pa.uint16()),
        "h": pa.list_(pa.int64()),
        "s": pa.list_(pa.string()),
        "d": pa.struct({"x": pa.int64()}),
        "none": pa.null(),
        "e": pa.large_list(pa.float32()),
    }
    table = pa.Table.from_pylist(rows, schema=pa.schema(list(types.items())))
    pq.write_table(table, tmp_path / "a.parquet")
    first, second = read("parquet", tmp_path / "a.parquet")
    assert first["n"].dtype == np.uint16 and first["n"].tolist() == [1, 2]
    assert second["n"] is None and first["h"] == [1, None] and second["h"].tolist() == [3, 4]
    assert (first["s"], first["d"], second["d"], first["none"]) == (["a"], {"x": 1}, None, None)
    assert first["e"].dtype == np.float32 and not first["e"].size


# --- keys --------------------------------------------------------------------------------------


def test_a_key_given_twice_names_both_records(tmp_path: Path) -> None:
    rows = [{"k": "a"}, {"k": "b"}, {"k": "a"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    for name, format in (("a.jsonl", "jsonl"), ("a.parquet", "parquet")):
        with pytest.raises(FormatError, match=rf"{name}: records 0 and 2 have one key, 'a'"):
            index_object(format, open_file(tmp_path / name), key="k")
    with pytest.raises(FormatError, match=r"two: record 1 has the key 'x' of one record 0"):
        check_unique([("one", ["x", "y"]), ("two", ["z", "x"])])
    check_unique([("one", ["x", "y"]), ("two", ["z"])])


# --- frames ------------------------------------------------------------------------------------


def test_only_the_frames_of_a_record_are_decompressed(tmp_path: Path) -> None:
    lines = LINES.splitlines(keepends=True)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(b"".join(gzip.compress(line) for line in lines))
    held = Held()
    reader = open_object("jsonl+gzip", open_file(path), held=held)
    reader.read([RECORDS - 1, 3, 3])
    assert held.nbytes == len(lines[-1]) + len(lines[3])
    reader.close()
    assert held.nbytes == 0


def test_a_frame_too_large_to_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstandard.compress(LINES))
    monkeypatch.setattr(frames, "MAX_FRAME", len(LINES) - 1)
    with pytest.raises(UnsupportedError, match=r"all of frame 0.*pzstd"):
        read("jsonl+zstd", path)


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_damaged_frame_names_the_object(suffix: str, tmp_path: Path) -> None:
    path, format = tmp_path / f"a.jsonl.{suffix}", f"jsonl+{'gzip' if suffix == 'gz' else 'zstd'}"
    data = (
        gzip.compress(LINES)
        if suffix == "gz"
        else zstandard.ZstdCompressor(write_checksum=True).compress(LINES)
    )
    path.write_bytes(data)
    index = index_object(format, open_file(path))
    path.write_bytes(data[:60] + bytes([data[60] ^ 255]) + data[61:])
    for given in (None, index):
        with pytest.raises(FormatError, match=r"a\.jsonl\.\w+: (gzip|zstd|frame|truncated)"):
            open_object(format, open_file(path), given).read([RECORDS - 1])


# --- text --------------------------------------------------------------------------------------


def test_lines_longer_than_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "CHUNK", 7)
    path = tmp_path / "a.txt"
    path.write_text("\n\nshort\n" + "x" * 100 + "\n \n\n y\nz")
    assert read("text:lines", path) == ["short", "x" * 100, " y", "z"]
    assert read("text:paragraphs", path) == ["short\n" + "x" * 100, " y\nz"]
    with pytest.raises(UsageError, match="text by 'words'"):
        read("text:words", path)


def test_what_is_no_text_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good\n\xff\n")
    reader = open_object("text:lines", open_file(tmp_path / "a.txt"))
    assert reader.read([0]) == ["good"]
    with pytest.raises(RecordError, match="record 1: UnicodeDecodeError"):
        reader.read([1])


# --- arrays ------------------------------------------------------------------------------------


def test_arrays_that_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(np.zeros((3, 4))))
    np.save(tmp_path / "scalar.npy", np.float64(1))
    np.save(tmp_path / "rows.npy", np.zeros((3, 4)))
    save_file({"a": np.zeros(3), "b": np.zeros(4)}, tmp_path / "uneven.safetensors")
    (tmp_path / "odd.bin").write_bytes(b"123")
    for name, format, error, said in (
        ("objects.npy", "npy", UnsupportedError, "run code"),
        ("fortran.npy", "npy", UnsupportedError, "C order"),
        ("scalar.npy", "npy", FormatError, "no dataset"),
        ("rows.npy", "npy:2", FormatError, "rows already"),
        ("uneven.safetensors", "safetensors", FormatError, "different lengths"),
        ("odd.bin", "bin:uint16:4", FormatError, "no whole number"),
        ("odd.bin", "bin:nothing:4", UsageError, "no dtype"),
    ):
        with pytest.raises(error, match=f"{said}") as caught:
            read(format, tmp_path / name)
        assert name in str(caught.value) or "dtype" in said


def test_elements_and_blocks(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(5))
    assert read("npy", tmp_path / "a.npy") == [0, 1, 2, 3, 4]
    save_file({"t": np.arange(5), "u": np.arange(5) * 2}, tmp_path / "a.safetensors")
    records = read("safetensors:2", tmp_path / "a.safetensors", columns=["u"])
    assert [record["u"].tolist() for record in records] == [[0, 2], [4, 6], [8]]
    np.save(tmp_path / "cube.npy", np.arange(24).reshape(2, 3, 4))
    assert [record.shape for record in read("npy", tmp_path / "cube.npy")] == [(3, 4)] * 2


def test_megatron_that_points_outside_its_tokens(tmp_path: Path) -> None:
    path = tmp_path / "a.idx"
    megatron(path)
    with pytest.raises(UsageError, match="only the index"):
        read("megatron", path)
    tokens = path.with_suffix(".bin")
    tokens.write_bytes(tokens.read_bytes()[:-1])
    with pytest.raises(FormatError, match=rf"sequence {RECORDS - 1} ends beyond .*a\.bin"):
        read("megatron", path, companion=open_file(tokens))


# --- tar ---------------------------------------------------------------------------------------


def _archive(path: Path, names: list[str]) -> None:
    with tarfile.open(path, "w") as archive:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = 1
            archive.addfile(entry, io.BytesIO(b"x"))


def test_a_shard_gives_what_webdataset_gives(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    path = tmp_path / "a.tar"
    expected = tar(path)
    theirs = webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False)
    plain = [{k: v for k, v in sample.items() if k == "__key__" or k[0] != "_"} for sample in theirs]
    assert plain == expected == read("tar", path)

    written = tmp_path / "b.tar"
    with webdataset.TarWriter(str(written)) as sink:
        for i in range(5):
            sink.write({"__key__": f"k{i}", "json": {"i": i}, "npy": np.arange(i)})
    samples = read("tar", written, columns=["json"])
    assert [(s["__key__"], json.loads(s["json"])["i"], len(s)) for s in samples] == [
        (f"k{i}", i, 2) for i in range(5)
    ]


def test_shards_whose_keys_are_not_unique(tmp_path: Path) -> None:
    _archive(tmp_path / "again.tar", ["a.txt", "b.txt", "a.json"])
    with pytest.raises(FormatError, match="records 0 and 2 have one key, 'a'"):
        read("tar", tmp_path / "again.tar")
    _archive(tmp_path / "twice.tar", ["a.txt", "a.TXT"])
    with pytest.raises(FormatError, match=r"record 0 \('a'\) has two files 'txt'"):
        read("tar", tmp_path / "twice.tar")
    _archive(tmp_path / "few.tar", ["a.txt", "a.cls", "b.txt", "__notes__.txt"])
    with pytest.raises(RecordError, match=r"record 1: .*no file 'cls' in sample 'b'"):
        read("tar", tmp_path / "few.tar", columns=["cls"])


# --- mds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("folder", "format"), [("plain", "mds"), ("zstd", "mds+zstd")])
def test_shards_that_mosaicml_streaming_wrote(folder: str, format: str) -> None:
    shards = sorted((GOLDEN / folder).glob("shard*"))
    described = json.loads((GOLDEN / folder / "index.json").read_text())["shards"]
    first = 0
    for number, facts in enumerate(described):
        found = [shard for shard in shards if shard.name.startswith(f"shard.{number:05d}")]
        for shard in found:  # only the first and the last are kept here
            records = read(format, shard)
            assert len(records) == facts["samples"]
            assert all(same(record, golden(first + i)) for i, record in enumerate(records))
            assert records[0]["tokens"].dtype == np.uint16 and records[0]["any"].dtype == np.float64
        first += facts["samples"]
    assert first == 12 and len(shards) == 2


def _mds(path: Path, encoding: str, sample: bytes) -> None:
    described = {"column_encodings": [encoding], "column_names": ["c"], "column_sizes": [None], "version": 2}
    text, body = json.dumps(described).encode(), struct.pack("<I", len(sample)) + sample
    begin = 12 + len(text)
    path.write_bytes(struct.pack("<III", 1, begin, begin + len(body)) + text + body)


def test_mds_columns_that_would_run_code_or_do_not_decode(tmp_path: Path) -> None:
    _mds(tmp_path / "a.mds", "pkl", b"x")
    with pytest.raises(UnsupportedError, match="column 'c' is pickled"):
        read("mds", tmp_path / "a.mds")
    assert read("mds", tmp_path / "a.mds", columns=[]) == [{}]
    _mds(tmp_path / "b.mds", "jpeg", b"bytes")
    assert read("mds", tmp_path / "b.mds") == [{"c": b"bytes"}]
    _mds(tmp_path / "c.mds", "json", b"{")
    with pytest.raises(RecordError, match="record 0: JSONDecodeError"):
        read("mds", tmp_path / "c.mds")
    _mds(tmp_path / "d.mds", "ndarray", b"\x01\x04\x01x")
    with pytest.raises(RecordError, match="record 0: KeyError"):
        read("mds", tmp_path / "d.mds")
    data = (tmp_path / "b.mds").read_bytes()
    (tmp_path / "e.mds").write_bytes(data.replace(struct.pack("<I", 5) + b"b", struct.pack("<I", 4) + b"b"))
    with pytest.raises(RecordError, match="record 0: ValueError: 9 bytes where its columns have 8"):
        read("mds", tmp_path / "e.mds")
