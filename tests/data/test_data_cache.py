"""The cache of data objects: verified before it is seen, filled once, never emptied of what is in use."""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from durable_core.clock import SystemClock
from durable_core.data.cache import DataCache, Pinned
from durable_core.errors import (
    CacheError,
    CacheFullError,
    DataUnavailableError,
    DigestMismatchError,
    UsageError,
)


class Steps(SystemClock):
    """Every look at it is a second later."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        self.at += 1
        return self.at

    monotonic = now


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def content(name: str, size: int = 100) -> bytes:
    return random.Random(name).randbytes(size)


def halves(data: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: iter([data[: len(data) // 2], data[len(data) // 2 :]])


def take(cache: DataCache, name: str, size: int = 100) -> Pinned:
    data = content(name, size)
    return cache.open(digest_of(data), size, halves(data), name=name)


def holds(cache: DataCache, *names: str) -> bool:
    return [cache.contains(digest_of(content(name))) for name in names] == [True] * len(names)


@pytest.fixture
def cache(tmp_path: Path) -> DataCache:
    return DataCache(tmp_path / "cache", 350, clock=Steps())


def private_files(cache: DataCache) -> list[Path]:
    return list((cache.directory / "fills").iterdir())


def test_it_is_filled_once_and_then_hit(cache: DataCache) -> None:
    with take(cache, "a") as first, take(cache, "a") as second:
        assert first.path == second.path and first.path.read_bytes() == content("a")
        assert first.path.stat().st_mode & 0o777 == 0o444
        assert cache.usage().pinned == 1
    found, usage = cache.counts, cache.usage()
    assert (found.hits, found.misses, found.filled_bytes, found.refetches) == (1, 1, 100, 0)
    assert (usage.objects, usage.nbytes, usage.pinned, usage.filling) == (1, 100, 0, 0)
    assert private_files(cache) == [] and not (cache.directory / "room.lock").exists()


def bad(kind: str) -> bytes:
    data = content("a")
    return {
        "flipped": bytes([data[0] ^ 1]) + data[1:],
        "short": data[:-1],
        "long": data + b"x",
        "empty": b"",
    }[kind]


@pytest.mark.parametrize("kind", ["flipped", "short", "long", "empty"])
@pytest.mark.parametrize("refetch", [0, 2])
def test_what_is_not_right_is_never_published(tmp_path: Path, kind: str, refetch: int) -> None:
    cache = DataCache(tmp_path, 1000, refetch=refetch)
    data, given = content("a"), 0

    def fetch(good_at: int | None) -> Callable[[], Iterator[bytes]]:
        def chunks() -> Iterator[bytes]:
            nonlocal given
            given += 1
            assert not cache.contains(digest_of(data))
            return halves(data if given == good_at else bad(kind))()

        return chunks

    with pytest.raises(DigestMismatchError, match=rf"a\.jsonl: fetched {refetch + 1} times.*not published"):
        cache.open(digest_of(data), 100, fetch(None), name="a.jsonl")
    assert given == refetch + 1 and cache.usage().objects == 0 and private_files(cache) == []
    given = 0
    if refetch:
        with cache.open(digest_of(data), 100, fetch(refetch + 1), name="a.jsonl") as pinned:
            assert pinned.path.read_bytes() == data
        assert cache.counts.refetches == 2 * refetch


def test_an_error_of_the_source_is_its_own(cache: DataCache) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x"
        raise ConnectionResetError("the source")

    with pytest.raises(ConnectionResetError, match="the source"):
        cache.open(digest_of(content("a")), 100, broken, name="a")
    assert private_files(cache) == [] and cache.usage().objects == 0
    take(cache, "a").close()


@pytest.mark.parametrize("call", ["pwrite", "fsync", "ftruncate"])
def test_a_full_disk_is_told_and_leaves_nothing(
    cache: DataCache, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, full)
        with pytest.raises(CacheError, match="No space left"):
            take(cache, "a")
    assert private_files(cache) == [] and cache.usage().objects == 0
    take(cache, "a").close()


# --- many at once ----------------------------------------------------------------------------------


def in_threads(works: list[Callable[[], object]]) -> None:
    with ThreadPoolExecutor(len(works)) as pool:
        for done in [pool.submit(work) for work in works]:
            done.result(60)


def test_of_many_threads_one_fills(tmp_path: Path) -> None:
    cache = DataCache(tmp_path, 1000)
    data, filled, begun = content("a"), [], threading.Barrier(6)

    def fetch() -> Iterator[bytes]:
        filled.append(1)
        return halves(data)()

    def work() -> None:
        begun.wait(30)
        with cache.open(digest_of(data), 100, fetch, name="a") as pinned:
            assert pinned.path.read_bytes() == data

    in_threads([work] * 6)
    assert filled == [1] and cache.counts.hits + cache.counts.misses == 6


CHILD = """
import hashlib, os, sys
from durable_core.data.cache import DataCache
directory, mode = sys.argv[1:]
data = b"0123456789" * 10
digest = "sha256:" + hashlib.sha256(data).hexdigest()
def fetch():
    print("filling", flush=True)
    yield data[:50]
    if mode == "hang":
        sys.stdin.read()
    yield data[50:]
cache = DataCache(directory, 350)
if mode == "race":
    print("ready", flush=True)
    sys.stdin.readline()
pinned = cache.open(digest, 100, fetch, name="shared")
assert pinned.path.read_bytes() == data
print("pinned", flush=True)
if mode == "pin":
    sys.stdin.read()
"""
SHARED = b"0123456789" * 10


def child(directory: Path, mode: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(directory), mode],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)


def test_of_many_processes_one_fills(tmp_path: Path) -> None:
    children = [child(tmp_path, "race") for _ in range(4)]
    for process in children:
        assert said(process) == "ready"
    for process in children:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    told = [process.communicate(timeout=60)[0] for process in children]
    assert all(process.returncode == 0 for process in children)
    assert "".join(told).count("filling") == 1 and "".join(told).count("pinned") == 4


def test_killed_in_mid_fill_another_fills(tmp_path: Path) -> None:
    cache = DataCache(tmp_path, 350)
    filler = child(tmp_path, "hang")
    assert said(filler) == "filling"
    assert cache.usage().filling == 100 and not cache.contains(digest_of(SHARED))
    with pytest.raises(CacheFullError, match="100 being filled"):
        take(cache, "large", 300)
    waiting, got = threading.Event(), []

    class Watched(SystemClock):
        def sleep(self, seconds: float) -> None:
            waiting.set()
            super().sleep(seconds)

    def wait_for_it() -> None:
        patient = DataCache(tmp_path, 350, clock=Watched())
        with patient.open(digest_of(SHARED), 100, halves(SHARED), name="shared") as pinned:
            got.append(pinned.path.read_bytes())

    waiter = threading.Thread(target=wait_for_it)
    waiter.start()
    assert waiting.wait(30) and got == []
    kill(filler)
    waiter.join(30)
    assert got == [SHARED] and private_files(cache) == []


def test_what_a_dead_process_left_is_cleared_away(tmp_path: Path) -> None:
    filler = child(tmp_path, "hang")
    assert said(filler) == "filling"
    kill(filler)
    assert len(list((tmp_path / "fills").iterdir())) == 1
    cache = DataCache(tmp_path, 350)
    assert private_files(cache) == [] and cache.usage().filling == 0


def test_the_pin_of_a_killed_process_ends_with_it(tmp_path: Path) -> None:
    user = child(tmp_path, "pin")
    assert said(user) == "filling" and said(user) == "pinned"
    cache = DataCache(tmp_path, 350)
    assert cache.evict().objects == 1 and cache.usage().pinned == 1
    with pytest.raises(CacheFullError, match="100 are in use"):
        take(cache, "large", 300)
    kill(user)
    assert cache.evict().objects == 0 and cache.counts.evictions == 1


def test_who_waits_too_long_is_told(tmp_path: Path) -> None:
    filler = child(tmp_path, "hang")
    assert said(filler) == "filling"

    class Hasty(Steps):
        def sleep(self, seconds: float) -> None:
            """No time passes but by looking."""

    cache = DataCache(tmp_path, 350, wait_s=20, clock=Hasty())
    with pytest.raises(DataUnavailableError, match=r"shared: another process .* for 20 s"):
        cache.open(digest_of(SHARED), 100, halves(SHARED), name="shared")
    kill(filler)


# --- room ------------------------------------------------------------------------------------------


def test_the_least_recently_used_goes_first(cache: DataCache) -> None:
    for name in ("a", "b", "c", "a", "d"):
        take(cache, name).close()
    assert holds(cache, "a", "c", "d") and not cache.contains(digest_of(content("b")))
    assert (cache.counts.evictions, cache.counts.evicted_bytes) == (1, 100)
    assert cache.evict(150).objects == 1 and holds(cache, "d")


def test_what_is_in_use_is_never_evicted(cache: DataCache) -> None:
    pinned = [take(cache, name) for name in ("a", "b", "c")]
    with pytest.raises(CacheFullError, match=r"of 350 in .* 300 are in use and 0 being filled"):
        take(cache, "d")
    assert holds(cache, "a", "b", "c") and private_files(cache) == []
    pinned[1].close()
    pinned[1].close()
    take(cache, "d").close()
    assert holds(cache, "a", "c", "d") and not cache.contains(digest_of(content("b")))
    assert cache.evict().objects == 2
    with pytest.raises(CacheFullError, match=r"1000 bytes and the cache .* may hold 350"):
        take(cache, "large", 1000)


def test_the_bound_holds_whoever_fills(tmp_path: Path) -> None:
    cache, most = DataCache(tmp_path, 450), []

    def work(seed: int) -> None:
        names = random.Random(seed).choices("abcdefgh", k=12)
        for name in names:
            data = content(name)

            def fetch(data: bytes = data) -> Iterator[bytes]:
                usage = cache.usage()
                most.append(usage.nbytes + usage.filling)
                return halves(data)()

            with cache.open(digest_of(data), 100, fetch, name=name) as pinned:
                assert pinned.path.read_bytes() == data

    in_threads([lambda seed=seed: work(seed) for seed in range(4)])  # type: ignore[misc]
    assert cache.usage().nbytes <= 450 and private_files(cache) == []
    assert max(most) <= 450


def test_an_object_that_a_disk_lost_is_filled_again(cache: DataCache) -> None:
    with take(cache, "a") as pinned:
        path = pinned.path
    path.chmod(0o644)
    path.write_bytes(b"x")
    with take(cache, "a") as pinned:
        assert pinned.path.read_bytes() == content("a")
    assert cache.counts.misses == 2


def test_a_copy_is_dropped_only_if_it_is_damaged(cache: DataCache) -> None:
    digest = digest_of(content("a"))
    assert cache.drop(digest) is False
    with take(cache, "a") as pinned:
        path = pinned.path
        assert cache.drop(digest) is False and cache.contains(digest)
        path.chmod(0o644)
        path.write_bytes(bytes(100))
        assert cache.drop(digest) is True and not cache.contains(digest)
    with take(cache, "a") as pinned:
        assert pinned.path.read_bytes() == content("a")
    assert private_files(cache) == []


def test_an_empty_object_is_one(cache: DataCache) -> None:
    with cache.open(digest_of(b""), 0, lambda: iter(()), name="void") as pinned:
        assert pinned.path.read_bytes() == b""


def test_it_travels_to_workers_without_its_counts(tmp_path: Path) -> None:
    cache = DataCache(tmp_path, 350, refetch=3)
    take(cache, "a").close()
    other = pickle.loads(pickle.dumps(cache))
    take(other, "a").close()
    assert (other.counts.hits, other.counts.misses, cache.counts.misses) == (1, 0, 1)


def test_refusals(tmp_path: Path, cache: DataCache) -> None:
    for wrong in ({"max_bytes": 0}, {"max_bytes": 1, "refetch": -1}):
        with pytest.raises(UsageError):
            DataCache(tmp_path, **wrong)
    for key in ("a", "s3://bucket/a", "sha256:../../x"):
        with pytest.raises(UsageError, match="no digest"):
            cache.open(key, 1, lambda: iter([b"x"]), name="x")
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match=r"Not a directory|File exists"):
        DataCache(tmp_path / "file", 1)


def test_the_home_directory_may_be_written_as_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory called ``~`` was made where the script ran."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert DataCache("~/cache", 1 << 20).directory == tmp_path / "cache"
    assert not (tmp_path / "~").exists()
