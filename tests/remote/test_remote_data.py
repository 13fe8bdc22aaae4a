"""Data objects in a real object store: a manifest is built, verified and read through fsspec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from remote_servers import BUCKET, FaultProxy, raw_client

from durable_core.clock import SystemClock
from durable_core.data.cache import DataCache
from durable_core.data.files import open_location
from durable_core.data.manifest import build, load_lengths, save, verify
from durable_core.data.manifest.store import lengths_path
from durable_core.data.physical.retry import Retries
from durable_core.errors import DataUnavailableError, NotFoundError


class Hasty(SystemClock):
    def now(self) -> float:
        """Late enough to trust stamps."""
        return super().now() + 60

    def sleep(self, seconds: float) -> None:
        """Nothing: no test waits for a pause to pass."""


@pytest.fixture
def objects() -> dict[str, bytes]:
    return {
        f"train/part-{at}.jsonl": b"".join(
            json.dumps({"id": k, "tokens": [k] * k}).encode() + b"\n" for k in range(at + 1)
        )
        for at in range(3)
    }


@pytest.fixture
def stored(weed: str, prefix: str, objects: dict[str, bytes]) -> str:
    """The URL of a prefix that holds them."""
    for name, data in objects.items():
        raw_client(weed).put_object(Bucket=BUCKET, Key=f"{prefix}/{name}", Body=data)
    return f"s3://{BUCKET}/{prefix}?endpoint={weed}&region=us-east-1"


def put(weed: str, prefix: str, name: str, data: bytes) -> None:
    raw_client(weed).put_object(Bucket=BUCKET, Key=f"{prefix}/{name}", Body=data)


def test_a_manifest_of_a_store_is_that_of_the_same_files(
    weed: str, stored: str, prefix: str, objects: dict[str, bytes], tmp_path: Path
) -> None:
    how: dict[str, Any] = {"tokens": "tokens", "jobs": 2, "clock": Hasty()}
    path = tmp_path / "m.json"
    built = build([stored], **how)
    save(built, path)
    for name, data in objects.items():
        local = tmp_path / "corpus" / name
        local.parent.mkdir(parents=True, exist_ok=True)
        local.write_bytes(data)
    assert built.manifest == build([tmp_path / "corpus"], tokens="tokens").manifest
    assert verify(built.manifest, stored, jobs=2).require().read == 3

    for each in (path, Path(lengths_path(path, built.manifest))):
        put(weed, prefix, f"meta/{each.name}", each.read_bytes())
    assert load_lengths(stored.replace("?", "/meta/m.json?")).tolist() == load_lengths(path).tolist()

    again = build([stored.replace("?", "/train?")], root=stored, update=path, **how)  # by their ETags
    assert (again.read, again.reused) == (0, 3)
    put(weed, prefix, "train/part-1.jsonl", b'{"tokens": []}\n')
    again = build([stored.replace("?", "/train?")], root=stored, update=path, **how)
    assert (again.read, again.reused) == (1, 2) and again.manifest != built.manifest
    one = build([stored.replace("?", "/train/part-0.jsonl?")], root=stored)
    assert [item.name for item in one.manifest.objects] == ["train/part-0.jsonl"]


def test_harms_in_a_store_are_told_apart(
    weed: str, stored: str, prefix: str, objects: dict[str, bytes]
) -> None:
    manifest = build([stored]).manifest
    first, second, third = sorted(objects)
    raw_client(weed).delete_object(Bucket=BUCKET, Key=f"{prefix}/{first}")
    put(weed, prefix, "train/moved.jsonl", objects[first])
    put(weed, prefix, second, objects[third])
    put(weed, prefix, third, objects[third][:-3])
    found = {fault.name: (fault.kind, fault.other) for fault in verify(manifest, stored, jobs=3).faults}
    assert found == {
        first: ("renamed", "train/moved.jsonl"), second: ("swapped", third), third: ("truncated", None),
    }  # fmt: skip
    with pytest.raises(NotFoundError, match="holds no data files"):
        build([stored.replace(prefix, f"{prefix}-elsewhere")])


@pytest.mark.parametrize("act", ["answer", "reset", "cut-answer", "hold"])
def test_a_store_that_stumbles_is_asked_again(
    proxy: FaultProxy, stored: str, weed: str, objects: dict[str, bytes], tmp_path: Path, act: str
) -> None:
    url = stored.replace(weed, proxy.endpoint)
    patience = Retries(attempts=3, timeout_s=2 if act == "hold" else 10)
    location = open_location(url, retries=patience, clock=Hasty())
    name = min(objects)
    file = location.file(name)
    item = build([stored]).manifest.objects[0]
    read = {"when": lambda seen: seen.method == "GET" and seen.key.endswith(name)}
    proxy.add(act, times=1 if act == "hold" else 2, **read)
    cache = DataCache(tmp_path, 10_000)
    with cache.open(item.digest, item.nbytes, file.chunks, name=name) as pinned:
        assert pinned.path.read_bytes() == objects[name]
    # A read whose connection breaks is sent again once by the HTTP client itself.
    assert 1 <= location.counts.retries <= 2
    if act == "hold":
        return
    proxy.add(act, times=9, **read)
    with pytest.raises(DataUnavailableError, match=r"part-0\.jsonl: cannot be read.*3 times"):
        file.read_range(0, 5)
    assert location.counts.failures == 1


def test_a_key_that_is_refused_is_not_tried_again(
    stored: str, objects: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"key": "nobody", "secret": "wrong-wrong"}
    location = open_location(stored, options=options, clock=Hasty())
    with pytest.raises(DataUnavailableError, match="cannot be read") as caught:
        location.file(min(objects)).read_range(0, 5)
    assert location.counts.retries == 0 and "wrong-wrong" not in str(caught.value)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    location = open_location(stored, options={"default_cache_type": "none"}, clock=Hasty())
    with pytest.raises(DataUnavailableError, match="NoCredentialsError"):
        location.file(min(objects)).read_range(0, 5)
    assert location.counts.retries == 0
