"""``save_state``, ``load_state`` and ``skip_first_batches`` as Accelerate's documentation has them: what they
are known to lose, a run that is durable does not.

Where each instant of a ``save_state`` leaves a run is in ``test_save_state.py``; here are whole scripts.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from accelerate_lives import Case, References, at_line, case, lines, output, run_life, sound, trained

from accelerate_durable import making
from accelerate_durable.folders import POINTER, Folder, Kind
from durable_core.engine import restore
from durable_core.engine.inspect import open_run
from tests.lives import check_stretches, kill_self

RESUME = ("--resume-from-checkpoint", "latest")


def documented(arguments: str, every: int = 1000) -> Case:
    """The script saves; the run does by itself only every so many steps."""
    return case(f"--output-dir out {arguments}", "documented_style", every)


def goes_on(
    references: References, home: Path, subject: Case, *kills: tuple[str, int], world: int = 1,
    later: tuple[str, ...] = RESUME,
) -> None:  # fmt: skip
    """As ``survives``; but a script that loads knows which epochs are over, and leaves out their bodies."""
    expected = references.of(subject, world)
    for number, (what, count) in enumerate(kills):
        codes = run_life(
            subject, home, f"life{number}", world=world, strikes={world - 1: at_line(what, count)},
            more=later if number else (),
        )  # fmt: skip
        assert codes[-1] == -9, output(home)[-3000:]
    codes = run_life(subject, home, f"life{len(kills)}", world=world, more=later)
    assert codes == [0] * world, output(home)[-3000:]
    for rank in range(world):
        lives = [compared(lines(home, f"life{number}", rank)) for number in range(len(kills) + 1)]
        check_stretches(compared(expected[rank]), lives)
    sound(home)


def compared(found: list[dict[str, object]]) -> list[dict[str, object]]:
    """Which of its saves a life makes again depends on where it believes it is."""
    return [line for line in trained(found) if line["what"] != "saved"]


@pytest.mark.parametrize(
    "arguments",
    [
        "--checkpointing-steps 5",
        "--checkpointing-steps epoch",
        "--checkpointing-steps 5 --accumulate 2",  # now and then in the middle of an accumulation
        "--checkpointing-steps 5 --stateful --workers 2",
        "--checkpointing-steps 5 --seedable",
        "--checkpointing-steps 5 --with-auto-naming --total-limit 1",
        "--checkpointing-steps 5 --with-auto-naming --total-limit 2 --accumulate 2",
    ],
    ids=["steps", "epochs", "mid-accumulation", "stateful", "seedable", "limit1", "limit2"],
)
def test_killed_and_resumed_as_documented(arguments: str, references: References, tmp_path: Path) -> None:
    goes_on(references, tmp_path, documented(arguments), ("batch", 28), ("batch", 9))


def test_the_run_s_own_checkpoints_are_newer_than_the_directory(
    references: References, tmp_path: Path
) -> None:
    """The directory says where the script believes it is; the run goes on where it was."""
    subject = documented("--checkpointing-steps 10", every=3)
    goes_on(references, tmp_path, subject, ("batch", 29), ("batch", 2))


def test_started_again_with_the_arguments_of_the_first_start(references: References, tmp_path: Path) -> None:
    """A launcher gives no ``--resume-from-checkpoint``; what was saved already is not saved again."""
    subject = documented("--checkpointing-steps 5 --with-auto-naming")
    goes_on(references, tmp_path, subject, ("batch", 28), ("batch", 9), later=())
    whole = [path.name for path in sorted((tmp_path / "out/checkpoints").iterdir())]
    assert whole == sorted(f"checkpoint_{number}" for number in range(9))


def test_two_processes_each_at_its_own_place(references: References, tmp_path: Path) -> None:
    """Plain Accelerate: every rank writes its loader's state to the same file, and one of them is kept."""
    subject = documented("--checkpointing-steps 5 --stateful --samples 96 --epochs 2")
    goes_on(references, tmp_path, subject, ("batch", 18), world=2)
    reader = open_run(tmp_path / "run")
    named = Folder.at(tmp_path / "out/step_20").pointer
    assert named is not None
    info = reader.checkpoint(named.c)
    found = [restore.read(reader.tier, info.manifest, named.manifest, role) for role in ("dp0", "dp1")]
    assert [set(one.manifest.roles) for one in found] == [{"dp0", "dp1"}] * 2


# --- what is on the disk --------------------------------------------------------------------------------

LIMITED = documented("--checkpointing-steps 4 --with-auto-naming --total-limit 1")


def at_save(number: int, name: str) -> None:
    """In a process of its own: SIGKILL when ``making.<name>`` is called in the ``number``-th save."""
    real, left = getattr(making, name), [number]

    def dying(*args: object) -> object:
        left[0] -= 1
        if left[0] == 0:
            kill_self()
        return real(*args)

    setattr(making, name, dying)


@pytest.mark.parametrize("name", ["begin", "complete", "retire", "sweep"])
def test_killed_in_a_save_with_one_directory_kept(name: str, references: References, tmp_path: Path) -> None:
    """Plain Accelerate has removed the old one by then, and nothing loads any more."""
    from accelerate_lives import become

    from tests.lives import life

    def action() -> None:
        at_save(4, name)
        become(LIMITED, tmp_path, "life0")

    assert life(tmp_path, action) == -9
    parent = tmp_path / "out/checkpoints"
    reader = open_run(tmp_path / "run")
    found = [Folder.at(path) for path in parent.glob("checkpoint_*")]
    loads = [one for one in found if one.kind is Kind.OURS]
    assert loads and all(reader.checkpoint(one.pointer.c).manifest for one in loads if one.pointer)
    assert run_life(LIMITED, tmp_path, "life1", more=RESUME) == [0], output(tmp_path)[-3000:]
    check_stretches(
        compared(references.of(LIMITED)[0]), [compared(lines(tmp_path, f"life{n}")) for n in (0, 1)]
    )
    left = [Folder.at(path) for path in parent.iterdir()]
    assert [one.kind for one in left] == [Kind.OURS]


def test_what_is_incomplete_damaged_or_not_ours_is_passed_over(
    references: References, tmp_path: Path
) -> None:
    subject = documented("--checkpointing-steps 5 --with-auto-naming")
    strike = at_line("batch", 28)
    assert run_life(subject, tmp_path, "life0", strikes={0: strike}) == [-9]
    parent = tmp_path / "out/checkpoints"
    (parent / "checkpoint_98").mkdir()
    (parent / "checkpoint_97").mkdir()
    (parent / "checkpoint_97" / POINTER).write_text("{")
    (parent / ".DS_Store").write_text("")
    (parent / "notes").mkdir()
    assert run_life(subject, tmp_path, "life1", more=RESUME) == [0], output(tmp_path)[-3000:]
    check_stretches(
        compared(references.of(subject)[0]), [compared(lines(tmp_path, f"life{n}")) for n in (0, 1)]
    )
    said = output(tmp_path)
    assert "checkpoint_98 is passed over" in said and "checkpoint_97 is passed over" in said
    assert (parent / "checkpoint_99").is_dir() and (parent / ".DS_Store").exists()


def test_nothing_of_a_checkpoint_can_be_missing_in_silence(references: References, tmp_path: Path) -> None:
    """Plain Accelerate goes on without random states, in silence. Here the checkpoint before is used."""
    subject = case(every=5)
    assert run_life(subject, tmp_path, "life0", strikes={0: at_line("batch", 28)}) == [-9]
    newest = max(open_run(tmp_path / "run").committed(), key=lambda info: info.c)
    (shard,) = (tmp_path / "run" / newest.manifest).parent.glob("shard-dp0.*")
    shard.unlink()
    assert run_life(subject, tmp_path, "life1") == [0], output(tmp_path)[-3000:]
    again = trained(lines(tmp_path, "life1"))
    check_stretches(references.of(subject)[0], [lines(tmp_path, "life0"), again])
    assert str(newest.c) in output(tmp_path)


def test_one_more_registered_object_is_named(tmp_path: Path) -> None:
    """Plain Accelerate: ``RuntimeError``, and nothing says which one."""
    one = documented("--checkpointing-steps 5")
    two = documented("--checkpointing-steps 5 --with-auto-naming")  # registers a counter
    assert run_life(one, tmp_path, "life0", strikes={0: at_line("batch", 28)}) == [-9]
    assert run_life(two, tmp_path, "life1") != [0]
    assert "registered" in output(tmp_path), output(tmp_path)[-2000:]
    assert not lines(tmp_path, "life1")
    assert run_life(one, tmp_path, "life2", more=RESUME) == [0]
