"""The POSIX tier: the order of its system calls, its errors, and death between any two of them."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from durable_core.errors import (
    DurableError,
    InDoubt,
    ObjectNotFoundError,
    TierDenied,
    TierError,
    TierFull,
    TierUnavailable,
    UnsupportedError,
)
from durable_core.tier.posix import PosixTier
from durable_core.types import CrashPoint

KEY = "checkpoints/c1/shard-dp0.safetensors"
PARTS = [b"header--", b"0123456789" * 100, b"tail"]
WHOLE = b"".join(PARTS)


class Watched(PosixTier):
    """Notes each step, and lets ``act`` interfere with it."""

    def __init__(self, path: Path, act: Callable[[str, Path], None] | None = None) -> None:
        self.steps: list[tuple[str, str]] = []
        self.act = act
        super().__init__(path, reached=lambda point: self.steps.append(("reached", point.name)))

    def before(self, action: str, path: Path) -> None:
        inside = path.is_relative_to(self.root)
        where = path.relative_to(self.root).as_posix() if inside else "above"
        self.steps.append((action, "<tmp>" if where.startswith("tmp/") else where))
        if self.act is not None:
            self.act(action, path)


def failing(step: str, number: int, *, inside: str = "") -> Callable[[str, Path], None]:
    def act(action: str, path: Path) -> None:
        if action == step and inside in str(path):
            raise OSError(number, os.strerror(number))

    return act


# --- the order of effects ------------------------------------------------------------------


def test_a_name_is_given_after_the_data_and_its_directory_are_durable(tmp_path: Path) -> None:
    tier = Watched(tmp_path / "run")
    tier.write_object(KEY, PARTS)
    steps = [step for step in tier.steps if step not in (("fsync-dir", "above"), ("create", "<tmp>"))]
    assert steps == [
        ("write", "<tmp>"),
        ("write", "<tmp>"),
        ("reached", "K6"),
        ("write", "<tmp>"),
        ("write", "<tmp>"),
        ("reached", "K7"),
        ("fsync", "<tmp>"),
        ("mkdir", "."),
        ("mkdir", "checkpoints"),
        ("fsync-dir", "."),
        ("mkdir", "checkpoints/c1"),
        ("fsync-dir", "checkpoints"),
        ("link", KEY),
        ("unlink", "<tmp>"),
        ("fsync-dir", "checkpoints/c1"),
    ]


def test_later_writes_sync_the_file_and_one_directory(tmp_path: Path) -> None:
    tier = Watched(tmp_path / "run")
    tier.put_if_absent("journal/0", b"x")
    tier.steps.clear()
    tier.put_if_absent("journal/1", b"y")
    actions = [action for action, _ in tier.steps]
    assert actions == ["create", "write", "fsync", "link", "unlink", "fsync-dir"]


def test_directories_of_another_process_are_made_durable_too(tmp_path: Path) -> None:
    PosixTier(tmp_path).put_if_absent("journal/0", b"x")
    late = Watched(tmp_path)
    late.put_if_absent("journal/1", b"y")
    assert late.steps.index(("fsync-dir", ".")) < late.steps.index(("link", "journal/1"))
    reader = Watched(tmp_path)
    reader.sync_tail("journal/")
    assert reader.steps[-2:] == [("fsync-dir", "."), ("fsync-dir", "journal")]


def test_crash_points_of_large_objects_only(tmp_path: Path) -> None:
    seen: list[CrashPoint] = []
    tier = PosixTier(tmp_path, reached=seen.append)
    tier.put_if_absent("journal/0", b"x")
    tier.put("hints/owner.json", b"x")
    assert seen == []
    tier.write_object(KEY, PARTS)
    assert seen == [CrashPoint.K6, CrashPoint.K7]


# --- errors --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, TierFull),
        (errno.EDQUOT, TierFull),
        (errno.EROFS, TierDenied),
        (errno.EACCES, TierDenied),
        (errno.EPERM, TierDenied),
        (errno.EIO, TierUnavailable),
        (errno.ETIMEDOUT, TierUnavailable),
        (errno.ESTALE, TierUnavailable),
    ],
)
@pytest.mark.parametrize("step", ["create", "write", "fsync", "mkdir"])
def test_before_the_link_a_failure_is_definite(
    tmp_path: Path, step: str, number: int, expected: type[TierError]
) -> None:
    tier = Watched(tmp_path / "run", failing(step, number))
    for write in (lambda: tier.put_if_absent(KEY, b"x"), lambda: tier.write_object(KEY, PARTS)):
        with pytest.raises(expected) as caught:
            write()
        assert type(caught.value) is expected
        assert caught.value.hint  # how to make it possible
        assert str(tmp_path) in str(caught.value)
    tier.act = None
    assert list(tier.list("")) == []
    assert list((tmp_path / "run/tmp").glob("*")) == []
    assert tier.write_object(KEY, PARTS) == len(WHOLE)  # space is back: saving goes on


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EMLINK])
def test_a_link_that_was_not_made_is_definite(tmp_path: Path, number: int) -> None:
    tier = Watched(tmp_path, failing("link", number))
    with pytest.raises((TierFull, TierDenied, TierUnavailable)):
        tier.put_if_absent(KEY, b"x")
    assert list(tier.list("")) == []


@pytest.mark.parametrize("number", [errno.EIO, errno.ETIMEDOUT, errno.ESTALE])
def test_a_link_that_may_have_been_made_is_in_doubt(tmp_path: Path, number: int) -> None:
    tier = Watched(tmp_path, failing("link", number))
    with pytest.raises(InDoubt):
        tier.put_if_absent(KEY, b"x")


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EACCES])
def test_visible_but_not_synced_is_in_doubt(tmp_path: Path, number: int) -> None:
    tier = Watched(tmp_path, failing("fsync-dir", number, inside="checkpoints/c1"))
    with pytest.raises(InDoubt, match="shard-dp0"):
        tier.write_object(KEY, PARTS)
    assert tier.get(KEY) == WHOLE


@pytest.mark.parametrize("answer", [errno.EEXIST, errno.EIO])
def test_a_server_that_made_the_link_and_lost_the_reply(tmp_path: Path, answer: int) -> None:
    """The repetition of the request meets its own success (NFS): the number of links tells."""

    def act(action: str, path: Path) -> None:
        if action == "link":
            path.hardlink_to(next((tmp_path / "tmp").iterdir()))

    tier = Watched(tmp_path, act)
    assert tier.put_if_absent("journal/0", b"mine") is True
    assert tier.get("journal/0") == b"mine"


def test_a_directory_removed_meanwhile_is_made_again(tmp_path: Path) -> None:
    tier = PosixTier(tmp_path / "run")
    tier.put_if_absent("journal/0", b"x")
    shutil.rmtree(tmp_path / "run")
    assert tier.put_if_absent("journal/0", b"y") is True
    shutil.rmtree(tmp_path / "run/journal")
    assert tier.put_if_absent("journal/0", b"z") is True
    assert tier.get("journal/0") == b"z"


def test_a_file_where_a_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("in the way")
    tier = PosixTier(tmp_path)
    with pytest.raises(TierDenied):
        tier.put_if_absent("journal/0", b"x")
    with pytest.raises(ObjectNotFoundError):
        tier.get("journal/0")


def test_a_root_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(TierDenied):
        PosixTier(tmp_path / "file/run").put_if_absent("journal/0", b"x")


# --- planted things ------------------------------------------------------------------------


def test_links_out_of_the_root_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    tier = PosixTier(tmp_path / "run")
    tier.put_if_absent("a/real", b"x")
    (tmp_path / "run/a/link").symlink_to(secret)
    (tmp_path / "run/a/dir").symlink_to(tmp_path)
    with pytest.raises(DurableError):
        tier.get("a/link")
    assert tier.put_if_absent("a/link", b"x") is False
    assert secret.read_text() == "secret"
    assert "a/dir/secret" not in list(tier.list(""))


def test_a_pipe_is_no_object_and_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ObjectNotFoundError):
        PosixTier(tmp_path).get("pipe")


def test_files_that_are_no_keys_are_not_listed(tmp_path: Path) -> None:
    tier = PosixTier(tmp_path)
    tier.put_if_absent("journal/0", b"x")
    (tmp_path / "journal/UPPER").write_text("x")
    (tmp_path / "tmp/left").write_text("x")
    assert list(tier.list("")) == ["journal/0"]


# --- death ---------------------------------------------------------------------------------


def in_child(work: Callable[[], None]) -> int:
    """Run in a forked process; its wait status."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1]


def kill_at(root: Path, nth: int) -> None:
    """Write an object in a process that dies before step ``nth``."""

    def work() -> None:
        left = iter(range(nth))

        def act(action: str, path: Path) -> None:
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        Watched(root, act).write_object(KEY, PARTS)

    assert os.WTERMSIG(in_child(work)) == signal.SIGKILL


def test_killed_before_any_step_a_reader_sees_nothing_or_all(tmp_path: Path) -> None:
    def fresh(name: str) -> Path:
        PosixTier(tmp_path / name).put_if_absent("checkpoints/c0/old", b"old")
        return tmp_path / name

    dry = Watched(fresh("dry"))
    dry.write_object(KEY, PARTS)
    steps = [step for step in dry.steps if step[0] != "reached"]
    outcomes = []
    for nth in range(len(steps)):
        root = fresh(f"run{nth}")
        kill_at(root, nth)
        tier = PosixTier(root)
        found = list(tier.list("checkpoints/c1/"))
        outcomes.append(bool(found))
        assert found in ([], [KEY]), steps[nth]
        assert tier.put_if_absent(KEY, WHOLE) is (not found), steps[nth]
        assert tier.get(KEY) == WHOLE, steps[nth]
        assert tier.get("checkpoints/c0/old") == b"old"
        tier.collect_residue()
        assert list((root / "tmp").iterdir()) == [], steps[nth]
    linked = steps.index(("link", KEY))
    assert outcomes == [nth > linked for nth in range(len(steps))]


def test_residue_of_the_living_stays(tmp_path: Path) -> None:
    tier, collector = PosixTier(tmp_path), PosixTier(tmp_path)

    def parts() -> Iterator[bytes]:
        yield b"one"
        assert collector.collect_residue() == 0
        yield b"two"

    tier.write_object(KEY, parts())
    assert tier.get(KEY) == b"onetwo"


def test_residue_of_the_dead_goes_within_the_limit(tmp_path: Path) -> None:
    tier = PosixTier(tmp_path)
    tier.put_if_absent("journal/0", b"x")
    for i in range(5):
        (tmp_path / f"tmp/999-{i}").write_bytes(b"left behind")
    assert [tier.collect_residue(limit=2) for _ in range(4)] == [2, 2, 1, 0]
    assert tier.get("journal/0") == b"x"


def test_many_processes_one_winner_per_slot(tmp_path: Path) -> None:
    slots, writers = 60, 4
    start_read, start_write = os.pipe()
    pids = []
    for writer in range(writers):
        pid = os.fork()
        if pid == 0:
            try:
                os.close(start_write)
                os.read(start_read, 1)  # end of file: all at once
                tier = PosixTier(tmp_path / "run")
                won = [slot for slot in range(slots) if tier.put_if_absent(f"journal/{slot}", b"%d" % writer)]
                (tmp_path / f"won-{writer}").write_text(" ".join(map(str, won)))
                os._exit(0)
            finally:
                os._exit(1)
        pids.append(pid)
    os.close(start_write)
    os.close(start_read)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * writers
    won = {writer: (tmp_path / f"won-{writer}").read_text().split() for writer in range(writers)}
    assert sorted(int(slot) for slots_ in won.values() for slot in slots_) == list(range(slots))
    tier = PosixTier(tmp_path / "run")
    for writer, slots_ in won.items():
        assert all(tier.get(f"journal/{slot}") == b"%d" % writer for slot in slots_)


# --- probing -------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_links_is_refused(tmp_path: Path, number: int) -> None:
    with pytest.raises(UnsupportedError, match=r"hard links.*\(keep the run"):
        Watched(tmp_path, failing("link", number)).probe()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_file_system_that_lets_two_create_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.hardlink_to

    def overwrite(self: Path, target: Path) -> None:
        self.unlink(missing_ok=True)
        real(self, target)

    monkeypatch.setattr(Path, "hardlink_to", overwrite)
    with pytest.raises(UnsupportedError, match="twice"):
        PosixTier(tmp_path).probe()


def test_a_file_system_that_copies_instead_of_linking_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "hardlink_to", lambda self, target: shutil.copy(target, self))
    with pytest.raises(UnsupportedError, match="hard link"):
        PosixTier(tmp_path).probe()


def test_a_file_system_that_cannot_sync_directories_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="fsynced"):
        Watched(tmp_path, failing("fsync-dir", errno.EINVAL)).probe()


def test_an_unwritable_root_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(TierDenied, match="permissions"):
        Watched(tmp_path, failing("create", errno.EACCES)).probe()


# --- real file systems ---------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs (root)")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_keeps_what_was_there_and_recovers(small_disk: Path) -> None:
    tier = PosixTier(small_disk / "run")
    tier.probe()
    tier.put_if_absent("journal/0", b"x")
    tier.write_object("checkpoints/c1/a", [b"a" * 300_000])
    with pytest.raises(TierFull, match="free space"):
        tier.write_object("checkpoints/c2/a", [b"b" * 300_000] * 4)
    assert list((small_disk / "run/tmp").iterdir()) == []
    assert tier.get("checkpoints/c1/a") == b"a" * 300_000
    assert list(tier.list("checkpoints/c2/")) == []
    tier.delete("checkpoints/c1/a")
    assert tier.write_object("checkpoints/c2/a", [b"b" * 300_000] * 2) == 600_000


def test_a_read_only_disk_is_denied_and_still_readable(small_disk: Path) -> None:
    tier = PosixTier(small_disk / "run")
    tier.put_if_absent("journal/0", b"x")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for work in (
        lambda: tier.put_if_absent("journal/1", b"y"),
        lambda: tier.put("hints/owner.json", b"y"),
        lambda: tier.write_object(KEY, PARTS),
        lambda: tier.delete("journal/0"),
        tier.probe,
    ):
        with pytest.raises(TierDenied):
            work()
    assert tier.get("journal/0") == b"x"
    assert list(PosixTier(small_disk / "run").list("")) == ["journal/0"]
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert tier.put_if_absent("journal/1", b"y") is True
