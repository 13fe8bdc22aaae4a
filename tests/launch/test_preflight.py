"""Before a start: every check passes where things are right, and each fails by itself."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from durable_core import DurableSession
from durable_core.cli.app import run as durable
from durable_core.clock import SystemClock
from durable_core.data import DurableLoader
from durable_core.data import manifest as manifests
from durable_core.engine.inspect import open_run
from durable_core.errors import TierDenied, TierUnavailable, UsageError
from durable_core.format.manifest import Manifest
from durable_core.format.record import Kind
from durable_core.launch import preflight
from durable_core.launch.books import Books
from durable_core.launch.preflight import CHECKS, QUICK, Node, Outcome, Report, Result, Target, running
from durable_core.launch.preflight.child import self_test
from durable_core.launch.preflight.lab import Lab
from durable_core.session import Run
from durable_core.spec import (
    CheckpointPolicy,
    DataSpec,
    Determinism,
    Elastic,
    Goal,
    Membership,
    Observability,
    Provenance,
    RecoveryGoals,
    RunSpec,
    pairs,
)
from durable_core.tier.base import Buffer
from durable_core.tier.memory import MemoryTier
from durable_core.tier.posix import PosixTier
from tests.launch.launching import new_run


class FakeLab(Lab):
    """Answers as told, and starts nothing."""

    def __init__(self, **answers: Any) -> None:
        super().__init__()
        self.answers = {
            "device": {"device": "fake", "count": 1},
            "collective": {"seconds": 0.1, "bytes_per_second": 1e9},
            **answers,
        }

    def device(self, count: int, kind: str = "") -> dict[str, Any]:
        return self.answers["device"]

    def collective(self, world: int, timeout_s: float, *, started: int | None = None) -> dict[str, Any]:
        return self.answers["collective"]


class Clock(SystemClock):
    """A wall clock that is ``wrong`` seconds off, and a monotonic one that the test moves."""

    def __init__(self, wrong: float = 0.0) -> None:
        self.wrong, self.passed = wrong, 0.0

    def now(self) -> float:
        return super().now() + self.wrong

    def monotonic(self) -> float:
        return self.passed


def target(tier: Any = None, spec: RunSpec | None = None, **changes: Any) -> Target:
    return Target(tier or MemoryTier(), spec or RunSpec(), **{"lab": FakeLab(), **changes})


def result(where: Target, check: str) -> Result:
    return preflight.run(where, only=[check]).results[0]


def outcome(where: Target, check: str) -> tuple[Outcome, str]:
    found = result(where, check)
    assert (found.outcome is Outcome.FAILED) or not found.hint
    return found.outcome, found.evidence


# --- everything at once ----------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A dataset of three files and its manifest."""
    for name in "abc":
        (tmp_path / f"{name}.bin").write_bytes(name.encode() * 100)
    names = sorted(str(path) for path in tmp_path.glob("*.bin"))
    built = manifests.build(names, root=tmp_path, format="blob")
    path = tmp_path / "manifest.json"
    manifests.save(built, path)
    return path


def test_nothing_stands_in_the_way_of_a_new_run(tmp_path: Path, data: Path) -> None:
    sink = tmp_path / "metrics.jsonl"
    spec = RunSpec(
        membership=Membership(fixed=2),
        checkpoint=CheckpointPolicy(every_seconds=60.0),
        recovery=RecoveryGoals(goals=(Goal("process", rto_seconds=60.0),)),
        determinism=Determinism(deterministic_algorithms=True),
        observability=Observability(sinks=(f"jsonl:{sink}",)),
        data=DataSpec(dataset_id=manifests.load(str(data)).dataset_id, verified=True),
    )
    where = target(
        PosixTier(tmp_path / "run"), spec, workers=2, local=2, data=str(data), state_bytes=1 << 20,
        standbys=(1, 1), link_bytes_per_second=1e6, nodes={"a": Node.here(), "b": Node.here()},
    )  # fmt: skip
    report = preflight.run(where, quick=False)
    assert report.passed, report.reason
    kept = {each.check for each in report.results if each.outcome is Outcome.NOT_APPLICABLE}
    assert kept == {"journal", "quarantine", "data cache", "state coverage"}
    assert not [path for path in (tmp_path / "run").rglob("*") if path.is_file()], "nothing is left behind"
    assert [each.check for each in report.results] == [check.name for check in CHECKS]


def test_a_bare_target_is_told_what_does_not_apply() -> None:
    report = preflight.run(target(), quick=False)
    assert report.passed, report.reason
    assert {each.check for each in report.results if each.outcome is Outcome.OK} >= {
        "storage access", "create-exclusive", "versions", "device", "collective"
    }  # fmt: skip


def test_the_quick_subset_needs_no_process_and_moves_no_bytes() -> None:
    class Nothing(FakeLab):
        def device(self, *_: Any) -> Any:
            raise AssertionError

        collective = device

    report = preflight.run(target(lab=Nothing()))
    assert report.passed and [each.check for each in report.results] == [check.name for check in QUICK]


def test_an_unknown_check_is_named() -> None:
    with pytest.raises(UsageError, match="no check is called 'luck'"):
        preflight.run(target(), only=["luck"])


# --- each fails by itself --------------------------------------------------------------------


class Broken(MemoryTier):
    """A store with one fault."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def get(self, key: str, **how: Any) -> bytes:
        if self.fault == "undeletable" and key in self.deleted:
            return b""
        data = super().get(key, **how)
        return data + b"!" if self.fault == "misread" else data

    deleted: frozenset[str] = frozenset()

    def delete(self, key: str) -> None:
        if self.fault == "no deleting":
            raise TierDenied(f"{key}: may not be deleted")
        self.deleted |= {key}
        super().delete(key)

    def list(self, prefix: str) -> Iterator[str]:
        return iter(()) if self.fault == "unlisted" else super().list(prefix)

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        if self.fault == "denied":
            raise TierDenied("no such credentials")
        if self.fault == "unavailable":
            raise TierUnavailable("timed out")
        if self.fault == "read-only disk":
            raise OSError(30, "read-only")
        created = super().put_if_absent(key, data)
        return created or self.fault == "everybody wins"


@pytest.mark.parametrize(
    ("fault", "evidence", "transient"),
    [
        ("denied", "no such credentials", False),
        ("unavailable", "timed out", True),
        ("no deleting", "may not be deleted", False),
        ("misread", "not what was written", False),
        ("unlisted", "not listed", False),
        ("undeletable", "can still be read", False),
        ("read-only disk", "read-only", False),
    ],
)
def test_storage_access_fails(fault: str, evidence: str, transient: bool) -> None:
    found = result(target(Broken(fault)), "storage access")
    assert found.outcome is Outcome.FAILED and evidence in found.evidence and found.transient is transient


def test_a_store_where_everybody_wins_is_found_out() -> None:
    found, evidence = outcome(target(Broken("everybody wins")), "create-exclusive")
    assert found is Outcome.FAILED and "4 of 4 writers" in evidence
    assert outcome(target(Broken("everybody wins")), "storage access")[0] is Outcome.OK


def test_a_store_that_fails_in_the_race_is_told() -> None:
    found = result(target(Broken("unavailable")), "create-exclusive")
    assert found.outcome is Outcome.FAILED and found.transient


def test_a_file_system_without_links_is_refused(tmp_path: Path) -> None:
    class Unlinked(PosixTier):
        def before(self, action: str, path: Path) -> None:
            if action == "link" and path.parent.name == "tmp":
                raise OSError(1, "not permitted")

    found, evidence = outcome(target(Unlinked(tmp_path)), "links and fsync")
    assert found is Outcome.FAILED and "no hard links" in evidence
    assert outcome(target(PosixTier(tmp_path)), "links and fsync")[0] is Outcome.OK
    assert outcome(target(), "links and fsync")[0] is Outcome.NOT_APPLICABLE


def test_what_a_killed_preflight_left_is_removed_later_and_not_at_once(tmp_path: Path) -> None:
    tier = PosixTier(tmp_path)
    fresh, old = (f"hints/preflight/{int(SystemClock().now()) - age}-access-x" for age in (60, 7200))
    for key in (fresh, old):
        tier.put(key, b"")
    assert outcome(target(tier), "storage access")[0] is Outcome.OK
    assert list(tier.list("hints/")) == [fresh]


def test_a_store_that_hangs_costs_one_wait() -> None:
    class Hanging(MemoryTier):
        never = threading.Event()

        def put_if_absent(self, key: str, data: Buffer) -> bool:
            self.never.wait(20.0)
            return False

    tier = Hanging()
    report = preflight.run(target(tier, clock=SystemClock()), patience_s=0.2)
    tier.never.set()
    found = {each.check: each for each in report.results}
    assert found["storage access"].transient and "no answer in 0.2 s" in found["storage access"].evidence
    waiting = [each.check for each in report.results if "not tried: storage access" in each.evidence]
    assert len(waiting) == 7 and found["versions"].outcome is Outcome.OK and report.transient


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        (RunSpec(checkpoint=CheckpointPolicy(every_seconds=1e-6)), "the cadence"),
        (RunSpec(recovery=RecoveryGoals(goals=(Goal("host", rto_seconds=1e-6),))), "the RTO"),
    ],
)
def test_a_store_that_is_too_slow_for_the_goals_is_told_with_the_figures(spec: RunSpec, named: str) -> None:
    where = target(spec=spec, state_bytes=1 << 20, clock=SystemClock())
    found, evidence = outcome(where, "checkpoint bandwidth")
    assert found is Outcome.FAILED and named in evidence and "1048576 bytes of state" in evidence
    assert outcome(replace(where, spec=RunSpec()), "checkpoint bandwidth")[0] is Outcome.OK
    assert outcome(target(spec=spec), "checkpoint bandwidth")[0] is Outcome.NOT_APPLICABLE


def test_a_disk_without_room_for_what_is_retained_and_two_more(tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    size = status.f_bavail * status.f_frsize // 4  # three retained fit, five do not
    found, evidence = outcome(target(PosixTier(tmp_path / "run"), state_bytes=size), "capacity")
    assert found is Outcome.FAILED and "5 checkpoints" in evidence
    spec = RunSpec(checkpoint=CheckpointPolicy(keep_last=1))
    assert outcome(target(PosixTier(tmp_path / "run"), spec, state_bytes=size), "capacity")[0] is Outcome.OK
    assert outcome(target(state_bytes=size), "capacity")[0] is Outcome.NOT_APPLICABLE


def test_a_host_without_memory_for_its_part_of_the_buffers(tmp_path: Path) -> None:
    huge = 1 << 60
    found, evidence = outcome(target(state_bytes=huge, workers=4, local=2), "host memory")
    assert found is Outcome.FAILED and str(huge // 2) in evidence
    assert outcome(target(state_bytes=1 << 20, shared_memory=str(tmp_path)), "host memory")[0] is Outcome.OK
    assert outcome(target(), "host memory")[0] is Outcome.NOT_APPLICABLE


def test_peers_copies_need_memory_too() -> None:
    assert "and 3 peers" in result(target(state_bytes=1 << 10, peer_copies=3), "host memory").evidence


@pytest.mark.parametrize("wrong", [-3600.0, 3600.0])
def test_a_clock_that_is_wrong_is_told_by_the_file_system(tmp_path: Path, wrong: float) -> None:
    where = target(PosixTier(tmp_path), clock=Clock(wrong))
    found, evidence = outcome(where, "clock skew")
    assert found is Outcome.FAILED and "the root's file system" in evidence
    assert outcome(replace(where, clock=SystemClock()), "clock skew")[0] is Outcome.OK


def test_a_node_whose_clock_differs_is_named() -> None:
    nodes = {"a": Node({}, 0.0), "b": Node({}, 9.5)}
    assert outcome(target(nodes=nodes), "clock skew") == (Outcome.FAILED, "9.50 s at most, b")
    assert outcome(target(), "clock skew")[0] is Outcome.NOT_APPLICABLE


def test_a_node_with_another_version_is_named_and_so_is_one_that_lacks_it() -> None:
    def checked(**other: str) -> tuple[Outcome, str]:
        nodes = {"a": Node({"torch": "2.13", "numpy": "2"}), "b": Node({"torch": "2.13", **other})}
        return outcome(target(nodes=nodes), "versions")

    assert checked(numpy="2")[0] is Outcome.OK
    assert checked(numpy="1") == (Outcome.FAILED, "numpy: 2 on a, 1 on b")
    assert checked() == (Outcome.FAILED, "numpy: 2 on a, absent on b")


def test_an_environment_that_is_not_the_declared_one_is_told() -> None:
    spec = RunSpec(provenance=Provenance(environment=pairs({"torch": "1.0"})))
    found, evidence = outcome(target(spec=spec, nodes={"a": Node.here()}), "versions")
    assert found is Outcome.FAILED and "the spec says 1.0" in evidence
    assert Node.from_json(json.loads(json.dumps(Node.here().to_json()))) == Node.here()


def test_a_group_of_another_size_and_an_unsupported_range_are_refused() -> None:
    fixed = RunSpec(membership=Membership(fixed=4))
    assert outcome(target(spec=fixed, workers=4), "membership")[0] is Outcome.OK
    assert outcome(target(spec=fixed, workers=3), "membership")[0] is Outcome.FAILED
    elastic = RunSpec(membership=Membership(elastic=Elastic(1, 4, supports=("schedule",))))
    found, evidence = outcome(target(spec=elastic, workers=4), "membership")
    assert found is Outcome.FAILED and "data_assignment" in evidence and "promise" in evidence


def test_standbys_that_are_not_ready_are_worth_a_wait() -> None:
    found = result(target(standbys=(2, 1)), "standbys")
    assert found.outcome is Outcome.FAILED and found.transient and "1 of 2" in found.evidence
    assert outcome(target(standbys=(2, 2)), "standbys")[0] is Outcome.OK


@pytest.mark.parametrize(
    ("declared", "environ", "named"),
    [
        (Determinism(deterministic_algorithms=False), {}, "deterministic_algorithms: false"),
        (Determinism(cudnn_benchmark=True), {}, "cudnn_benchmark: true"),
        (Determinism(cublas_workspace=":4096:8"), {}, "CUBLAS_WORKSPACE_CONFIG"),
        (Determinism(tf32=False), {"NVIDIA_TF32_OVERRIDE": "1"}, "NVIDIA_TF32_OVERRIDE"),
    ],
)
def test_flags_that_contradict_the_promise(
    declared: Determinism, environ: dict[str, str], named: str
) -> None:
    where = target(spec=RunSpec(determinism=declared), environ=environ)
    found, evidence = outcome(where, "deterministic flags")
    assert found is Outcome.FAILED and named in evidence
    right = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    settled = replace(
        where, spec=RunSpec(determinism=Determinism(True, False, False, ":4096:8")), environ=right
    )
    assert outcome(settled, "deterministic flags")[0] is Outcome.OK


def test_sinks_that_take_nothing(tmp_path: Path) -> None:
    def checked(sink: str) -> tuple[Outcome, str]:
        return outcome(target(spec=RunSpec(observability=Observability(sinks=(sink,)))), "telemetry")

    assert checked(f"jsonl:{tmp_path}/new.jsonl")[0] is Outcome.OK
    assert checked(f"jsonl:{tmp_path}/no/such/new.jsonl")[0] is Outcome.FAILED
    assert checked(f"jsonl:{tmp_path}")[0] is Outcome.FAILED
    assert checked("carrier pigeon")[0] is Outcome.FAILED
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert checked(f"tcp://127.0.0.1:{port}")[0] is Outcome.OK
    assert checked(f"tcp://127.0.0.1:{port}")[0] is Outcome.FAILED


def test_data_that_is_not_as_its_manifest_says(data: Path) -> None:
    where = target(data=str(data))
    assert outcome(where, "data")[0] is Outcome.OK
    other = RunSpec(data=DataSpec(dataset_id="sha256:" + "0" * 64, verified=True))
    assert "the spec names" in outcome(replace(where, spec=other), "data")[1]
    (data.parent / "b.bin").write_bytes(b"x" * 100)
    found, evidence = outcome(where, "data")
    assert found is Outcome.FAILED and "b.bin" in evidence
    data.write_text("{}")
    assert outcome(where, "data")[0] is Outcome.FAILED
    assert outcome(replace(where, data=str(data.with_name("none.json"))), "data")[0] is Outcome.FAILED


def test_a_damaged_cache_is_named(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"whole").hexdigest()
    path = tmp_path / "objects" / digest[:2] / digest
    path.parent.mkdir(parents=True)
    path.write_bytes(b"whole")
    where = target(cache=str(tmp_path))
    assert outcome(where, "data cache") == (Outcome.OK, "1 of 1 objects read and whole")
    path.write_bytes(b"hole")
    found, evidence = outcome(where, "data cache")
    assert found is Outcome.FAILED and digest in evidence
    assert outcome(target(cache=str(tmp_path / "none")), "data cache")[0] is Outcome.NOT_APPLICABLE


def test_devices_and_collectives_that_fail_are_told() -> None:
    where = target(lab=FakeLab(device={"error": "cuda:3: 7 products are wrong"}))
    assert outcome(where, "device") == (Outcome.FAILED, "cuda:3: 7 products are wrong")
    found = result(target(lab=FakeLab(collective={"error": "rank 1: timed out"})), "collective")
    assert found.outcome is Outcome.FAILED and found.transient and "within 30 s" in found.evidence
    slow = target(lab=FakeLab(collective={"seconds": 1, "bytes_per_second": 1e3}), link_bytes_per_second=1e6)
    assert outcome(slow, "link") == (Outcome.FAILED, "1e+03 of 1e+06 bytes/s")
    assert outcome(slow, "collective")[0] is Outcome.OK


# --- of a run that is there ------------------------------------------------------------------


def test_the_image_of_a_launch_and_what_a_run_reads_and_writes_may_be_in_quarantine(tmp_path: Path) -> None:
    image, tier = f"registry/train@sha256:{'0' * 64}", PosixTier(new_run(tmp_path / "root"))
    of_image = RunSpec(provenance=Provenance(image=image))
    assert outcome(target(tier, of_image), "quarantine")[0] is Outcome.OK
    for unit, name in (("image", image), ("data", "part-7.tar"), ("storage", "checkpoints/m1")):
        said = {"unit": unit, "name": name, "reason": "F9"}
        Books(tmp_path / "root", SystemClock(), "one").maintain(Kind.QUARANTINE, said)
    refused = result(target(tier, of_image), "quarantine")
    assert refused.outcome is Outcome.FAILED and f"--lift image {image}" in refused.hint
    named = preflight.run(target(tier, RunSpec()), only=["quarantine"])
    assert named.passed, "another image may be the cure; whether it meets the object again is not known"
    (note,) = named.notes
    assert "data part-7.tar is in quarantine: F9" in note and "storage checkpoints/m1" in note


def test_the_journal_of_a_run(tmp_path: Path) -> None:
    run = Run.open(tmp_path)
    generation = run.generation
    run.close()
    tier = PosixTier(tmp_path)
    assert outcome(target(tier, generation=generation), "journal")[0] is Outcome.OK
    found, evidence = outcome(target(tier, generation=generation + 1), "journal")
    assert found is Outcome.FAILED and f"would be told {generation + 1}" in evidence
    slot = sorted((tmp_path / "journal").iterdir())[0]
    slot.write_bytes(slot.read_bytes()[:-5])
    assert outcome(target(tier), "journal")[0] is Outcome.FAILED


def test_the_coverage_of_the_newest_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(2, 1)
    loader = DurableLoader(list(range(8)), batch_size=2, seed=1)
    state = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1), "loader": loader}
    with DurableSession.open(tmp_path, state=state):
        pass
    where = target(PosixTier(tmp_path))
    assert outcome(where, "state coverage")[0] is Outcome.OK
    assert where.size == open_run(tmp_path).newest_usable().bytes

    def without(manifest: Manifest) -> dict[str, bool]:
        return {**dict.fromkeys(running.NEEDED, True), "optimizer": False}

    monkeypatch.setattr(running, "classes_held", without)
    found, evidence = outcome(where, "state coverage")
    assert found is Outcome.FAILED and "no optimizer" in evidence


# --- the experiments themselves --------------------------------------------------------------


def test_the_self_test_finds_one_wrong_product() -> None:
    def wrong(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        product = a @ b
        product[3, 4] += 1
        return product

    assert self_test(torch.device("cpu")) == ""
    assert "1 of" in self_test(torch.device("cpu"), wrong)


def test_real_processes_meet_and_a_missing_one_is_noticed_in_time() -> None:
    lab = Lab()
    assert lab.device(1, "cpu") == {"device": "cpu", "count": 1}
    assert lab.collective(2, 30.0)["bytes_per_second"] > 0
    assert "rank 0" in lab.collective(2, 1.0, started=1)["error"]


def test_an_experiment_that_does_not_end_or_crashes_is_told(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nexec sleep 600\n")
    fake.chmod(0o755)
    assert "no answer in 0.3 s" in Lab(python=str(fake), import_s=0.3).device(1)["error"]
    fake.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    assert Lab(python=str(fake)).device(1)["error"] == "ended with 3 broken"


# --- the command -----------------------------------------------------------------------------


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert durable(["preflight", str(tmp_path), "--quick"]) == 0
    assert "nothing stands in the way" in capsys.readouterr().out
    huge = ["--state-bytes", "1000000TiB", "--only", "capacity", "--only", "versions"]
    assert durable(["preflight", str(tmp_path), *huge, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [each["outcome"] for each in document["checks"]] == ["failed", "ok"] and not document["passed"]
    spec = Path(__file__).parents[1] / "spec" / "run.yaml"
    assert (
        durable(["preflight", str(tmp_path), "--spec", str(spec), "--nproc", "2", "--only", "membership"])
        == 1
    )
    assert "FAILED" in capsys.readouterr().out


def test_a_report_says_what_failed_and_whether_waiting_helps() -> None:
    slow = Result("a", Outcome.FAILED, "slow", "", 0.1, transient=True)
    wrong = Result("b", Outcome.FAILED, "wrong", "mend it", 0.1)
    fine = Result("c", Outcome.OK, "fine", "", 0.1)
    assert (
        Report((slow, fine)).transient
        and not Report((slow, wrong)).transient
        and not Report((fine,)).transient
    )
    assert Report((slow, wrong, fine)).reason == "a: slow; b: wrong"
    again = Result("d", Outcome.FAILED, "slow", "", 0.1)
    assert Report((slow, wrong, again)).reason == "a, d: slow; b: wrong", "each finding once"
