"""Snapshots in memory and a disk in front, under Lightning: the same run from wherever it goes on."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning_check import References, run_life
from lightning_subject import Case, at_line, lines

from durable_core import Disk, Memory, Tiers
from durable_core.engine.audit import audit
from durable_core.engine.inspect import open_run
from durable_core.state.snapshots import leftovers
from tests.lives import Line, check_stretches, kill_self

SAMPLES = 96


def case(home: Path, kind: str = "Normed", **changes: Any) -> Case:
    """A snapshot in memory after every step, checkpoints at the ends only."""
    memory = home / "memory"
    memory.mkdir(exist_ok=True)
    tiers = Tiers(memory=Memory(every_n_steps=1, directory=memory))
    given = {"samples": SAMPLES, "epochs": 2, "every": 1000, **changes}
    return Case(kind, **given, durable={"tiers": tiers})


def like(subject: Case) -> Case:
    """The same run without tiers: what is uninterrupted is the same with and without them."""
    return Case(
        subject.kind, workers=subject.workers, accumulate=subject.accumulate, every=subject.every,
        epochs=subject.epochs, samples=subject.samples, val=subject.val, extra=subject.extra,
        trainer=subject.trainer,
    )  # fmt: skip


def output(home: Path) -> str:
    return (home / "output").read_text()


def repeated(home: Path, lives: int, expected: list[Line], rank: int = 0) -> int:
    """Batches that were done more than once, the one that a kill broke off included."""
    done = sum(len(lines(home, "batch", log=f"life{n}-{rank}")) for n in range(lives))
    return done - sum(line["what"] == "batch" for line in expected)


def lived(
    references: References, home: Path, subject: Case, strikes: list[dict[int, Any]], world: int = 1
) -> list[list[int]]:
    """Lives ended by ``strikes`` (by rank), then one to the end; they are the uninterrupted run."""
    codes = [run_life(subject, home, f"life{n}-", world, told) for n, told in enumerate(strikes)]
    codes.append(run_life(subject, home, f"life{len(strikes)}-", world, {}))
    assert codes[-1] == [0] * world, output(home)[-3000:]
    found = audit(open_run(home / "run"))
    assert found.sound, found.to_json()
    for rank, expected in enumerate(references.of(like(subject), world)):
        lives = [lines(home, log=f"life{n}-{rank}") for n in range(len(codes))]
        check_stretches(expected, lives)
        # Of each life the step it was killed in, and the one before: it may not have been sealed yet.
        assert repeated(home, len(codes), expected, rank) <= 2 * subject.accumulate * len(strikes)
    assert leftovers(home / "memory") == []
    return codes


@pytest.mark.parametrize(
    ("what", "count", "changes"),
    [
        ("batch", 9, {}),
        ("batch_end", 9, {}),
        ("batch", 30, {"workers": 2}),
        ("batch", 11, {"accumulate": 2}),
        ("epoch_end", 1, {}),
        ("batch", 14, {"kind": "Manual"}),
        ("batch", 14, {"kind": "Metered"}),
        ("batch", 14, {"val": True, "extra": ("ema",), "trainer": {"val_check_interval": 5}}),
    ],
    ids=str,
)
def test_a_kill_costs_one_step_at_most(
    what: str, count: int, changes: dict[str, Any], references: References, tmp_path: Path
) -> None:
    subject = case(tmp_path, **changes)
    strike = at_line(what, count, settled=False)
    assert lived(references, tmp_path, subject, [{0: strike}])[0] == [-signal.SIGKILL]
    adopted = [info.adopted for info in open_run(tmp_path / "run").state.checkpoints.values()]
    assert sum(each is not None for each in adopted) == 1


def test_lives_that_are_killed_again_and_again(references: References, tmp_path: Path) -> None:
    strikes = [{0: at_line("batch", count, settled=False)} for count in (6, 5, 7)]
    lived(references, tmp_path, case(tmp_path), strikes)


@pytest.mark.parametrize("victims", [(0,), (1,), (0, 1)], ids=str)
def test_two_processes(victims: tuple[int, ...], references: References, tmp_path: Path) -> None:
    """Each has statistics of its own (BatchNorm), which go on from its own snapshot."""
    strikes = {rank: at_line("batch", 10, settled=False) for rank in victims}
    codes = lived(references, tmp_path, case(tmp_path), [strikes], world=2)
    assert all(codes[0][rank] == -signal.SIGKILL for rank in victims)


@pytest.mark.parametrize("world", [1, 2])
def test_sigterm_leaves_nothing_in_memory(world: int, references: References, tmp_path: Path) -> None:
    def terminate() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    subject = case(tmp_path)
    told = {0: at_line("batch", 7, terminate, settled=False)}
    assert run_life(subject, tmp_path, "first-", world, told) == [75] * world
    assert leftovers(tmp_path / "memory") == []
    assert run_life(subject, tmp_path, "second-", world, {}) == [0] * world, output(tmp_path)[-3000:]
    for rank, expected in enumerate(references.of(like(subject), world)):
        lives = [lines(tmp_path, log=f"{name}-{rank}") for name in ("first", "second")]
        check_stretches(expected, lives)
        assert sum(map(len, lives)) == len(expected)  # nothing was done twice


# --- a disk in front ---------------------------------------------------------------------------


@pytest.mark.parametrize("host_lost", [False, True], ids=["disk-kept", "disk-lost"])
def test_a_disk_in_front_of_the_root(host_lost: bool, references: References, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    subject = Case(samples=SAMPLES, epochs=2, every=4, durable={"tiers": Tiers(disk=Disk(disk))})
    strike: Callable[..., Any] = at_line("batch", 15, kill_self)
    assert run_life(subject, tmp_path, "first-", 1, {0: strike}) == [-signal.SIGKILL]
    assert any(path.is_file() for path in disk.rglob("*"))
    if host_lost:
        shutil.rmtree(disk)
    assert run_life(subject, tmp_path, "second-", 1, {}) == [0], output(tmp_path)[-3000:]
    assert lines(tmp_path, "batch", log="second-0")[0]["step"] == 12
    assert audit(open_run(tmp_path / "run")).sound
    expected = references.of(like(subject))[0]
    check_stretches(expected, [lines(tmp_path, log=f"{name}-0") for name in ("first", "second")])
