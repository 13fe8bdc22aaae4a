"""scrub, and what verify and ls say of a root in front of which a disk stands."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cli_runs import Durable

from durable_core import Disk, Tiers
from durable_core.cli import output
from durable_core.cli.scrub import Held
from durable_core.engine.copies import Fault
from durable_core.engine.inspect import Reader, open_run
from durable_core.errors import TierUnavailable
from durable_core.session import Run, Settings
from durable_core.tier.posix import PosixTier


def shard(root: Path, c: int) -> Path:
    (found,) = root.glob(f"checkpoints/g*-c{c:08d}-*/shard-dp0.safetensors")
    return found


def flip(path: Path, at: int = 4096 + 8) -> None:
    """In the bytes of the weights, which no other checkpoint has."""
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[at] ^= 0x20
    path.write_bytes(data)


@pytest.fixture
def fronted(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``root`` passes for a remote one; the directory returned is a disk that has all its shards. The
    journal names the disk alone, as it does until a checkpoint has been copied."""
    disk = tmp_path / "disk"
    shutil.copytree(root / "checkpoints", disk / "checkpoints")
    for document in disk.rglob("*.json"):
        document.unlink()
    monkeypatch.setattr(Reader, "home", "remote")
    return disk


def test_a_sound_run_is_clean_and_nothing_is_written(root: Path, durable: Durable) -> None:
    before = sorted(path for path in root.rglob("*") if path.is_file())
    found = durable("scrub", root, "--rate", "1GiB", "--json")
    assert found.code == 0 and found.document["ok"] and found.document["faults"] == []
    assert set(found.document["copies_below_two"].values()) == {1}
    assert durable("scrub", root, "--repair").code == 0
    assert sorted(path for path in root.rglob("*") if path.is_file()) == before


def test_damage_without_another_copy_is_journaled_and_the_checkpoint_before_is_next(
    root: Path, durable: Durable
) -> None:
    flip(shard(root, 4))
    key = shard(root, 4).relative_to(root).as_posix()
    looked = durable("scrub", root, "--json")
    assert looked.code == output.CORRUPT and looked.document["lost"] == []
    assert [fault["object"] for fault in looked.document["faults"]] == [key]
    assert looked.document["copies_below_two"][key] == 0
    assert open_run(root).newest_usable().c == 4, "without --repair nothing is written"
    done = durable("scrub", root, "--repair", "--json")
    assert done.code == output.CORRUPT
    assert done.document["lost"] == [{"c": 4, "objects": [key], "unseen": ""}]
    reader = open_run(root)
    assert reader.newest_usable().c == 3 and reader.state.checkpoints[4].corrupt_objects == (key,)
    length = reader.view.next_seq
    assert "marked corrupt" not in durable("scrub", root, "--repair").out
    assert open_run(root).view.next_seq == length, "it is told once"


def test_a_lost_manifest_is_journaled(root: Path, durable: Durable) -> None:
    (manifest,) = root.glob("checkpoints/g*-c00000004-*/manifest.json")
    manifest.unlink()
    assert durable("scrub", root).code == output.CORRUPT
    assert durable("scrub", root, "--repair").code == output.CORRUPT
    assert open_run(root).newest_usable().c == 3


def test_what_cannot_be_read_is_no_damage(
    root: Path, durable: Durable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: PosixTier, key: str, offset: int, out: memoryview) -> None:
        raise TierUnavailable(f"EIO reading {key}")

    monkeypatch.setattr(PosixTier, "read_into", broken)
    done = durable("scrub", root, "--repair", "--json")
    assert done.code == output.FAILED
    assert {fault["kind"] for fault in done.document["faults"]} == {"unreadable"}
    assert {each["outcome"] for each in done.document["repairs"]} == {"later"}
    assert open_run(root).newest_usable().c == 4


@pytest.mark.parametrize("how", ["flip", "delete"])
def test_each_place_is_repaired_from_the_other(root: Path, fronted: Path, durable: Durable, how: str) -> None:
    victims = shard(root, 3), shard(fronted, 4)
    sound = [victim.read_bytes() for victim in victims]
    for victim in victims:
        flip(victim) if how == "flip" else victim.unlink()
    done = durable("scrub", root, "--disk", fronted, "--repair", "--json")
    # The journal does not say that the root has c3: that it is not there is no fault.
    expected = 2 if how == "flip" else 1
    assert done.code == 0 and len(done.document["repairs"]) == expected
    assert {each["outcome"] for each in done.document["repairs"]} == {"repaired"}
    assert victims[1].read_bytes() == sound[1]
    assert victims[0].exists() is (how == "flip")
    assert durable("scrub", root, "--disk", fronted).code == 0
    assert set(durable("scrub", root, "--disk", fronted, "--json").document["copies_below_two"].values()) <= {
        1
    }


def test_what_may_be_on_a_disk_that_was_not_read_is_not_called_lost(
    root: Path, fronted: Path, durable: Durable
) -> None:
    flip(shard(root, 4))
    done = durable("scrub", root, "--repair", "--json")
    assert done.code == output.CORRUPT
    (mark,) = done.document["lost"]
    assert mark["c"] == 4 and "--disk" in mark["unseen"]
    assert open_run(root).newest_usable().c == 4


def test_the_disk_need_not_have_what_was_written_before_it_was_there(root: Path, fronted: Path) -> None:
    held = Held.of(open_run(root))
    key = shard(root, 3).relative_to(root).as_posix()
    on_disk, at_home = Fault("disk", key, "missing", ""), Fault("remote", key, "missing", "")
    assert held.expects(on_disk) and not held.expects(at_home)
    earlier = replace(held.state.checkpoints[3], tiers=("remote",))
    state = replace(held.state, checkpoints=held.state.checkpoints.updated(earlier))
    held = replace(held, state=state, infos={**held.infos, 3: earlier})
    assert not held.expects(on_disk) and held.expects(at_home)
    assert held.expects(replace(on_disk, kind="corrupt"))


def test_a_run_with_a_disk_in_front_of_its_root(tmp_path: Path, durable: Durable) -> None:
    """The origin lies in the root; of those that land on the disk only the newest is copied."""
    root, disk = tmp_path / "root", tmp_path / "disk"
    run = Run.open(root, settings=Settings(tiers=Tiers(disk=Disk(disk, every=1000))))
    run.confirm()
    for step in range(3):
        run.save({"w": torch.full((1000,), float(step))}, {}, step=step, wait=True)
    run.close()
    state = open_run(root).state
    assert [info.tiers for info in state.checkpoints.values()] == [("remote",), ("disk",), ("disk", "remote")]
    rows = durable("verify", root, "--json").document["checkpoints"]
    assert [len(row["elsewhere"]) for row in rows] == [0, 1, 0]
    listed = durable("ls", root, "--json").document["checkpoints"]
    assert [row["elsewhere"] for row in listed] == [False, True, False]
    assert durable("scrub", root, "--disk", disk).code == 0
    shard(disk, 2).unlink()
    flip(shard(root, 0))
    done = durable("scrub", root, "--disk", disk, "--repair", "--json")
    assert {(each["place"], each["outcome"]) for each in done.document["repairs"]} == {
        ("disk", "repaired"), ("remote", "lost"),
    }  # fmt: skip
    assert shard(disk, 2).read_bytes() == shard(root, 2).read_bytes()
    assert [mark["c"] for mark in done.document["lost"]] == [0] and done.code == output.CORRUPT


def test_a_disk_where_there_never_was_one_is_refused(root: Path, tmp_path: Path, durable: Durable) -> None:
    assert durable("scrub", root, "--disk", tmp_path).code == output.USAGE


def test_what_is_elsewhere_is_not_missing(root: Path, fronted: Path, durable: Durable) -> None:
    for c in (2, 3, 4):
        shard(root, c).unlink(missing_ok=True)
    found = durable("verify", root, "--json")
    assert found.code == 0 and found.document["ok"]
    assert sum(len(row["elsewhere"]) for row in found.document["checkpoints"]) >= 3
    assert "elsewhere" in durable("verify", root).out
    assert durable("verify", root, "--strict").code == output.CORRUPT
    listed = durable("ls", root, "--json").document["checkpoints"]
    assert {row["elsewhere"] for row in listed if row["state"] != "retired"} == {True}
    (manifest,) = root.glob("checkpoints/g*-c00000004-*/manifest.json")
    manifest.unlink()
    assert durable("verify", root).code == output.CORRUPT, "documents lie at home and nowhere else"
