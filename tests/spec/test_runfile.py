"""The run file: read strictly, frozen only when complete, and never in contradiction to the script."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from durable_core import DurableSession
from durable_core.data import DurableLoader
from durable_core.errors import SpecMismatchError, UnknownVersionError, UsageError
from durable_core.session.declaring import declared as adopt
from durable_core.session.declaring import require_data
from durable_core.session.run import Run
from durable_core.session.settings import Settings
from durable_core.spec import (
    CheckpointPolicy,
    DataSpec,
    Goal,
    Membership,
    ModelSpec,
    RunSpec,
    Target,
    runfile,
)
from durable_core.types import Promise

EXAMPLE = Path(__file__).with_name("run.yaml")
SCRIPT = RunSpec(model=ModelSpec(cls="train.Net"))


def example(**changes: Any) -> dict[str, Any]:
    """The example with top-level sections replaced; ``None`` leaves one out."""
    document = {**yaml.safe_load(EXAMPLE.read_text()), **changes}
    return {name: value for name, value in document.items() if value is not None}


def test_yaml_and_json_say_the_same(tmp_path: Path) -> None:
    other = tmp_path / "run.json"
    other.write_text(json.dumps(example()))
    assert runfile.load(EXAMPLE) == runfile.load(other)
    assert runfile.read(EXAMPLE).digest() == runfile.read(other).digest()
    spec = runfile.load(EXAMPLE)
    assert spec.membership == Membership(fixed=1) and spec.failure.retries_of("F1") == 5
    assert spec.recovery.goals == (Goal("process", rpo_steps=10, rto_seconds=60),)


def test_the_frozen_copy_states_what_the_file_states_and_no_default(tmp_path: Path) -> None:
    copy = tmp_path / "frozen.json"
    file = runfile.freeze(EXAMPLE, copy)
    again = runfile.read(copy)
    assert [path.name for path in tmp_path.iterdir()] == ["frozen.json"]
    assert (again.spec, again.document, again.digest()) == (file.spec, file.document, file.digest())
    assert "accumulation" not in again.document and not again.states("seed")


@pytest.mark.parametrize("names", runfile.MANDATORY, ids=lambda names: names[0])
def test_freeze_names_each_mandatory_field_that_is_missing(names: tuple[str, ...]) -> None:
    document = example()
    for name in names:
        section, _, field = name.partition(".")
        if not field:
            document.pop(section, None)
        elif section in document:
            document[section] = {k: v for k, v in document[section].items() if k != field}
    if names[0].startswith("budgets"):
        document["budgets"] = {"failures": 3}
    with pytest.raises(UsageError) as caught:
        runfile.parse(document).freeze()
    assert all(name in str(caught.value) for name in names)
    assert "owner" in names or "owner" not in caught.value.message


@pytest.mark.parametrize(
    ("named", "changes"),
    [
        ("provenance.source_revision", {"provenance": {"source_revision": "main", "package_lock": "1"}}),
        (
            "provenance.image",
            {"provenance": {"source_revision": "0" * 40, "image": "registry.example/train:v3"}},
        ),
        ("data.dataset_id", {"data": {"dataset_id": "corpus/latest"}}),
        (
            "provenance.dirty",
            {"provenance": {"source_revision": "0" * 40, "package_lock": "1", "dirty": True}},
        ),
    ],
)
def test_freeze_refuses_what_may_move(named: str, changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=named.replace(".", r"\.")):
        runfile.parse(example(**changes)).freeze()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("owner: a\nowner: b\n", "twice"),
        ("a: &x 1\nb: *x\n", "alias"),
        ("1: x\n", "a key must be a name"),
        ("membership: {fixed: 2, fixed: 3}\n", "twice"),
        ("[1, 2]\n", "not a mapping"),
        ("owner: [unclosed\n", "run.yaml"),
        ("owner: !!python/object:os.system x\n", "run.yaml"),
        ("membrship: {fixed: 2}\n", "did you mean membership"),
        ("budgets: {wall_time: 3}\n", "did you mean wall_seconds"),
        ("budgets: {wall_seconds: 3h}\n", "budgets.wall_seconds"),
        ("membership: {fixed: 2, elastic: {min: 1, max: 2}}\n", "exactly one"),
        ("failure: {retries: {F7: 3}}\n", "never tried again"),
        ("security: {credentials: AKIAABCDEFGHIJKLMNOP}\n", "security.credentials"),
        ("provenance: {environment: {HF: hf_abcdefghijklmnopqrst}}\n", "provenance.environment.HF"),
        ("observability: {sinks: ['https://user:pass@metrics']}\n", "observability.sinks"),
        ("owner: {ghp_abcdefghijklmnopqrstu\n", "line 2"),
        ("owner: 2026-01-01\n", "spec.owner"),
        ("[" * 600 + "]" * 600, "nested too deeply"),
    ],
)
def test_a_file_that_does_not_say_one_thing_is_refused(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        runfile.load(path)
    assert named in str(caught.value)
    assert not any(secret in str(caught.value) for secret in ("AKIA", "pass@", "hf_", "ghp_"))


def test_json_that_is_no_good_a_missing_file_and_a_huge_one_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"owner": "a", "owner": "b"}')
    with pytest.raises(UsageError, match="twice"):
        runfile.load(path)
    path.write_text("[" * 50_000)
    with pytest.raises(UsageError, match="nested too deeply"):
        runfile.load(path)
    with pytest.raises(UsageError, match="No such file"):
        runfile.load(tmp_path / "nothing.yaml")
    path.write_bytes(b" " * (runfile.MAX_BYTES + 1))
    with pytest.raises(UsageError, match="at most"):
        runfile.load(path)


def test_a_later_version_is_told_apart_from_a_fault() -> None:
    with pytest.raises(UnknownVersionError):
        runfile.parse({"v": 99})


# --- the file and the script -----------------------------------------------------------------


def test_policy_is_the_files_and_identity_is_the_scripts() -> None:
    script = dataclasses.replace(
        SCRIPT, accumulation=2, precision="bf16-mixed", checkpoint=CheckpointPolicy(keep_last=9)
    )
    merged = runfile.merge(runfile.parse(example()), script)
    assert (merged.accumulation, merged.precision) == (2, "bf16-mixed")
    assert merged.checkpoint == CheckpointPolicy(every_n_steps=5, keep_last=4)
    assert merged.cancel_authority == ("operator", "oncall") and merged.owner == "pretraining"


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"model": {"cls": "train.Other"}}, ("model.cls",)),
        ({"accumulation": 4}, ("accumulation",)),
        ({"accumulation": 4, "precision": "bf16-mixed"}, ("accumulation", "precision")),
        ({"target": {"max_steps": 9}}, ("target.max_steps",)),
        ({"membership": {"fixed": 2}}, ("membership.fixed",)),
        ({"membership": {"elastic": {"min": 2, "max": 4}}}, ("membership.elastic",)),
        ({"seed": 3}, ("seed",)),
    ],
)
def test_what_is_not_so_of_the_script_is_refused_with_the_fields(
    changes: dict[str, Any], fields: tuple[str, ...]
) -> None:
    with pytest.raises(SpecMismatchError) as caught:
        runfile.merge(runfile.parse(example(**changes)), SCRIPT)
    assert caught.value.fields == fields


def test_a_script_that_describes_nothing_is_described_by_the_file() -> None:
    document = example(accumulation=4, seed=3, promise="exact-order")
    merged = runfile.merge(runfile.parse(document), RunSpec())
    assert (merged.model.cls, merged.accumulation, merged.seed) == ("train.Net", 4, 3)
    assert merged.promise is Promise.EXACT_ORDER
    with pytest.raises(SpecMismatchError, match="accumulation"):
        runfile.merge(runfile.parse(document), RunSpec(accumulation=2))
    with pytest.raises(SpecMismatchError, match="promise"):
        runfile.merge(runfile.parse(document), RunSpec(), said={"promise"})


def test_data_that_the_script_knows_must_be_the_data_that_the_file_names() -> None:
    known = dataclasses.replace(SCRIPT, data=DataSpec(dataset_id="unverified:words"))
    with pytest.raises(SpecMismatchError, match=r"data\.dataset_id"):
        runfile.merge(runfile.parse(example()), known)


def test_what_neither_says_is_named() -> None:
    with pytest.raises(UsageError, match=r"model\.cls .*data\.dataset_id"):
        runfile.merge(runfile.parse(example(model=None, data=None)), RunSpec())


def test_the_files_policy_becomes_the_settings() -> None:
    settings, spec = adopt(Settings(), SCRIPT, EXAMPLE)
    assert settings.cadence.every_n_steps == 5 and settings.retention.keep_last == 4
    assert settings.tiers.goals == spec.recovery.goals
    assert settings.backlog == Settings().backlog and not settings.insist


def test_a_promise_in_the_file_is_insisted_on(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(example(promise="exact-order")))
    settings, spec = adopt(Settings(), RunSpec(), path)
    assert settings.asked is Promise.EXACT_ORDER is spec.promise
    with pytest.raises(SpecMismatchError, match="promise"):
        adopt(Settings(insist=True), RunSpec(), path)


# --- through a run ---------------------------------------------------------------------------


def launch(root: Path, path: Path, monkeypatch: pytest.MonkeyPatch, document: Any, **how: Any) -> Run:
    path.write_text(json.dumps(runfile.parse(document).freeze().to_json()))
    monkeypatch.setenv("DURABLE_SPEC", str(path))
    return Run.open(root, spec=how.pop("spec", SCRIPT), settings=Settings(**how))


def test_a_run_carries_what_its_file_declares_and_refuses_another_without_a_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, path = tmp_path / "run", tmp_path / "frozen.json"
    launch(root, path, monkeypatch, example()).close()
    with pytest.raises(SpecMismatchError) as caught:
        launch(root, path, monkeypatch, example(data={"dataset_id": "sha256:" + "11" * 32}))
    assert "data.dataset_id" in caught.value.fields and "fork" in caught.value.hint
    launch(root, path, monkeypatch, example(owner="another team", budgets={"wall_seconds": 5})).close()
    fork = launch(root, path, monkeypatch, example(data={"dataset_id": "sha256:" + "11" * 32}), resume="fork")
    assert any("forked" in warning for warning in fork.warnings)
    fork.close()


def test_a_plain_session_obeys_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "frozen.json"
    path.write_text(json.dumps(runfile.parse(example()).freeze().to_json()))
    monkeypatch.setenv("DURABLE_SPEC", str(path))
    with DurableSession.open(tmp_path / "run", state={"model": torch.nn.Linear(2, 1)}) as session:
        assert session.run.settings.cadence.every_n_steps == 5


@pytest.mark.parametrize(
    ("declared", "accumulate", "fields"),
    [
        ({"dataset_id": "counting", "size": 8, "global_batch": 2}, 1, ()),
        ({"dataset_id": "counting", "global_batch": 4}, 2, ()),
        ({"dataset_id": "words"}, 1, ("data.dataset_id",)),
        ({"dataset_id": "counting", "size": 9}, 1, ("data.size",)),
        ({"dataset_id": "words", "global_batch": 2}, 2, ("data.dataset_id", "data.global_batch")),
    ],
)
def test_other_data_than_the_file_names_is_refused_before_the_first_step(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    declared: dict[str, Any],
    accumulate: int,
    fields: tuple[str, ...],
) -> None:
    path = tmp_path / "frozen.json"
    path.write_text(json.dumps(runfile.parse(example(data=declared)).freeze().to_json()))
    monkeypatch.setenv("DURABLE_SPEC", str(path))
    loader = DurableLoader(range(8), batch_size=2, seed=1, dataset_id="counting", accumulate=accumulate)
    state = {"model": torch.nn.Linear(2, 1), "loader": loader}
    if not fields:
        DurableSession.open(tmp_path / "run", state=state).close()
        return
    with pytest.raises(SpecMismatchError) as caught:
        DurableSession.open(tmp_path / "run", state=state)
    assert caught.value.fields == fields


def test_batches_of_a_step_that_the_loader_was_not_told_of_are_the_specs() -> None:
    cursor = {"dataset_id": "d", "global_batch": 4, "size": 9}
    require_data(DataSpec(dataset_id="d", global_batch=8), 2, cursor)
    with pytest.raises(SpecMismatchError, match="8, and the script reads 4"):
        require_data(DataSpec(dataset_id="d", global_batch=8), 1, cursor)
    require_data(None, 1, cursor)
    require_data(DataSpec(dataset_id="d", global_batch=8), 1, None)


def test_a_target_may_grow_through_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, path = tmp_path / "run", tmp_path / "frozen.json"
    for steps in (5, 9):
        script = dataclasses.replace(SCRIPT, target=Target(max_steps=steps))
        launch(root, path, monkeypatch, example(target={"max_steps": steps}), spec=script).close()
    with pytest.raises(SpecMismatchError, match=r"target\.max_steps"):
        script = dataclasses.replace(SCRIPT, target=Target(max_steps=4))
        launch(root, path, monkeypatch, example(target={"max_steps": 4}), spec=script)
