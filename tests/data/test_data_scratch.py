"""Private files and their locks: what is locked is what the name means, also when that changes meanwhile."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from durable_core.clock import SystemClock
from durable_core.data.scratch import exclusive, sweep, try_lock, write_whole


@pytest.mark.parametrize("meanwhile", ["replaced", "removed"])
def test_the_lock_is_on_the_file_that_is_there_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    path, other = tmp_path / "x", tmp_path / "y"
    path.write_text("old")
    other.write_text("new")
    real, calls = fcntl.flock, 0

    def late(fd: int, how: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:  # between opening and locking it
            other.replace(path) if meanwhile == "replaced" else path.unlink()
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", late)
    fd = try_lock(path, create=meanwhile == "removed")
    assert fd is not None and os.path.samestat(os.fstat(fd), path.stat())
    assert os.read(fd, 9) == (b"new" if meanwhile == "replaced" else b"") and calls == 2
    os.close(fd)


def test_one_holds_it_others_do_not(tmp_path: Path) -> None:
    path = tmp_path / "x"
    assert try_lock(path) is None and not path.exists()
    first = try_lock(path, create=True)
    assert first is not None and try_lock(path) is None and try_lock(path, shared=True) is None
    os.close(first)
    readers = [try_lock(path, shared=True) for _ in range(2)]
    assert None not in readers and try_lock(path) is None
    for fd in readers:
        os.close(fd or 0)
    assert sweep(tmp_path, "*") == 1 and sweep(tmp_path, "*") == 0


def test_they_take_turns_and_nothing_is_left(tmp_path: Path) -> None:
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(5):
            with exclusive(tmp_path / "lock", clock=SystemClock()):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most == 1 and list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    write_whole(path, b"old")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            write_whole(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"


def test_what_a_killed_writer_left_is_written_over(tmp_path: Path) -> None:
    (tmp_path / ".x.tmp").write_text("half of something that was longer than what comes now")
    write_whole(tmp_path / "x", b"whole")
    assert (tmp_path / "x").read_bytes() == b"whole" and [p.name for p in tmp_path.iterdir()] == ["x"]
