"""Objects that are not what their format says: refused by name, and never read as something else."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="the data extra is not installed")

import pyarrow as pa
import pyarrow.parquet as pq
from reader_samples import SAMPLES
from safetensors.numpy import save_file

from durable_core.data.files import open_file
from durable_core.data.manifest import build
from durable_core.data.readers import index_object, open_object
from durable_core.errors import FormatError, RecordError


def refused(format: str, path: Path, said: str, **how: Any) -> None:
    """By ``index_object``, and by ``open_object`` without an index."""
    with pytest.raises(FormatError, match=said) as caught:
        index_object(format, open_file(path), **how)
    assert path.name in str(caught.value)
    if not how:
        with pytest.raises(FormatError, match=said):
            open_object(format, open_file(path))


# --- tar ---------------------------------------------------------------------------------------


def archive(path: Path, count: int = 6) -> bytes:
    """Each member takes 1024 bytes: a header and a block."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as sink:
        for i in range(count):
            entry = tarfile.TarInfo(f"{i:04d}.txt")
            entry.size = 1
            sink.addfile(entry, io.BytesIO(b"x"))
    return path.read_bytes()


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a bit of a checksum": (
        lambda d: d[:3220] + bytes([d[3220] ^ 1]) + d[3221:], "no end of the archive at byte 3072",
    ),
    "a zeroed header": (lambda d: d[:3072] + bytes(512) + d[3584:], "more data behind the end"),
    "cut in a header": (lambda d: d[:3172], "no end of the archive at byte 3072"),
    "cut behind a member": (lambda d: d[:3072], "no end of the archive at byte 3072"),
    "cut in a member": (lambda d: d[:3600], "not readable as tar|truncated"),
    "cut in the end": (lambda d: d[: 6 * 1024 + 100], "no end of the archive at byte 6144"),
    "two one behind the other": (lambda d: d + d, "more data behind the end of the archive at byte 6144"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_tar_that_is_damaged_or_cut_loses_no_file_in_silence(damage: str, tmp_path: Path) -> None:
    change, said = DAMAGE[damage]
    path = tmp_path / "a.tar"
    path.write_bytes(change(archive(path)))
    refused("tar", path, said)


def test_a_tar_ends_with_one_block_of_zeros_or_any_number(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    data = archive(path)
    for end in (512, 1024, 1 << 21):
        path.write_bytes(data[: 6 * 1024] + bytes(end))
        assert index_object("tar", open_file(path)).records == 6


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE, b"V"])
def test_what_is_no_file_in_a_tar_is_refused_and_a_folder_is_passed_over(kind: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as sink:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        sink.addfile(folder)
        sink.addfile(tarfile.TarInfo("folder/a.txt"))
    assert index_object("tar", open_file(path)).records == 1
    with tarfile.open(path, "a") as sink:
        other = tarfile.TarInfo("folder/b.txt")
        other.type, other.linkname = kind, "folder/a.txt"
        sink.addfile(other)
    refused("tar", path, "'folder/b.txt' is (a link|no file)")


@pytest.mark.parametrize("version", ["0.0", "1.0"])
def test_files_with_holes_are_refused(version: str, tmp_path: Path) -> None:
    """As GNU tar --sparse writes them with --format=pax: the bytes there are, behind a map in 1.0."""
    path, body = tmp_path / "a.tar", b"1\n0\n4\n".ljust(512, b"\0") + b"DATA"
    headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "a.bin"}
    headers["GNU.sparse.realsize"] = "4"
    if version == "0.0":
        body, headers = b"DATA", {"GNU.sparse.size": "8", "GNU.sparse.map": "4,4"}
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as sink:
        entry = tarfile.TarInfo("a.bin")
        entry.size, entry.pax_headers = len(body), headers
        sink.addfile(entry, io.BytesIO(body))
    refused("tar", path, "'a.bin' is a file with holes")


# --- arrays ------------------------------------------------------------------------------------


def npy(header: str, version: bytes = b"\1\0") -> bytes:
    return b"\x93NUMPY" + version + struct.pack("<H", len(header) + 1) + header.encode() + b"\n" + bytes(64)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (npy("{'descr':'<i4','fortran_order':False,'shape':(-5,)}"), r"a shape of \[-5\]"),
        (npy("{'descr':'<i4','fortran_order':False,'shape':(-2,-3)}"), r"a shape of \[-2, -3\]"),
        (npy("{'descr':'<i4','fortran_order':False,'shape':(2.5,)}"), "shape is not valid"),
        (npy("{'descr':'<i4','fortran_order':False,'shape':(3,0)}"), "its 3 rows have no bytes"),
        (npy("{'descr':'|V0','fortran_order':False,'shape':(4,)}"), "its 4 rows have no bytes"),
        (npy("{'descr':"), "not readable as npy"),  # tokenize.TokenError, which is no ValueError
        (npy("{'descr':'<i4','fortran_order':False,'shape':(2,)}", b"\x09\0"), r"version \(9, 0\)"),
        (b"", "not readable as npy"),
    ],
)
def test_npy_headers_that_make_no_sense(data: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(data)
    refused("npy", tmp_path / "a.npy", said)


def test_raw_numbers_without_a_size(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(8))
    refused("bin:V0:4", tmp_path / "a.bin", "no whole number")


def tensor(begin: Any, end: Any, shape: Any = (4,), dtype: str = "I32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "header",
    [
        {"a": tensor(0, 16), "b": tensor(8, 24)},  # overlapping
        {"a": tensor(0, 16), "b": tensor(16, 32, [8])},  # other than their shape
        {"a": tensor(0, 16), "b": tensor(20, 36)},  # a gap
        {"a": tensor(4, 20)},
        {"a": tensor(0, 16)},  # 16 bytes are nobody's
        {"a": tensor(-20, -16, dtype="U8")},
        {"a": tensor(32, 0, [-8])},
        {"a": tensor(0, 32, [-8])},
        {"a": tensor(0, 32, [8.0])},
        {"a": tensor("0", 32, [8])},
        {"a": 5},
        {"a": {"dtype": ["I32"], "shape": [8], "data_offsets": [0, 32]}},
        [1],
        {},
    ],
)
def test_safetensors_whose_offsets_are_wrong(header: Any, tmp_path: Path) -> None:
    text, path = json.dumps(header).encode(), tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(32))
    refused("safetensors", path, "a.safetensors: (not readable as safetensors|truncated)")


def test_safetensors_in_any_order_are_read(tmp_path: Path) -> None:
    header = {"b": tensor(16, 32), "__metadata__": {"x": "y"}, "a": tensor(0, 16)}
    text, path = json.dumps(header).encode(), tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + np.arange(8, dtype="<i4").tobytes())
    assert open_object("safetensors", open_file(path)).read([1]) == [{"b": 5, "a": 1}]
    save_file({"a": np.zeros(3), "b": np.zeros((3, 2), np.int8)}, path)
    assert index_object("safetensors", open_file(path)).records == 3


# --- mds ---------------------------------------------------------------------------------------


def mds(path: Path, body: bytes = bytes(8), begins: list[int] | None = None, **changed: Any) -> Path:
    described = {"version": 2, "column_names": ["a"], "column_encodings": ["int"], "column_sizes": [8]}
    text = json.dumps({**described, **changed}).encode()
    first = 12 + len(text)
    path.write_bytes(struct.pack("<III", 1, *(begins or [first, first + len(body)])) + text + body)
    return path


@pytest.mark.parametrize(
    "changed",
    [
        {"column_encodings": [5]},
        {"column_encodings": ["int", "int"]},
        {"column_names": 5},
        {"column_names": ["a", "a"], "column_encodings": ["int"] * 2, "column_sizes": [8] * 2},
        {"column_sizes": ["8"]},
        {"column_sizes": [-8]},
        {"column_sizes": None},
        {"version": 3},
        {"begins": [100, 60]},
        {"begins": [0, 8]},
    ],
)
def test_mds_descriptions_that_make_no_sense(changed: dict[str, Any], tmp_path: Path) -> None:
    refused("mds", mds(tmp_path / "a.mds", **changed), "not readable as an MDS shard")


@pytest.mark.parametrize("encoding", ["ndarray:foo", "ndarray:int32:x"])
def test_mds_columns_of_no_known_type_are_refused_where_they_are_wanted(
    encoding: str, tmp_path: Path
) -> None:
    path = mds(tmp_path / "a.mds", column_encodings=[encoding])
    assert open_object("mds", open_file(path), columns=[]).read([0]) == [{}]
    with pytest.raises(FormatError, match=r"a\.mds: not readable as an MDS shard"):
        open_object("mds", open_file(path))


def test_mds_that_speaks_of_more_than_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.mds"
    path.write_bytes(struct.pack("<I", 0xFFFFFFFF) + bytes(100))
    refused("mds", path, "truncated: 100 of 17179869184 bytes at byte 4")


def test_an_mds_value_that_does_not_decode_is_a_bad_record(tmp_path: Path) -> None:
    path = mds(tmp_path / "a.mds", b"notanum.", column_encodings=["str_decimal"])
    with pytest.raises(RecordError, match=r"record 0: ValueError: 'notanum\.' is no decimal number"):
        open_object("mds", open_file(path)).read([0])


# --- tokens ------------------------------------------------------------------------------------


def test_characters_are_no_tokens(tmp_path: Path) -> None:
    for value in ("hello", {"k": 1}, 3, None):
        (tmp_path / "a.jsonl").write_text(json.dumps({"t": [1]}) + "\n" + json.dumps({"t": value}) + "\n")
        with pytest.raises(RecordError, match=r"a\.jsonl: record 1: .* is no list of tokens"):
            index_object("jsonl", open_file(tmp_path / "a.jsonl"), tokens="t")
    for encoding in ("str", "bytes", "int"):
        path = mds(tmp_path / "a.mds", column_encodings=[encoding])
        with pytest.raises(RecordError, match=r"a\.mds: record 0: \w+ is no list of tokens"):
            index_object("mds", open_file(path), tokens="a")
    (tmp_path / "j").mkdir()
    (tmp_path / "j" / "a.jsonl").write_text('{"t":"hello"}\n')
    with pytest.raises(RecordError, match="no list of tokens"):
        build([tmp_path / "j"], tokens="t")


def test_a_null_is_no_list_of_tokens(tmp_path: Path) -> None:
    table = pa.table({"t": pa.array([[1, 2], [], None, [3]], pa.list_(pa.int32()))})
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=1)
    for format in ("parquet", "arrow"):
        with pytest.raises(RecordError, match=rf"a\.{format}: record 2: null where a list of tokens is due"):
            index_object(format, open_file(tmp_path / f"a.{format}"), tokens="t")
        assert index_object(format, open_file(tmp_path / f"a.{format}")).records == 4


# --- anything ----------------------------------------------------------------------------------

_READ = """
import random, sys
from pathlib import Path
from durable_core.data.files import open_file
from durable_core.data.readers import index_object, open_object
from durable_core.errors import DurableError
path, format, data, chance = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[1]).read_bytes(), random.Random(7)
companion = open_file(path.with_suffix(".bin")) if format == "megatron" else None
for _ in range(int(sys.argv[3])):
    spoilt = bytearray(data[: chance.choice([len(data), chance.randrange(len(data) + 1)])])
    for _ in range(chance.randint(1, 4)):
        if spoilt:
            spoilt[chance.randrange(len(spoilt))] = chance.randrange(256)
    path.write_bytes(spoilt)
    try:
        index = index_object(format, open_file(path), companion=companion)
        reader = open_object(format, open_file(path), index, companion=companion)
    except DurableError:
        continue
    for ordinal in range(min(len(reader), 50)):
        try:
            reader.read([ordinal])
        except DurableError:
            pass
    reader.close()
"""


@pytest.mark.parametrize("name", [name for name in SAMPLES if name not in ("picture", "LICENSE")])
def test_bytes_that_are_wrong_anywhere_are_an_error_of_ours_or_a_record(name: str, tmp_path: Path) -> None:
    """In a process of its own, which must not end by a signal either."""
    format, make = SAMPLES[name]
    make(tmp_path / name)
    done = subprocess.run(
        [sys.executable, "-c", _READ, str(tmp_path / name), format, "120"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
