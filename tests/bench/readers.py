"""What a record at random costs, per format; prints one JSON document. CPU microseconds, warm page cache.

Records hold 2 KiB of content: 1024 tokens (uint16), or 2048 characters. ``random``: uniform over the object.
``random_unheld``: the same, with room for one row group or frame only. ``window``: uniform within windows of
1024 records that are read one after another, as ``block_prp_v1`` asks. ``peer_random``: the library people
read the format with, or what it comes to by hand, on the same file in the same run. ``dataset_*``: through
``RecordDataset`` (by id, of a verified manifest). ``open_ms``: to open an object whose index is kept;
``index_ms``: to make the index.

    python -m tests.bench.readers [--records 8192] [--reads 4096]
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from safetensors import safe_open
from safetensors.numpy import save_file

from durable_core.data.files import open_file
from durable_core.data.manifest import build
from durable_core.data.readers import Held, index_object, open_object
from durable_core.data.records import RecordDataset

TOKENS = 1024
WINDOW = 1024
RUNS = 3

Read = Callable[[int], Any]


def npy(path: Path, records: int) -> Read:
    np.save(path, np.random.default_rng(0).integers(0, 50_000, (records, TOKENS), dtype=np.uint16))
    mapped = np.load(path, mmap_mode="r")
    return lambda i: np.array(mapped[i])


def safetensors(path: Path, records: int) -> Read:
    save_file({"t": np.random.default_rng(0).integers(0, 50_000, (records, TOKENS), dtype=np.uint16)}, path)
    opened = safe_open(path, framework="np").get_slice("t")
    return lambda i: opened[i : i + 1]


def _texts(records: int) -> list[str]:
    letters = np.frombuffer(b"abcdefgh ijklmno", np.uint8)
    drawn = np.random.default_rng(0).integers(0, 16, (records, 2048))
    return [bytes(letters[row]).decode() for row in drawn]


def _lists(records: int) -> list[dict[str, Any]]:
    drawn = np.random.default_rng(0).integers(0, 50_000, (records, TOKENS)).tolist()
    return [{"id": i, "tokens": tokens} for i, tokens in enumerate(drawn)]


def jsonl(path: Path, records: int) -> Read:
    lines = [json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(_texts(records))]
    path.write_text("".join(lines))
    offsets = np.concatenate(([0], np.cumsum([len(line) for line in lines]))).tolist()
    stream = path.open("rb", buffering=0)

    def read(i: int) -> Any:
        stream.seek(offsets[i])
        return json.loads(stream.read(offsets[i + 1] - offsets[i]))

    return read


def jsonl_zstd(path: Path, records: int) -> Read:
    """A frame every 64 records."""
    lines = [json.dumps({"id": i, "text": text}).encode() + b"\n" for i, text in enumerate(_texts(records))]
    frames = [zstandard.compress(b"".join(lines[at : at + 64])) for at in range(0, records, 64)]
    path.write_bytes(b"".join(frames))
    return lambda i: json.loads(zstandard.decompress(frames[i // 64]).split(b"\n")[i % 64])


def arrow(path: Path, records: int) -> Read:
    table = pa.table({"id": range(records), "text": _texts(records)})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    from datasets import Dataset

    opened = Dataset.from_file(str(_as_stream(path)))
    return lambda i: opened[i]


def _as_stream(path: Path) -> Path:
    """What ``datasets`` reads is a stream."""
    table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    stream = path.with_suffix(".stream")
    with pa.OSFile(str(stream), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    return stream


def parquet(path: Path, records: int) -> Read:
    table = pa.table({"id": range(records), "text": _texts(records)})
    pq.write_table(table, path, row_group_size=100, compression="zstd")
    opened = pq.ParquetFile(path)
    return lambda i: opened.read_row_group(i // 100).slice(i % 100, 1).to_pylist()[0]


def arrow_tokens(path: Path, records: int) -> Read:
    rows = _lists(records)
    table = pa.table({"id": [row["id"] for row in rows], "tokens": [row["tokens"] for row in rows]})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    from datasets import Dataset

    opened = Dataset.from_file(str(_as_stream(path))).with_format("numpy")
    return lambda i: opened[i]


def tar(path: Path, records: int) -> Read:
    with tarfile.open(path, "w") as archive:
        for i, text in enumerate(_texts(records)):
            entry = tarfile.TarInfo(f"{i:08d}.txt")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    opened = tarfile.open(path)  # noqa: SIM115  # for as long as it is measured
    members = opened.getmembers()
    return lambda i: opened.extractfile(members[i]).read()  # type: ignore[union-attr]


FORMATS: dict[str, tuple[str, Callable[[Path, int], Read], str]] = {
    "npy": ("a.npy", npy, "numpy memmap, copied"),
    "safetensors": ("a.safetensors", safetensors, "safetensors slice"),
    "jsonl": ("a.jsonl", jsonl, "seek, read, json.loads"),
    "jsonl_zstd": ("a.jsonl.zst", jsonl_zstd, "frame decompressed per record"),
    "arrow": ("a.arrow", arrow, "datasets, row as dict"),
    "arrow_tokens": ("tokens.arrow", arrow_tokens, "datasets, numpy format"),
    "parquet": ("a.parquet", parquet, "pyarrow, row group per record"),
    "tar": ("a.tar", tar, "tarfile with its members"),
}


def per_read(read: Read, ids: Sequence[int]) -> float:
    before = time.process_time()
    for i in ids:
        read(i)
    return (time.process_time() - before) / len(ids) * 1e6


def compared(reads: dict[str, tuple[Read, Sequence[int]]]) -> dict[str, float]:
    """The least of some interleaved runs of each, in CPU microseconds a read."""
    least = dict.fromkeys(reads, float("inf"))
    for _ in range(RUNS):
        for name, (read, ids) in reads.items():
            least[name] = min(least[name], per_read(read, ids))
    return {name: round(value, 2) for name, value in least.items()}


def timed_ms(action: Callable[[], Any]) -> tuple[Any, float]:
    before = time.process_time()
    result = action()
    return result, round((time.process_time() - before) * 1e3, 3)


def measured(kind: str, records: int, reads: int, directory: Path) -> dict[str, Any]:
    name, make, peer_is = FORMATS[kind]
    peer = make(directory / name, records)
    manifest = build([directory / name]).manifest
    assert manifest.about.format is not None
    file = open_file(directory / name)
    index, index_ms = timed_ms(lambda: index_object(manifest.about.format or "", file))
    reader, open_ms = timed_ms(lambda: open_object(manifest.about.format or "", file, index))
    unheld = open_object(manifest.about.format, file, index, held=Held(0))
    dataset = RecordDataset(manifest, directory, max_open=4)
    rng = np.random.default_rng(1)
    anywhere = rng.integers(0, records, reads).tolist()
    starts = np.arange(0, records, WINDOW)
    windows = [i for at in starts for i in (at + rng.permutation(min(WINDOW, records - at))).tolist()][:reads]
    out: dict[str, Any] = compared(
        {
            "random": (lambda i: reader.read([i]), anywhere),
            "peer_random": (peer, anywhere),
            "dataset_random": (dataset.__getitem__, anywhere),
            "random_unheld": (lambda i: unheld.read([i]), anywhere[:200]),
            "window": (lambda i: reader.read([i]), windows),
            "dataset_window": (dataset.__getitem__, windows),
        }
    )
    for each in (reader, unheld, dataset):
        each.close()
    return {**out, "open_ms": open_ms, "index_ms": index_ms, "peer": peer_is}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=8192)
    parser.add_argument("--reads", type=int, default=4096)
    parser.add_argument("--only", choices=FORMATS, nargs="*", default=list(FORMATS))
    given = parser.parse_args()
    out: dict[str, Any] = {"records": given.records, "reads": given.reads, "unit": "CPU us a record"}
    for kind in given.only:
        with tempfile.TemporaryDirectory() as directory:
            out[kind] = measured(kind, given.records, given.reads, Path(directory))
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
