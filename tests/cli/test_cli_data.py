"""durable data: manifests built, checked and shown; the cache looked at. No torch is needed for it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_runs import Durable

from durable_core import DurableSession
from durable_core.data import DurableLoader
from durable_core.data.cache import DataCache
from durable_core.data.manifest import load, load_lengths
from durable_core.data.records import RecordDataset


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "corpus"
    root.mkdir()
    for at in range(3):
        rows = [{"id": f"{at}-{k}", "tokens": list(range(k))} for k in range(at + 2)]
        (root / f"part-{at}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "README").write_text("about it")
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    return root


DIGEST = "sha256:" + "d" * 64


def test_build_records_all_that_is_said(durable: Durable, corpus: Path) -> None:
    texts = ["--dataset-version", "7", "--schema-version", "2", "--split", "train", "--filter", "lang>0.9"]
    texts += ["--dedup", "minhash", "--transform", "graph-3", "--packing", "greedy-v1"]
    more = ["--derived-from", DIGEST, "--used", DIGEST, "--activity", "clean.py@3", "--agent", "team"]
    more += ["--mixture", "web 0.7", "--no-replacement", "--exhaustion", "repeat", "--access", "internal"]
    more += ["--scope", "research", "--property", "note=a=b", "--key", "id", "--tokens", "tokens"]
    more += ["--tokenizer", "tokenizer.json", "--tokenizer-version", "t1", "--vocabulary", "tokenizer.json"]
    found = durable("data", "build", corpus, "-o", "m.json", *texts, *more, "--jobs", 2, "--json")
    assert found.code == 0 and found.err == ""
    manifest = load("m.json")
    expected = {
        "manifest": "m.json", "dataset_id": manifest.dataset_id, "version": 2, "records": 9, "count": 3,
        "read": 3, "reused": 0, "left_out": ["README"], "twins": [], "empty": [], "tokens": 1 + 3 + 6,
    }  # fmt: skip
    assert {**found.document, **expected} == found.document
    about = manifest.about
    digest = "sha256:" + hashlib.sha256(b"{}").hexdigest()
    assert (about.dataset_version, about.schema_version, about.split, about.filter) == (
        "7",
        "2",
        "train",
        "lang>0.9",
    )
    assert (about.dedup, about.transform, about.packing) == ("minhash", "graph-3", "greedy-v1")
    assert about.provenance.derived_from == about.provenance.used == (DIGEST,)
    assert (about.provenance.activity, about.provenance.agent) == ("clean.py@3", "team")
    assert (about.tokenizer.version, about.tokenizer.digest, about.tokenizer.vocabulary) == (
        "t1",
        digest,
        digest,
    )
    assert (about.mixture.policy, about.mixture.replacement, about.mixture.exhaustion) == (
        "web 0.7",
        False,
        "repeat",
    )
    assert (about.access.policy, about.access.scope) == ("internal", "research")
    assert about.properties == {"note": "a=b"} and about.sample_ids.column == "id"
    assert load_lengths("m.json").tolist() == [0, 1, 0, 1, 2, 0, 1, 2, 3]


def test_for_people_it_says_what_was_left_out(durable: Durable, corpus: Path) -> None:
    (corpus / "part-9.jsonl").write_text("")
    (corpus / "twin.jsonl").write_bytes((corpus / "part-0.jsonl").read_bytes())
    found = durable("data", "build", "corpus", "-o", "m.json")
    assert found.code == 0 and found.out.splitlines()[0] == load("m.json").dataset_id
    assert "left out: README" in found.out and "without a record: part-9.jsonl" in found.out
    assert "with the content of another: twin.jsonl (part-0.jsonl)" in found.out


def test_update_reads_what_changed(durable: Durable, corpus: Path) -> None:
    for path in corpus.iterdir():
        os.utime(path, (1, 1))
    durable("data", "build", "corpus", "-o", "m.json")
    found = durable("data", "build", "corpus", "-o", "m.json", "--update", "m.json", "--json")
    assert found.code == 0 and found.document["read"] + found.document["reused"] == 3
    assert durable("data", "build", "corpus", "-o", "n.json", "--update", "gone.json").code == 3


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--derived-from", "corpus/latest"], 2, "no identity"),
        (["--property", "x"], 2, "NAME=TEXT"),
        (["--format", "avro"], 2, "avro"),
        (["--key", "nothing"], 5, "part-0.jsonl"),
        (["--key", "nothing"], 5, "no column 'nothing'; it has id, tokens"),
        (["--lengths"], 2, "--tokens COLUMN"),
        (["--format", "npy:block=128"], 2, "as in npy:128"),
        (["--exhaustion", "wrap"], 2, "wrap"),
        (["--root", "elsewhere"], 2, "outside the dataset's root"),
        (["--tokenizer", "gone.json"], 3, "gone.json"),
        (["-o", "no/such/directory.json"], 2, "cannot write"),
    ],
)
def test_what_build_refuses(
    durable: Durable, corpus: Path, options: list[str], code: int, words: str
) -> None:
    found = durable("data", "build", "corpus", "-o", "m.json", *options, "--json")
    assert (
        found.code == code and words in found.document["error"]["message"] + found.document["error"]["hint"]
    )
    assert not Path("m.json").exists()


def test_what_is_hardly_meant_is_said(durable: Durable, corpus: Path) -> None:
    np.save("numbers.npy", np.arange(10))
    assert "--format npy:BLOCK" in durable("data", "build", "numbers.npy", "-o", "m.json").out
    blocks = durable("data", "build", "numbers.npy", "-o", "m.json", "--format", "npy:4", "--json")
    assert not blocks.document["notes"]
    Path("nothing").mkdir()
    found = durable("data", "build", "nothing", "-o", "m.json")
    assert found.code == 3 and "holds no data files" in found.err


def test_verify_tells_harms_apart(durable: Durable, corpus: Path) -> None:
    durable("data", "build", "corpus", "-o", "m.json", "--tokens", "tokens")
    verify = ("data", "verify", "m.json", "--root", "corpus")
    assert durable(*verify).code == 0
    whole = durable(*verify, "--sample", "34%", "--jobs", 2, "--json").document
    assert whole["ok"] and (whole["objects"], whole["read"]) == (3, 2)
    (corpus / "part-1.jsonl").rename(corpus / "part-x.jsonl")
    (corpus / "part-2.jsonl").write_text("{}\n")
    found = durable(*verify, "--json")
    assert found.code == 5 and not found.document["ok"]
    assert [(fault["name"], fault["kind"]) for fault in found.document["faults"]] == [
        ("part-1.jsonl", "renamed"), ("part-2.jsonl", "truncated"),
    ]  # fmt: skip
    shown = durable(*verify).out
    assert "part-x.jsonl" in shown and "2 at fault" in shown
    for wrong in ("0", "x", "200%"):
        assert durable(*verify, "--sample", wrong).code == 2
    for lengths in corpus.parent.glob("*.npy"):
        lengths.unlink()
    assert durable(*verify).code == 5


def test_objects_are_looked_for_where_they_were(durable: Durable, corpus: Path) -> None:
    sources = [f"corpus/part-{at}.jsonl" for at in range(3)]
    built = durable("data", "build", *sources, "-o", "m.json")
    assert f"names are relative to {corpus}" in built.out
    assert durable("data", "verify", "m.json").code == 0
    assert RecordDataset.open("m.json")[0]["id"] == "0-0"
    (corpus.parent / "moved").mkdir()
    for path in [corpus, *corpus.parent.glob("m.json*")]:
        path.rename(corpus.parent / "moved" / path.name)
    assert durable("data", "verify", "moved/m.json").code == 0  # relative to the manifest
    Path("moved/m.json.stat.json").unlink()
    found = durable("data", "verify", "moved/m.json")
    assert found.code == 5
    assert "all objects are under moved/corpus: pass --root moved/corpus" in found.out
    assert durable("data", "verify", "moved/m.json", "--root", "moved/corpus").code == 0


def test_objects_elsewhere_are_found_without_being_below_the_manifest(durable: Durable, corpus: Path) -> None:
    Path("manifests").mkdir()
    durable("data", "build", "corpus", "-o", "manifests/m.json")
    assert durable("data", "verify", "manifests/m.json").code == 0
    corpus.rename(corpus.parent / "gone")
    found = durable("data", "verify", "manifests/m.json", "--json")
    assert found.code == 5 and found.document["root"] == "manifests"


def test_a_manifest_edited_by_hand_is_told(durable: Durable, corpus: Path) -> None:
    durable("data", "build", "corpus", "-o", "corpus/m.json")
    assert durable("data", "verify", "corpus/m.json").code == 0  # the objects are beside it
    path = corpus / "m.json"
    path.write_text(path.read_text().replace('"split": null', '"split": "test"'))
    for command in ("verify", "show"):
        found = durable("data", command, "corpus/m.json", "--json")
        assert found.code == 5 and "edited" in found.document["error"]["message"]
    path.write_text("{")
    assert durable("data", "show", path).code == 5
    path.unlink()
    assert durable("data", "show", path).code == 3


def test_show_says_what_it_was_made_of(durable: Durable, corpus: Path) -> None:
    raw = durable("data", "build", "corpus", "-o", "raw.json", "--activity", "crawl", "--json").document
    made = ("--derived-from", raw["dataset_id"], "--derived-from", DIGEST, "--split", "train")
    clean = durable("data", "build", "corpus/part-0.jsonl", "-o", "clean.json", *made, "--json").document
    found = durable("data", "show", "clean.json", "--json").document
    assert found["split"] == "train" and found["dedup"] is None and found["records"] == 2
    lineage = [(each["dataset_id"], each["depth"], each["activity"]) for each in found["lineage"]]
    assert lineage[0] == (clean["dataset_id"], 0, None)
    assert set(lineage[1:]) == {(raw["dataset_id"], 1, "crawl"), (DIGEST, 1, None)}
    by_id = durable("data", "show", clean["dataset_id"], "--json").document
    assert by_id["dataset_id"] == clean["dataset_id"] and by_id["manifest"] == "clean.json"
    shown = durable("data", "show", clean["dataset_id"], "--among", ".").out
    assert "crawl" in shown and "not at hand" in shown and "part-0.jsonl" in shown
    assert durable("data", "show", DIGEST).code == 3
    assert durable("data", "show", "sha256:12").code == 2


def test_a_checkpoint_leads_to_what_it_consumed(durable: Durable, corpus: Path) -> None:
    raw = durable("data", "build", "corpus", "-o", "raw.json", "--activity", "crawl", "--json").document
    made = ("--derived-from", raw["dataset_id"], "--transform", "graph-3", "--key", "id")
    durable("data", "build", "corpus", "-o", "train.json", *made)
    model = torch.nn.Linear(1, 1)
    loader = DurableLoader(RecordDataset.open("train.json", "corpus"), batch_size=3, collate_fn=len)
    state = {"model": model, "loader": loader}
    with DurableSession.open("run", state=state, every_n_steps=1) as session:
        for _ in loader:
            session.step()
            session.flush()
    cursor = durable("show", "run", "--json").document["cursor"]
    found = durable("data", "show", cursor["dataset_id"], "--json").document
    assert found["manifest"] == "train.json" and found["transform"] == "graph-3"
    assert [each["activity"] for each in found["lineage"]] == [None, "crawl"]


def test_cache_shows_and_makes_room(durable: Durable, tmp_path: Path) -> None:
    assert durable("data", "cache", tmp_path).code == 2
    cache = DataCache(tmp_path / "cache", 1000)
    pins = []
    for data in (b"a" * 100, b"b" * 200):
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        pins.append(cache.open(digest, len(data), lambda data=data: [data], name="x"))  # type: ignore[misc]
    found = durable("data", "cache", cache.directory, "--json").document
    assert (found["objects"], found["bytes"], found["pinned"], found["evicted"]) == (2, 300, 2, 0)
    pins[0].close()
    found = durable("data", "cache", cache.directory, "--evict-to", "1B", "--json").document
    assert (found["objects"], found["pinned"], found["evicted_bytes"]) == (1, 1, 100)
    assert "1 in use" in durable("data", "cache", cache.directory, "--evict-to", "1B").out


def test_it_needs_no_torch(corpus: Path) -> None:
    code = (
        "import sys; from durable_core.cli.app import run; "
        "assert run(['data', 'build', 'corpus', '-o', 'm.json']) == 0; "
        "assert run(['data', 'verify', 'm.json', '--root', 'corpus']) == 0; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, stdout=subprocess.DEVNULL)
