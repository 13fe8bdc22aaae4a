"""Building: each object once, only what may have changed, whole or not at all; bad input by its name."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from durable_core.clock import SystemClock
from durable_core.data.files import LocalFile
from durable_core.data.manifest import Built, Tokenizer, build, load, load_lengths, save
from durable_core.data.manifest.store import lengths_path, stats_path
from durable_core.errors import (
    CorruptError,
    DigestMismatchError,
    FormatError,
    NotFoundError,
    RecordError,
    UsageError,
)


class Later(SystemClock):
    """So late that what was just written is trusted to show a change."""

    def now(self) -> float:
        return super().now() + 60


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    root = tmp_path / "corpus"
    root.mkdir()
    for at in range(4):
        rows = [{"id": f"{at}-{k}", "text": "x" * k, "tokens": list(range(k))} for k in range(at + 1)]
        (root / f"part-{at}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the objects whose content is read to be hashed."""
    names: list[str] = []
    chunks = LocalFile.chunks
    monkeypatch.setattr(LocalFile, "chunks", lambda self, *a: (names.append(self.name), chunks(self, *a))[1])
    yield names


def test_the_format_says_how_many_records(corpus: Path) -> None:
    built = build([corpus])
    assert built.manifest.about.format == "jsonl" and built.manifest.about.compression is None
    assert [(o.name, o.start, o.records) for o in built.manifest.objects] == [
        ("part-0.jsonl", 0, 1), ("part-1.jsonl", 1, 2), ("part-2.jsonl", 3, 3), ("part-3.jsonl", 6, 4),
    ]  # fmt: skip
    assert (built.read, built.reused, built.left_out, built.twins, built.empty) == (4, 0, (), (), ())


def test_jobs_make_no_difference(corpus: Path) -> None:
    ids = {build([corpus], jobs=jobs, tokens="tokens").manifest.dataset_id for jobs in (1, 2, 7)}
    assert len(ids) == 1
    with pytest.raises(UsageError, match="jobs"):
        build([corpus], jobs=0)


def test_of_a_directory_the_objects_of_its_format_are_taken(corpus: Path) -> None:
    (corpus / "_SUCCESS").touch()
    (corpus / ".hidden.jsonl").write_text("{")
    (corpus / "deep").mkdir()
    (corpus / "deep" / "more.jsonl").write_text("{}\n")
    built = build([corpus])
    assert built.left_out == (".hidden.jsonl", "_SUCCESS")
    assert built.manifest.objects[0].name == "deep/more.jsonl"
    (corpus / "notes.txt").write_text("x")
    with pytest.raises(UsageError, match=r"jsonl .*and text \(notes\.txt\)"):
        build([corpus])
    assert "notes.txt" in build([corpus], format="jsonl").left_out
    assert build([corpus / "notes.txt", corpus / "deep"], format="text:lines").manifest.records == 2
    (corpus / "deep" / "more.jsonl").rename(corpus / "deep" / "more")
    with pytest.raises(UsageError, match="no format that is known"):
        build([corpus / "deep"])
    with pytest.raises(UsageError, match="deep/more: its name does not say"):
        build([corpus / "deep" / "more"], root=corpus)


def test_a_manifest_among_its_objects_is_none_of_them(corpus: Path) -> None:
    for form in ("blob", "jsonl"):
        before = build([corpus], format=form, tokens="tokens" if form == "jsonl" else None)
        save(before, corpus / "manifest.json")
        again = build([corpus], format=form, tokens="tokens" if form == "jsonl" else None)
        assert again.manifest == before.manifest and "manifest.json" in again.left_out


def test_sources_have_one_root(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = build([corpus]).manifest
    assert build(sorted(corpus.iterdir())).manifest == whole
    monkeypatch.chdir(corpus.parent)
    assert build(["corpus"]).manifest == build(["."], root="corpus").manifest == whole
    assert [o.name for o in build(["corpus/part-0.jsonl", "corpus"]).manifest.objects] == [
        o.name for o in whole.objects
    ]
    with pytest.raises(UsageError, match="without a source"):
        build([])
    with pytest.raises(UsageError, match="paths and URLs"):
        build(["corpus", "memory://x"])


def test_bad_input_is_named(corpus: Path) -> None:
    (corpus / "part-2.jsonl").write_text('{"tokens": [1]}\n{"tokens": 3}\n')
    with pytest.raises((RecordError, FormatError), match=r"part-2\.jsonl.*record 1"):
        build([corpus], tokens="tokens")
    for path in corpus.iterdir():
        path.write_text("")
    with pytest.raises(UsageError, match="no records"):
        build([corpus])
    assert build([corpus], allow_empty=True).manifest.records == 0
    with pytest.raises(UsageError, match="schema is found by reading"):
        build([corpus], schema="x")
    for path in corpus.iterdir():
        path.unlink()
    with pytest.raises(NotFoundError, match="holds no data files"):
        build([corpus])


def test_empty_objects_and_twins_are_allowed_and_told(corpus: Path) -> None:
    (corpus / "void.jsonl").touch()
    (corpus / "twin.jsonl").write_bytes((corpus / "part-1.jsonl").read_bytes())
    built = build([corpus])
    assert built.empty == ("void.jsonl",) and built.twins == (("twin.jsonl", "part-1.jsonl"),)
    assert built.manifest.records == 12


def test_a_key_names_one_record_of_the_whole_dataset(corpus: Path) -> None:
    manifest = build([corpus], key="id").manifest
    assert manifest.about.sample_ids.column == "id"
    assert manifest.dataset_id != build([corpus]).manifest.dataset_id
    (corpus / "part-9.jsonl").write_text('{"id": "new"}\n{"id": "1-1"}\n')
    with pytest.raises(FormatError, match=r"part-9\.jsonl.*record 1.*'1-1'.*part-1\.jsonl record 1"):
        build([corpus], key="id")


@pytest.mark.parametrize("how", ["ab", "r+b"])
def test_an_object_that_changes_while_it_is_read_is_refused(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    chunks = LocalFile.chunks

    def changing(self: LocalFile, *given: Any) -> Iterator[bytes]:
        yield from chunks(self, *given)
        os.utime(self.path or "", (1, 1))
        with Path(self.path or "").open(how) as stream:
            stream.write(b"{}\n" if how == "ab" else b" ")

    monkeypatch.setattr(LocalFile, "chunks", changing)
    with pytest.raises(UsageError, match=r"part-0\.jsonl changed while it was read"):
        build([corpus])


# --- lengths ---------------------------------------------------------------------------------------


def test_lengths_lie_beside_it_and_belong_to_it(corpus: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    built = build([corpus], tokens="tokens")
    save(built, path)
    lengths = load_lengths(path)
    assert lengths.dtype == np.uint32 and lengths.tolist() == [0, 0, 1, 0, 1, 2, 0, 1, 2, 3]
    about = load(path).about.lengths
    assert about is not None and (about.total, about.source) == (10, "column tokens")
    beside = Path(lengths_path(path, built.manifest))
    data = bytearray(beside.read_bytes())
    data[-1] ^= 1
    beside.write_bytes(data)
    with pytest.raises(DigestMismatchError, match=r"lengths\.npy"):
        load_lengths(path)
    beside.write_bytes(data[:-4])
    with pytest.raises(FormatError, match=r"lengths\.npy"):
        load_lengths(path)
    beside.unlink()
    with pytest.raises(CorruptError, match="missing"):
        load_lengths(path)
    with pytest.raises(UsageError, match="written to a directory"):
        save(built, "s3://bucket/m.json")
    with pytest.raises(UsageError, match="has no lengths"):
        save(build([corpus]), path)
        load_lengths(path)


def test_a_tokenizer_can_measure(corpus: Path) -> None:
    tokenizer = Tokenizer("letters", "sha256:" + "1" * 64)
    built = build([corpus], measure=lambda row: len(row["text"]) + 1, tokenizer=tokenizer, jobs=2)
    assert built.lengths is not None and built.lengths.tolist() == [1, 1, 2, 1, 2, 3, 1, 2, 3, 4]
    for wrong in (-1, 2**32):
        with pytest.raises(FormatError, match=r"part-0\.jsonl: record 0 has"):
            build([corpus], measure=lambda _, wrong=wrong: wrong)
    with pytest.raises(UsageError, match="does not know"):
        build([corpus], lengths=True)


# --- again -----------------------------------------------------------------------------------------


def built_at(path: Path, corpus: Path, **how: Any) -> Built:
    built = build([corpus], clock=Later(), **how)
    save(built, path)
    return built


@pytest.mark.parametrize("how", [{}, {"tokens": "tokens"}])
def test_only_what_may_have_changed_is_read_again(
    corpus: Path, tmp_path: Path, opened: list[str], how: dict[str, Any]
) -> None:
    path = tmp_path / "m.json"
    first = built_at(path, corpus, **how)
    opened.clear()
    same = built_at(path, corpus, update=path, **how)
    assert opened == [] and (same.read, same.reused) == (0, 4) and same.manifest == first.manifest
    (corpus / "part-1.jsonl").write_text('{"tokens": [1, 2]}\n')
    (corpus / "part-0.jsonl").unlink()
    (corpus / "part-7.jsonl").write_text('{"tokens": [1]}\n')
    again = built_at(path, corpus, update=path, **how)
    assert sorted(opened) == ["part-1.jsonl", "part-7.jsonl"] and (again.read, again.reused) == (2, 2)
    afresh = build([corpus], **how)
    assert again.manifest == afresh.manifest == load(path)
    if how:
        assert load_lengths(path).tolist() == afresh.lengths.tolist()  # type: ignore[union-attr]
        assert len(list(tmp_path.glob("*.npy"))) == 1


def test_an_edit_that_hides_behind_its_old_time_is_seen(corpus: Path, tmp_path: Path) -> None:
    path, part = tmp_path / "m.json", corpus / "part-0.jsonl"
    built_at(path, corpus)
    before = part.stat()
    part.write_bytes(part.read_bytes().replace(b"0-0", b"0-9"))
    os.utime(part, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert build([corpus], update=path).read == 1


def test_what_was_written_just_now_is_not_trusted(corpus: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    save(build([corpus]), path)
    assert build([corpus], update=path).read == 4


def test_what_changes_while_others_are_read_is_not_trusted(corpus: Path, tmp_path: Path) -> None:
    """A stamp is taken before the content is read: both may lie in one tick of a coarse clock."""

    class Slow(SystemClock):
        times = iter([0.0, 60.0, 120.0])

        def now(self) -> float:
            return super().now() + next(self.times)

    path = tmp_path / "m.json"
    save(build([corpus], clock=Slow()), path)
    assert build([corpus], update=path).read == 4


@pytest.mark.parametrize("how", [{"key": "id"}, {"tokens": "tokens"}, {"format": "text:lines"}])
def test_another_way_of_reading_reads_all(corpus: Path, tmp_path: Path, how: dict[str, Any]) -> None:
    path = tmp_path / "m.json"
    built_at(path, corpus)
    assert build([corpus], update=path, **how).read == 4


def test_what_is_not_kept_is_read_again(corpus: Path, tmp_path: Path) -> None:
    """Keys, and what a function of the caller said."""
    path = tmp_path / "m.json"
    built_at(path, corpus, key="id")
    assert build([corpus], update=path, key="id").read == 4
    built_at(path, corpus, measure=lambda row: len(row["tokens"]))
    assert build([corpus], update=path, measure=lambda row: 7).read == 4
    tokenizer = Tokenizer(digest="sha256:" + "1" * 64)
    built_at(path, corpus, measure=lambda row: len(row["tokens"]), tokenizer=tokenizer)
    assert build([corpus], update=path, measure=lambda row: 7, tokenizer=tokenizer).read == 0
    built_at(path, corpus, count=len)
    assert build([corpus], update=path, count=len).read == 4


def test_stamps_of_another_manifest_are_not_believed(corpus: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    built_at(path, corpus)
    stats = json.loads(stats_path(path).read_text())
    stats_path(path).write_text(json.dumps({**stats, "dataset_id": "sha256:" + "0" * 64}))
    assert build([corpus], update=path).read == 4
    stats_path(path).write_text("{}")
    with pytest.raises(FormatError, match=r"stat\.json"):
        build([corpus], update=path)
    stats_path(path).unlink()
    assert build([corpus], update=path).read == 4


# --- killed ----------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from durable_core.data import scratch
from durable_core.data.manifest import build, save
at, path, corpus = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
built = build([corpus], tokens="tokens")
calls = 0
def dying(name, real):
    def call(*given, **named):
        global calls
        calls += 1
        if calls == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*given, **named)
    return call
os.fsync = dying("fsync", os.fsync)
Path.replace = dying("replace", Path.replace)
Path.unlink = dying("unlink", Path.unlink)
save(built, path)
"""


def test_killed_at_any_point_there_is_the_old_manifest_or_the_new(corpus: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    old = built_at(path, corpus, tokens="tokens")
    (corpus / "part-0.jsonl").write_text('{"tokens": [1, 2, 3]}\n')
    new = build([corpus], tokens="tokens")
    assert old.lengths is not None and new.lengths is not None
    seen = set()
    at = 0
    while True:
        at += 1
        save(old, path)
        command = [sys.executable, "-c", KILLED, str(at), str(path), str(corpus)]
        code = subprocess.run(command, timeout=60, check=False).returncode
        manifest = load(path)
        seen.add(manifest.dataset_id)
        expected = old if manifest == old.manifest else new
        assert manifest == expected.manifest
        assert load_lengths(path).tolist() == expected.lengths.tolist()  # type: ignore[union-attr]
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert at > 6 and seen == {old.manifest.dataset_id, new.manifest.dataset_id}
    save(old, path)
    left = {path.name, stats_path(path).name, Path(lengths_path(path, old.manifest)).name}
    assert {each.name for each in tmp_path.iterdir()} == left | {"corpus"}


def test_two_builds_of_one_manifest_leave_one_of_them(corpus: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    kinds = [build([corpus], tokens="tokens"), build([corpus], split="b")]
    threads = [threading.Thread(target=save, args=(kinds[k % 2], path)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    manifest = load(path)
    assert manifest in [each.manifest for each in kinds]
    assert manifest.about.lengths is None or len(load_lengths(path)) == manifest.records


def test_a_compressed_format_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"{}\n{}\n"))
    about = build([tmp_path / "a.jsonl.gz"]).manifest.about
    assert (about.format, about.compression) == ("jsonl+gzip", "gzip")


def test_a_companion_is_an_object_without_records(tmp_path: Path) -> None:
    """Of x.idx the tokens are in x.bin: another x.bin is another dataset."""
    header = b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little") + bytes([8])  # version 1, dtype code 8: uint16
    sizes, pointers, documents = np.array([2, 3], "<i4"), np.array([0, 4], "<i8"), np.array([0, 1, 2], "<i8")
    counts = (2).to_bytes(8, "little") + (3).to_bytes(8, "little")
    body = sizes.tobytes() + pointers.tobytes() + documents.tobytes()
    (tmp_path / "x.idx").write_bytes(header + counts + body)
    (tmp_path / "x.bin").write_bytes(np.arange(5, dtype="<u2").tobytes())
    built = build([tmp_path], lengths=True)
    assert [(o.name, o.records) for o in built.manifest.objects] == [("x.bin", 0), ("x.idx", 2)]
    assert built.left_out == built.empty == ()
    assert built.lengths is not None and built.lengths.tolist() == [2, 3]
    (tmp_path / "x.bin").write_bytes(np.arange(1, 6, dtype="<u2").tobytes())
    assert build([tmp_path], lengths=True).manifest.dataset_id != built.manifest.dataset_id
