"""verify and export: every damage is found, and nothing damaged is ever exported."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from cli_runs import Durable, manifests
from safetensors.torch import load_file

from durable_core.cli import output
from durable_core.engine import verify as engine
from durable_core.engine.inspect import open_run
from durable_core.session import Run

KINDS = ("shard-dp0.safetensors", "receipt-dp0.json", "manifest.json", "dp0.safetensors", "index.json")


def files_of(root: Path, c: int) -> dict[str, Path]:
    found = [path for path in root.rglob(f"*-c{c:08d}-*/*") if path.is_file()]
    return {path.name: path for path in found}


def damage(path: Path, how: str) -> None:
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    if how == "flip":
        data[len(data) // 2] ^= 0x10
    elif how == "truncate":
        del data[-1]
    elif how == "grow":
        data += b"\0"
    elif how == "zero":
        data[:] = bytes(len(data))
    if how == "delete":
        path.unlink()
    else:
        path.write_bytes(data)


def test_a_sound_run_passes(root: Path, durable: Durable) -> None:
    found = durable("verify", root, "--json")
    assert found.code == 0 and found.document["ok"] and found.document["findings"] == []
    assert [row["c"] for row in found.document["checkpoints"]] == [0, 1, 2, 3, 4]
    shards = sum(path.stat().st_size for path in root.rglob("shard-*.safetensors"))
    assert found.document["bytes"] > shards


@pytest.mark.parametrize("how", ["flip", "truncate", "grow", "zero", "delete"])
@pytest.mark.parametrize("kind", KINDS)
def test_any_damage_to_any_file_is_found(root: Path, durable: Durable, kind: str, how: str) -> None:
    victim = files_of(root, 3)[kind]
    damage(victim, how)
    found = durable("verify", root, "--json")
    assert found.code == output.CORRUPT
    findings = found.document["findings"]
    assert {finding["c"] for finding in findings} == {3}
    assert victim.relative_to(root).as_posix() in {finding["key"] for finding in findings}
    assert {finding["kind"] for finding in findings} == {"missing" if how == "delete" else "corrupt"}
    assert "FINDINGS" in durable("verify", root).out
    assert durable("verify", root, 3).code == output.CORRUPT
    assert durable("verify", root, 4).code == 0


def test_the_ledger_of_a_retired_checkpoint_is_verified_too(root: Path, durable: Durable) -> None:
    damage(files_of(root, 0)["dp0.safetensors"], "flip")
    assert durable("verify", root).code == output.CORRUPT


def test_a_lost_record_in_the_middle_is_found(root: Path, durable: Durable) -> None:
    names = sorted((root / "journal").iterdir())
    names[-3].unlink()
    found = durable("verify", root, "--json")
    assert found.code == output.CORRUPT
    assert found.document["findings"][0]["key"] == f"journal/{names[-3].name}"


def test_a_checkpoint_in_place_of_another_is_refused_though_it_is_whole(root: Path, durable: Durable) -> None:
    """The objects are those of another checkpoint: whole, and yet not what was committed."""
    victims, others = files_of(root, 3), files_of(root, 4)
    for name in ("shard-dp0.safetensors", "receipt-dp0.json", "manifest.json"):
        victims[name].chmod(0o644)
        shutil.copyfile(others[name], victims[name])
    assert durable("verify", root, 3).code == output.CORRUPT


def test_the_tier_failing_is_not_corruption(
    root: Path, monkeypatch: pytest.MonkeyPatch, durable: Durable
) -> None:
    from durable_core.errors import TierUnavailable
    from durable_core.tier.posix import PosixTier

    def broken(self: PosixTier, key: str, offset: int, out: memoryview) -> None:
        raise TierUnavailable(f"EIO reading {key}")

    monkeypatch.setattr(PosixTier, "read_into", broken)
    found = durable("verify", root, "--json")
    assert found.code == output.FAILED
    assert {finding["kind"] for finding in found.document["findings"]} == {"unreadable"}


def test_slices_are_read_in_bounded_pieces(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "CHUNK", 5)
    assert not engine.verify(open_run(root)).findings


def test_a_checkpoint_retired_meanwhile_is_no_finding(root: Path, durable: Durable) -> None:
    reader = open_run(root)
    assert durable("gc", root, "--keep-last", 1).code == 0
    report = engine.verify(reader)
    assert not report.findings and [v.c for v in report.checkpoints] == [0, 1, 4]


# --- export ---------------------------------------------------------------------------------


def test_export_writes_plain_safetensors(root: Path, tmp_path: Path, durable: Durable) -> None:
    done = durable("export", root, tmp_path / "out", "--json")
    assert done.code == 0, done.err
    assert [Path(file["path"]).name for file in done.document["files"]] == ["model.safetensors"]
    tensors = load_file(tmp_path / "out/model.safetensors")
    torch.nn.Linear(4, 3).load_state_dict(tensors)
    assert "not trained with Lightning" in done.document["notes"][0]
    old = durable("export", root, tmp_path / "old", "-c", 2)
    assert old.code == 0
    assert not torch.equal(load_file(tmp_path / "old/model.safetensors")["weight"], tensors["weight"])


def test_export_refuses_what_is_damaged_and_leaves_nothing(
    root: Path, tmp_path: Path, durable: Durable
) -> None:
    for shard in root.rglob("shard-dp0.safetensors"):
        damage(shard, "flip")
    before = sorted(tmp_path.iterdir())
    assert durable("export", root, tmp_path / "out", "-c", 4, "--json").code == output.CORRUPT
    none = durable("export", root, tmp_path / "out")
    assert none.code == output.CORRUPT
    assert "checkpoints can be read; the newest, c4: " in none.err and "durable verify ROOT" in none.err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("form", ["all", "hf"])
def test_export_passes_over_what_is_damaged_and_says_so(
    root: Path, tmp_path: Path, durable: Durable, form: str
) -> None:
    damage(files_of(root, 4)["shard-dp0.safetensors"], "flip")
    damage(files_of(root, 3)["manifest.json"], "delete")
    done = durable("export", root, tmp_path / "out", "--format", form, "--json")
    assert (done.code, done.document["c"]) == (0, 2)
    assert [each["c"] for each in done.document["damaged"]] == [4, 3]
    assert [line.split(": ")[1] for line in done.err.splitlines()] == [
        "c4 at step 10 is passed over",
        "c3 at step 9 is passed over",
    ]
    assert durable("export", root, tmp_path / "same", "--format", form, "-c", 2).code == 0
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("out", "same"))
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_export_never_overwrites(root: Path, tmp_path: Path, durable: Durable) -> None:
    (tmp_path / "out").mkdir()
    assert durable("export", root, tmp_path / "out").code == output.USAGE
    assert durable("export", root, tmp_path / "new", "--format", "lightning").code == output.USAGE
    assert not (tmp_path / "new").exists()


def test_export_of_a_lightning_state_is_the_dict_itself(tmp_path: Path, durable: Durable) -> None:
    tied = torch.arange(6.0).reshape(2, 3).to(torch.bfloat16)
    checkpoint = {
        "pytorch-lightning_version": "2.6.6", "epoch": 1, "global_step": 7,
        "state_dict": {"a.weight": tied, "b.weight": tied, "scale": torch.tensor(2.0)},
        "callbacks": {"x": {"best": float("inf"), "pair": (1, 2)}}, "lr_schedulers": [{"last_epoch": 3}],
    }  # fmt: skip
    run = Run.open(tmp_path / "run")
    run.confirm()
    run.save({"checkpoint": checkpoint}, {}, step=7, wait=True)
    run.close()
    done = durable("export", tmp_path / "run", tmp_path / "out", "--json")
    assert done.code == 0 and done.document["notes"] == []
    loaded = torch.load(tmp_path / "out/checkpoint.ckpt", weights_only=True)
    assert torch.equal(loaded["state_dict"]["a.weight"], tied)
    assert {k: v for k, v in loaded.items() if k != "state_dict"} == {
        k: v for k, v in checkpoint.items() if k != "state_dict"
    }
    plain = load_file(tmp_path / "out/model.safetensors")
    assert plain.keys() == checkpoint["state_dict"].keys() and torch.equal(plain["b.weight"], tied)


# --- upkeep ---------------------------------------------------------------------------------


def test_gc_without_a_policy_only_sweeps(root: Path, durable: Durable) -> None:
    residue = root / "checkpoints/g000000-c00000007-00000000"
    residue.mkdir()
    (residue / "shard-dp0.safetensors").write_bytes(b"left by a dead writer")
    done = durable("gc", root, "--json")
    assert done.code == 0 and done.document["retired"] == []
    assert done.document["deleted"] == ["checkpoints/g000000-c00000007-00000000/shard-dp0.safetensors"]
    assert durable("gc", root, "--json").document["deleted"] == []


def test_gc_with_a_policy_spares_pins(root: Path, durable: Durable) -> None:
    assert durable("pin", root, 2, "--json").document == {"c": 2, "pinned": True}
    done = durable("gc", root, "--keep-last", 1, "--json").document
    assert [row["c"] for row in done["retired"]] == [3] and done["complete"]
    assert durable("unpin", root, 2).code == 0
    assert [row["c"] for row in durable("gc", root, "--keep-last", 1, "--json").document["retired"]] == [2]
    assert len(manifests(root)) == 1
    assert durable("verify", root).code == 0
    assert durable("audit", root).code == 0, "the ledger outlives what is retired"


@pytest.mark.parametrize("command", ["pin", "unpin"])
def test_pins_need_a_committed_checkpoint(root: Path, durable: Durable, command: str) -> None:
    assert durable(command, root, 99).code == output.NOT_FOUND
