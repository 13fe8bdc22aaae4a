"""The run spec: content address, freeze gate, versions, and what a restart may change."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from durable_core.errors import FormatError, PromiseError, SpecMismatchError, UnknownVersionError, UsageError
from durable_core.spec import (
    FIELD_RULES,
    CheckpointPolicy,
    DataSpec,
    ModelSpec,
    Provenance,
    Rule,
    RunSpec,
    Target,
    check_resume,
    codec,
    compare,
    derive,
    describe_model,
    flatten,
    pairs,
    rule_of,
)
from durable_core.types import Promise

DIGEST = "sha256:" + "ab" * 32


def make(**changes: Any) -> RunSpec:
    arguments: dict[str, Any] = {
        "model": describe_model("pkg.Net", [("w", (3, 4), "F32"), ("b", (4,), "F32")]),
        "optimizers": [{"class": "AdamW", "groups": [{"lr": 0.001, "betas": (0.9, 0.999)}]}],
        "data": DataSpec(dataset_id=DIGEST, verified=True, size=100, global_batch=8),
        "seed": 7,
        "max_steps": 50,
    }
    return derive(**{**arguments, **changes})


def test_same_content_in_another_key_order_has_the_same_digest() -> None:
    spec = make()
    document = spec.to_json()
    shuffled = json.dumps(dict(reversed(list(document.items()))))
    assert RunSpec.from_json(shuffled) == spec
    assert RunSpec.from_json(shuffled).digest() == spec.digest()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run_key", "other"),
        ("seed", 8),
        ("precision", "bf16-mixed"),
        ("accumulation", 2),
        ("roles", ("dp0", "dp1")),
        ("target", Target(max_steps=51)),
        ("checkpoint", CheckpointPolicy(keep_last=4)),
        ("provenance", Provenance(code_digest=DIGEST)),
        ("parent_spec", DIGEST),
        ("model", ModelSpec(cls="x")),
    ],
)
def test_one_changed_field_changes_the_digest_and_is_named(field: str, value: Any) -> None:
    spec = make()
    other = dataclasses.replace(spec, **{field: value})
    assert other.digest() != spec.digest()
    assert spec.diff(other) and all(name.split(".")[0] == field for name in spec.diff(other))


def test_a_spec_cannot_be_edited() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        make().seed = 3  # type: ignore[misc]
    hash(make())


def test_round_trip_of_every_optional_field() -> None:
    spec = dataclasses.replace(
        make(),
        data=None,
        promise=Promise.DISTRIBUTION,
        accept_distribution=True,
        reason="a smoke test",
        checkpoint=CheckpointPolicy(every_n_steps=3, every_seconds=2.5, backlog="delay"),
        provenance=Provenance(environment=pairs({"torch": "2.13.0", "nan": float("nan")})),
    )
    assert RunSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("provenance.source_revision", {"provenance": Provenance(source_revision="main")}),
        ("provenance.source_revision", {"provenance": Provenance(source_revision="v1.2")}),
        ("provenance.image", {"provenance": Provenance(image="repo/train:latest")}),
        ("provenance.image", {"provenance": Provenance(image="repo/train:1.2")}),
        ("data.dataset_id", {"data": DataSpec(dataset_id="corpus/latest")}),
        ("data.tokenizer", {"data": DataSpec(dataset_id="c4", tokenizer="tok@main")}),
        ("model.initial", {"model": ModelSpec(cls="Net", initial="weights/LATEST")}),
    ],
)
def test_freeze_refuses_moving_references_and_names_the_field(name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=name.replace(".", r"\.")):
        make(**changes)


def test_freeze_refuses_symbolic_links(tmp_path: Any) -> None:
    (tmp_path / "real").write_bytes(b"w")
    (tmp_path / "weights").symlink_to(tmp_path / "real")
    with pytest.raises(UsageError, match="symbolic link"):
        make(model=ModelSpec(cls="Net", initial=str(tmp_path / "weights")))
    make(model=ModelSpec(cls="Net", initial=str(tmp_path / "real")))


def test_freeze_accepts_pinned_references() -> None:
    make(
        provenance=Provenance(source_revision="0" * 40, image=f"repo/train@{DIGEST}"),
        data=DataSpec(dataset_id="unverified:__main__.Words", tokenizer=DIGEST),
    )


@pytest.mark.parametrize(
    ("document", "error", "named"),
    [
        ({"v": 99}, UnknownVersionError, r"spec\.v"),
        ({}, UnknownVersionError, r"spec\.v"),
        ({"v": 1, "algorithms": {"shuffle": 9}}, UnknownVersionError, r"spec\.algorithms\.shuffle"),
        ({"v": 1, "colour": 1}, FormatError, r"spec\.colour"),
        ({"v": 1, "seed": "7"}, FormatError, r"spec\.seed"),
        ({"v": 1, "seed": True}, FormatError, r"spec\.seed"),
        ({"v": 1, "promise": "perfect"}, FormatError, r"spec\.promise"),
        ({"v": 1, "promise": "distribution"}, FormatError, "distribution"),
        ({"v": 1, "roles": "dp0"}, FormatError, r"spec\.roles"),
        ({"v": 1, "roles": []}, FormatError, "roles"),
        ({"v": 1, "model": []}, FormatError, r"spec\.model"),
        ({"v": 1, "optimizer": {"config": {"a": [1]}}}, FormatError, r"spec\.optimizer\.config\.a"),
        ("{", FormatError, "not JSON"),
        ("[]", FormatError, "not a JSON object"),
    ],
)
def test_malformed_documents_are_typed_errors_that_name_the_field(
    document: Any, error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        RunSpec.from_json(document)


def test_a_known_old_version_is_migrated(monkeypatch: pytest.MonkeyPatch) -> None:
    def rename(old: dict[str, Any]) -> dict[str, Any]:
        return {"v": 1, "run_key": old["name"]}

    monkeypatch.setitem(codec.MIGRATIONS, 0, rename)
    assert RunSpec.from_json({"v": 0, "name": "exp"}).run_key == "exp"


@pytest.mark.parametrize(
    "changes", [{"accumulation": 0}, {"seed": 1 << 64}, {"roles": ()}, {"run_key": "a b"}]
)
def test_illegal_values_are_refused_on_construction(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(changes))):
        make(**changes)


def test_the_distribution_promise_needs_a_flag_and_a_reason() -> None:
    with pytest.raises(PromiseError):
        make(promise="distribution")
    with pytest.raises(PromiseError):
        make(promise="distribution", accept_distribution=True, reason=" ")
    make(promise="distribution", accept_distribution=True, reason="a sampling study")


def test_every_field_has_a_rule_of_its_own() -> None:
    top = {name.split(".")[0] for name in flatten(make().to_json())}
    assert top <= set(FIELD_RULES)
    assert rule_of("data.num_workers") is Rule.FREE
    assert rule_of("data.size") is Rule.IDENTITY
    assert rule_of("unheard.of") is Rule.IDENTITY


def test_a_changed_learning_rate_is_refused_and_named() -> None:
    changed = make(optimizers=[{"class": "AdamW", "groups": [{"lr": 0.01, "betas": (0.9, 0.999)}]}])
    with pytest.raises(SpecMismatchError) as caught:
        check_resume(make(), changed)
    assert caught.value.fields == ("optimizer.config.0.groups.0.lr",)
    assert "0.001 -> 0.01" in str(caught.value) and "fork" in caught.value.hint
    assert changed.forked_from(make()).parent_spec == make().digest()


def test_cadence_code_workers_and_a_larger_target_do_not_make_another_run() -> None:
    data = DataSpec(dataset_id=DIGEST, verified=True, size=100, global_batch=8, num_workers=4)
    script = make(
        data=data,
        seed=8,
        max_steps=99,
        checkpoint=CheckpointPolicy(every_n_steps=1),
        provenance=Provenance(code_digest=DIGEST),
    )
    comparison = check_resume(make(), script)
    assert comparison.extended == ("target.max_steps",)
    assert comparison.warned == ("seed",)
    assert set(comparison.free) == {"checkpoint.every_n_steps", "data.num_workers", "provenance.code_digest"}


@pytest.mark.parametrize(
    ("was", "now", "group"),
    [(50, 40, "refused"), (50, None, "extended"), (None, 31, "extended"), (None, 30, "free"),
     (20, 30, "free"), (None, 29, "refused"), (20, 29, "refused"), (20, 31, "extended")],
)  # fmt: skip
def test_a_target_may_only_grow_and_not_lie_behind_the_run(
    was: int | None, now: int | None, group: str
) -> None:
    found = compare(make(max_steps=was), make(max_steps=now), at=30)
    assert getattr(found, group) == ("target.max_steps",)


def test_why_an_end_is_refused_is_true() -> None:
    with pytest.raises(SpecMismatchError, match=r"None -> 29 \(the run is at step 30 already\)") as caught:
        check_resume(make(max_steps=None), make(max_steps=29), at=30)
    assert "fork" not in caught.value.hint and "30 or more" in caught.value.hint
    assert compare(make(max_epochs=None), make(max_epochs=3)).refused == ("target.max_epochs",)


def test_world_size_may_change_only_below_the_bitwise_promise() -> None:
    two = ("dp0", "dp1")
    assert compare(make(), make(roles=two)).refused == ("roles",)
    lower = compare(make(), make(roles=two, promise="exact-order"))
    assert lower.same_run and lower.lowered is Promise.EXACT_ORDER


def test_a_stronger_promise_is_refused() -> None:
    assert compare(make(promise="coverage"), make()).refused == ("promise",)


def test_values_that_are_no_plain_data_are_named_by_kind_not_by_address() -> None:
    assert pairs({"fn": len, "thing": object(), "many": [1, (2.0, None)]}) == (
        ("fn", "<builtins.len>"),
        ("many.0", 1),
        ("many.1.0", 2.0),
        ("many.1.1", None),
        ("thing", "<builtins.object>"),
    )


def test_only_named_principals_may_cancel() -> None:
    assert make().may_cancel("operator") and not make().may_cancel("someone")
