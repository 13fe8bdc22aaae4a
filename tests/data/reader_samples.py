"""One small object of each format, beside the records it must give."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from safetensors.numpy import save_file

RECORDS = 23
ROWS = [{"id": f"r{i}", "tokens": list(range(i + 1)), "text": f"é {i}"} for i in range(RECORDS)]
COLUMNS = [{**row, "tokens": np.array(row["tokens"])} for row in ROWS]
GRID = np.arange(RECORDS * 5, dtype=np.int32).reshape(RECORDS, 5)
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()
GOLDEN = Path(__file__).parent / "mds_golden"


def parquet(path: Path) -> list[Any]:
    pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=4, compression="zstd")
    return COLUMNS


def arrow_file(path: Path) -> list[Any]:
    table = pa.Table.from_pylist(ROWS)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=6)
    return COLUMNS


def arrow_stream(path: Path) -> list[Any]:
    table = pa.Table.from_pylist(ROWS)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=6)
    return COLUMNS


def jsonl(path: Path) -> list[Any]:
    path.write_bytes(b"\n \n" + LINES.replace(b"\n", b"\r\n \n", 3) + b"\n\n")
    return ROWS


def jsonl_unended(path: Path) -> list[Any]:
    path.write_bytes(LINES.rstrip(b"\n"))
    return ROWS


def jsonl_gzip(path: Path) -> list[Any]:
    parts = [LINES[:100], LINES[100:107], LINES[107:]]  # members cut lines in two
    path.write_bytes(b"".join(gzip.compress(part) for part in parts) + b"\0" * 16)
    return ROWS


def jsonl_zstd(path: Path) -> list[Any]:
    skippable = struct.pack("<II", 0x184D2A50, 3) + b"abc"
    first, second = zstandard.compress(LINES[:300]), zstandard.compress(LINES[300:])
    path.write_bytes(first + skippable + second)
    return ROWS


def text(path: Path) -> list[Any]:
    path.write_text("one é\n\ntwo\n")
    return ["one é\n\ntwo\n"]


def paragraphs(path: Path) -> list[Any]:
    path.write_text("\n\none\nstill one\n \n\ntwo\n\n  three\nstill three\n\n")
    return ["one\nstill one", "two", "  three\nstill three"]


def blob(path: Path) -> list[Any]:
    path.write_bytes(b"\xff\x00")
    return [b"\xff\x00"]


def npy(path: Path) -> list[Any]:
    np.save(path, GRID)
    return list(GRID)


def npy_blocks(path: Path) -> list[Any]:
    np.save(path, np.arange(10, dtype=np.uint16))
    return [np.arange(0, 4), np.arange(4, 8), np.arange(8, 10)]


def raw(path: Path) -> list[Any]:
    np.arange(10, dtype=np.uint16).tofile(path)
    return [np.arange(0, 4), np.arange(4, 8), np.arange(8, 10)]


def safetensors(path: Path) -> list[Any]:
    save_file({"grid": GRID, "label": np.arange(RECORDS, dtype=np.float64)}, path)
    return [{"grid": GRID[i], "label": np.float64(i)} for i in range(RECORDS)]


def megatron(path: Path) -> list[Any]:
    sequences = [np.arange(i + 1, dtype=np.uint16) for i in range(RECORDS)]
    np.concatenate(sequences).tofile(path.with_suffix(".bin"))
    lengths = np.array([len(each) for each in sequences], dtype=np.int32)
    begins = np.concatenate(([0], np.cumsum(lengths[:-1], dtype=np.int64) * 2)).astype(np.int64)
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, RECORDS, RECORDS + 1)
    path.write_bytes(
        head + lengths.tobytes() + begins.tobytes() + np.arange(RECORDS + 1, dtype=np.int64).tobytes()
    )
    return sequences


def tar(path: Path) -> list[Any]:
    with tarfile.open(path, "w") as archive:
        for i in range(RECORDS):
            for suffix, data in (("txt", f"text {i}".encode()), ("cls.JSON", b"%d" % i)):
                if i % 3 or suffix == "txt":
                    entry = tarfile.TarInfo(f"part/sample{i:03d}.{suffix}")
                    entry.size = len(data)
                    archive.addfile(entry, io.BytesIO(data))
    expected: list[Any] = []
    for i in range(RECORDS):
        more = {"cls.json": b"%d" % i} if i % 3 else {}
        expected.append({"__key__": f"part/sample{i:03d}", "txt": f"text {i}".encode(), **more})
    return expected


def mds(path: Path) -> list[Any]:
    """What mosaicml-streaming 0.13 wrote: the first shard of twelve samples."""
    path.write_bytes((GOLDEN / "plain" / "shard.00000.mds").read_bytes())
    return [golden(i) for i in range(3)]


def mds_zstd(path: Path) -> list[Any]:
    path.write_bytes((GOLDEN / "zstd" / "shard.00000.mds.zstd").read_bytes())
    return [golden(i) for i in range(3)]


def golden(i: int) -> dict[str, Any]:
    """Sample i of the golden shards, by the formula that made it."""
    return {
        "text": f"record {i} é",
        "raw": bytes([i] * i),
        "n": -i,
        "tokens": np.arange(1, i + 2, dtype=np.uint16),
        "grid": np.full((2, 3), i, dtype=np.int32),
        "any": np.full((1, 2), i / 2),
        "score": np.float32(i / 4),
        "meta": {"i": i, "l": [1, None]},
        "big": 10**20 + i,
    }


#: file name -> (format, what makes it)
SAMPLES: dict[str, tuple[str, Callable[[Path], list[Any]]]] = {
    "a.parquet": ("parquet", parquet),
    "file.arrow": ("arrow", arrow_file),
    "stream.arrow": ("arrow", arrow_stream),
    "a.jsonl": ("jsonl", jsonl),
    "unended.jsonl": ("jsonl", jsonl_unended),
    "a.jsonl.gz": ("jsonl+gzip", jsonl_gzip),
    "a.jsonl.zst": ("jsonl+zstd", jsonl_zstd),
    "a.txt": ("text", text),
    "LICENSE": ("text:paragraphs", paragraphs),
    "picture": ("blob", blob),
    "a.npy": ("npy", npy),
    "blocks.npy": ("npy:4", npy_blocks),
    "raw.bin": ("bin:uint16:4", raw),
    "a.safetensors": ("safetensors", safetensors),
    "a.idx": ("megatron", megatron),
    "a.tar": ("tar", tar),
    "a.mds": ("mds", mds),
    "a.mds.zstd": ("mds+zstd", mds_zstd),
}


def same(a: Any, b: Any) -> bool:
    """Equal, dtype of arrays apart."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return isinstance(a, np.ndarray) and np.array_equal(a, b)
    return type(a) is type(b) and bool(a == b)
