"""Locations: ranges of local and remote objects; attempts bounded, jittered and counted."""

from __future__ import annotations

import asyncio
import io
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem

from durable_core.clock import SystemClock
from durable_core.data import stores
from durable_core.data.files import File, Location, open_file, open_location
from durable_core.data.physical.retry import Retries, RetryCounts, retried
from durable_core.errors import (
    DataUnavailableError,
    FormatError,
    ObjectNotFoundError,
    UnsupportedError,
    UsageError,
)

DATA = bytes(range(256)) * 8


class Patient(SystemClock):
    """Pauses are noted, not made."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


class Flaky(AsyncFileSystem):  # type: ignore[misc]  # no type information
    """Objects in memory; the next calls fail as ``faults`` says, ``None`` being one that never ends."""

    protocol = "flaky"
    store: dict[str, bytes] = {}  # noqa: RUF012
    faults: list[BaseException | None] = []  # noqa: RUF012

    async def _fail(self) -> None:
        if self.faults:
            fault = self.faults.pop(0)
            if fault is None:
                await asyncio.Event().wait()
            else:
                raise fault

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        await self._fail()
        if path not in self.store:
            raise FileNotFoundError(path)
        return {
            "name": path,
            "size": len(self.store[path]),
            "type": "file",
            "ETag": f"e{len(self.store[path])}",
        }

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        await self._fail()
        if path not in self.store:
            raise FileNotFoundError(path)
        return self.store[path][start:end]

    async def _find(self, path: str, **_: Any) -> list[str]:
        await self._fail()
        return [name for name in self.store if name.startswith(path)]


@pytest.fixture(autouse=True)
def flaky() -> Iterator[type[Flaky]]:
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    Flaky.store = {"bucket/x/a": DATA, "bucket/x/sub/b": b"", "bucket/x/c": b"c"}
    Flaky.faults = []
    yield Flaky


@pytest.fixture(params=["local", "remote"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    if request.param == "remote":
        return open_location("flaky://bucket/x/")
    for name, data in Flaky.store.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return open_location(tmp_path / "bucket" / "x")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "PIECE", 100)


def test_objects_are_listed_and_read(location: Location) -> None:
    assert location.names() == ["a", "c", "sub/b"]
    file = location.file("a")
    assert file.size() == len(DATA) and file.stat() == file.stat() and file.stat().stamp
    assert file.read_range(3, 5) == DATA[3:8] and file.read_range(5, 0) == b""
    assert file.read_range(250, 300) == DATA[250:550]
    assert file.read_range(len(DATA) - 5, 500) == DATA[-5:]
    assert b"".join(file.chunks()) == DATA and b"".join(file.chunks(33)) == DATA
    assert list(location.file("sub/b").chunks()) == []
    assert b"".join(open_file(file.url).chunks()) == DATA


def test_a_stream_is_seekable(location: Location) -> None:
    with location.file("a").open() as stream:
        assert stream.read(4) == DATA[:4] and stream.tell() == 4
        assert stream.seek(-3, io.SEEK_END) == len(DATA) - 3 and stream.read() == DATA[-3:]
        stream.seek(7)
        stream.seek(3, io.SEEK_CUR)
        assert stream.read(2) == DATA[10:12] and stream.seek(0) == 0 and stream.read() == DATA


def test_what_is_not_there_is_named(location: Location) -> None:
    asks: list[Callable[[File], object]] = [
        lambda file: file.size(),
        lambda file: file.open(),
        lambda file: list(file.chunks()),
        lambda file: file.read_range(0, 1),
    ]
    for ask in asks:
        with pytest.raises(ObjectNotFoundError, match="'gone'"):
            ask(location.file("gone"))
    for name in ("../a", "/a", "", ".", "a//b", "a/../b", "a\0"):
        with pytest.raises(FormatError):
            location.file(name)


def test_it_travels_to_another_process(location: Location) -> None:
    other = pickle.loads(pickle.dumps(location.file("c")))
    assert other.read_range(0, 9) == b"c"


def test_a_forked_process_makes_its_own_connection() -> None:
    location = open_location("flaky://bucket/x")
    assert location.names()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if location.file("a").read_range(0, 3) == DATA[:3] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_directory_that_cannot_be_listed_is_told(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError):
        open_location(tmp_path / "gone").names()


# --- attempts ----------------------------------------------------------------------------------------


def remote(**retries: Any) -> tuple[Location, Patient]:
    clock = Patient()
    return open_location("flaky://bucket/x", retries=Retries(**retries), clock=clock), clock


def test_what_fails_is_tried_again_and_counted(flaky: type[Flaky]) -> None:
    location, clock = remote(attempts=3, base_s=1.0, cap_s=1.5)
    flaky.faults = [OSError(5, "secret"), ConnectionResetError("secret")]
    assert location.file("c").read_range(0, 1) == b"c"
    assert (location.counts.attempts, location.counts.retries, location.counts.failures) == (3, 2, 0)
    assert 0.5 <= clock.pauses[0] <= 1.0 and 0.75 <= clock.pauses[1] <= 1.5
    flaky.faults = [OSError(5, "secret")] * 3
    with pytest.raises(
        DataUnavailableError, match=r"c: cannot be read: Input/output error, 3 times"
    ) as caught:
        location.file("c").read_range(0, 1)
    assert "secret" not in str(caught.value) and caught.value.__cause__ is None
    assert (location.counts.attempts, location.counts.failures) == (6, 1)


@pytest.mark.parametrize("settled", [FileNotFoundError(2, "x"), PermissionError(13, "x")])
def test_what_will_not_change_is_not_tried_again(flaky: type[Flaky], settled: OSError) -> None:
    location, clock = remote()
    flaky.faults = [settled]
    with pytest.raises((ObjectNotFoundError, DataUnavailableError)) as caught:
        location.file("c").read_range(0, 1)
    assert clock.pauses == [] and "times" not in str(caught.value)


def test_an_attempt_is_bounded_in_time(flaky: type[Flaky]) -> None:
    location, _ = remote(attempts=2, timeout_s=0.05)
    flaky.faults = [None]
    assert location.file("c").read_range(0, 1) == b"c"
    assert location.counts.retries == 1
    flaky.faults = [None, None]
    with pytest.raises(DataUnavailableError, match=r"c: cannot be read: .*Timeout.*, 2 times"):
        location.file("c").read_range(0, 1)


def test_pauses_grow_and_differ_by_seed_and_name() -> None:
    plan = Retries(base_s=0.1, cap_s=2.0)
    for retry in range(1, 200):
        full = min(0.1 * 2 ** min(retry - 1, 60), 2.0)
        assert full / 2 <= plan.pause(retry, "a") < full
    same = [Retries(seed=7).pause(1, "a"), Retries(seed=7).pause(1, "a")]
    others = [Retries(seed=8).pause(1, "a"), Retries(seed=7).pause(1, "b")]
    assert same[0] == same[1] and len({same[0], *others}) == 3
    assert Retries(seed=7).pause(1, "a", "x") == same[0]
    assert Retries().pause(1, "a", "x") != Retries().pause(1, "a", "y")


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"base_s": -1}, {"base_s": 9}, {"timeout_s": 0}])
def test_bounds_are_needed(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Retries(**wrong)


def test_other_errors_are_not_caught() -> None:
    counts, clock = RetryCounts(), Patient()
    with pytest.raises(ZeroDivisionError):
        retried(lambda: 1 / 0, name="x", retries=Retries(), clock=clock, transient=(OSError,), counts=counts)
    assert (counts.attempts, counts.retries) == (1, 0)


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("s3://user:secret@bucket/x", UsageError),
        ("flaky://bucket/x?key=secret", UsageError),
        ("nosuch://bucket/x", UnsupportedError),
    ],
)
def test_urls_that_are_refused(url: str, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        open_location(url)
    assert "secret" not in str(caught.value)
