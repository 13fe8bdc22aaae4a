"""Large objects past the page cache: the same bytes, whatever is out of step, and wherever it is refused."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from durable_core.errors import TierFull
from durable_core.tier.direct import BLOCK, DirectFile, on_a_block_device
from durable_core.tier.posix import PosixTier

KEY = "checkpoints/c1/shard-dp0.safetensors"
MIB = 1 << 20


@pytest.fixture(scope="module")
def memory() -> memoryview:
    """12 MiB that start on a page."""
    pages = mmap.mmap(-1, 12 * MIB)
    pages[:] = random.Random(7).randbytes(12 * MIB)
    return memoryview(pages).toreadonly()


class Calls:
    """The writes the kernel was asked for: bytes, and whether past the cache."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[int, bool]] = []
        self.fail: list[int] = []
        self._write = os.pwrite
        monkeypatch.setattr(os, "pwrite", self._pwrite)

    def _pwrite(self, fd: int, view: memoryview, at: int) -> int:
        past = bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)
        self.made.append((len(view), past))
        if past and self.fail:
            number = self.fail.pop(0)
            if number:
                raise OSError(number, os.strerror(number))
        return self._write(fd, view, at)

    @property
    def directly(self) -> int:
        return sum(nbytes for nbytes, past in self.made if past)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A directory where direct writes work; the tests that count them mean nothing elsewhere."""
    with (tmp_path / "probe").open("wb") as file:
        if not on_a_block_device(file.fileno()):
            pytest.skip("the temporary directory is on no disk of this machine")
        try:
            fcntl.fcntl(file.fileno(), fcntl.F_SETFL, os.O_DIRECT)
        except OSError:
            pytest.skip("no direct writes here")
    return tmp_path


def written(tier: PosixTier, parts: list[memoryview]) -> bool:
    """Whether the object has the bytes of the parts, read past whatever the writer left behind."""
    assert tier.write_object(KEY, iter(parts)) == sum(map(len, parts))
    return tier.get(KEY) == b"".join(parts)


def test_in_step_all_but_the_tail_goes_from_where_it_is(disk: Path, memory: memoryview, calls: Calls) -> None:
    assert written(PosixTier(disk), [memory[:BLOCK], memory[: 8 * MIB + 100]])
    assert calls.directly == BLOCK + 8 * MIB
    assert calls.made[-1] == (100, False)


def test_out_of_step_it_goes_through_the_buffer(disk: Path, memory: memoryview, calls: Calls) -> None:
    assert written(PosixTier(disk), [memory[:BLOCK], memory[1 : 9 * MIB]])
    assert calls.directly == 9 * MIB
    assert max(nbytes for nbytes, _ in calls.made) <= 4 * MIB


def test_small_objects_and_documents_are_buffered(disk: Path, memory: memoryview, calls: Calls) -> None:
    tier = PosixTier(disk)
    assert written(tier, [memory[:BLOCK], memory[: MIB // 2]])
    tier.put("hints/owner.json", memory[: 2 * MIB])
    assert calls.directly == 0


@pytest.mark.parametrize("seed", range(12))
def test_any_parts_give_their_bytes(tmp_path: Path, memory: memoryview, seed: int) -> None:
    rng = random.Random(seed)
    parts = []
    for _ in range(rng.randrange(1, 12)):
        begin = rng.choice((0, BLOCK, rng.randrange(9 * MIB)))
        nbytes = rng.choice((0, 1, BLOCK, rng.randrange(2 * BLOCK), rng.randrange(3 * MIB), 2 * MIB))
        parts.append(memory[begin : begin + nbytes])
    assert written(PosixTier(tmp_path), parts)


@pytest.mark.parametrize("nth", [0, 1, 2])
@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
def test_refused_at_any_write_the_rest_is_buffered(
    disk: Path, memory: memoryview, calls: Calls, nth: int, number: int
) -> None:
    calls.fail = [0] * nth + [number]
    assert written(PosixTier(disk), [memory[:BLOCK], memory[: 5 * MIB], memory[1 : 5 * MIB + 7]])
    assert [past for _, past in calls.made] == sorted((past for _, past in calls.made), reverse=True)
    assert not calls.fail


def test_a_full_disk_is_no_refusal(disk: Path, memory: memoryview, calls: Calls) -> None:
    calls.fail = [0, errno.ENOSPC]
    tier = PosixTier(disk)
    with pytest.raises(TierFull):
        tier.write_object(KEY, [memory[:BLOCK], memory[: 8 * MIB]])
    assert list(tier.list("checkpoints/")) == []
    assert list((disk / "tmp").iterdir()) == []


def test_a_short_write_is_taken_up_where_it_ended(
    disk: Path, memory: memoryview, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite
    lengths = iter([BLOCK, 3 * BLOCK, 512, 100])
    monkeypatch.setattr(os, "pwrite", lambda fd, view, at: write(fd, view[: next(lengths, len(view))], at))
    assert written(PosixTier(disk), [memory[:BLOCK], memory[: 6 * MIB + 9]])


@pytest.fixture
def shm() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="durable-test-", dir="/dev/shm") as path:
        yield Path(path)


def test_in_memory_it_is_not_tried(shm: Path, memory: memoryview, calls: Calls) -> None:
    assert written(PosixTier(shm), [memory[:BLOCK], memory[: 8 * MIB]])
    assert calls.directly == 0


def test_a_file_system_that_knows_no_direct_writes(
    shm: Path, memory: memoryview, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = fcntl.fcntl

    def refuse(fd: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return control(fd, command, flags)

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    path = shm / "file"
    with path.open("wb") as opened:
        file = DirectFile(opened.fileno())
        assert file.append(memory[: 6 * MIB + 5]) == 6 * MIB + 5
        file.flush()
    assert path.read_bytes() == memory[: 6 * MIB + 5]
