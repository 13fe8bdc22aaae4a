"""What a launched run declares: validated parts, old documents unchanged, and what a restart may change."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from durable_core.errors import FormatError, SpecMismatchError, UsageError
from durable_core.spec import (
    CAPABILITIES,
    FIELD_RULES,
    Batch,
    Budgets,
    DataSpec,
    Elastic,
    FailurePolicy,
    Goal,
    Membership,
    Observability,
    Output,
    ParallelPlan,
    Placement,
    Provenance,
    RecoveryGoals,
    RepairableRole,
    RunSpec,
    Security,
    check_resume,
    codec,
    compare,
    pairs,
    rule_of,
)
from durable_core.types import Promise

#: written by the version before there were sections, with the digest that it gave
GOLDEN = (
    '{"v": 1, "run_key": "main", "promise": "bitwise", "seed": 7, "model": {"cls": "pkg.Net", '
    '"parameters": 16, "parameters_digest": '
    '"sha256:f0790bd64e83562ca13b161db022511ceb0c2c73baa5e0589a17f213acfd6510", "initial": '
    '"sha256:abababababababababababababababababababababababababababababababab"}, "optimizer": {"config": '
    '{"0.class": "AdamW", "0.groups.0.betas.0": 0.9, "0.groups.0.betas.1": 0.999, "0.groups.0.lr": '
    '0.001}}, "data": {"dataset_id": '
    '"sha256:abababababababababababababababababababababababababababababababab", "verified": true, "size":'
    ' 100, "order": "shuffled", "remainder": "drop", "global_batch": 8, "tokenizer": null, "num_workers":'
    ' 2}, "precision": "32-true", "roles": ["dp0", "dp1"], "accumulation": 2, "target": {"max_steps": 50,'
    ' "max_epochs": null}, "checkpoint": {"every_n_steps": 5, "every_seconds": 2.5, "keep_last": 3, '
    '"keep_every_n_steps": null, "backlog": "skip", "rpo_steps": 10, "on_rpo_breach": "continue"}, '
    '"cancel_authority": ["operator"], "algorithms": {"sampler": 1, "shuffle": 1, "mixture": 1, "packer":'
    ' 1, "checkpoint_schema": 1, "manifest_format": 1}, "provenance": {"code_digest": '
    '"sha256:abababababababababababababababababababababababababababababababab", "source_revision": '
    '"0000000000000000000000000000000000000000", "image": '
    '"r/t@sha256:abababababababababababababababababababababababababababababababab", "environment": '
    '{"torch": "2.13.0"}}, "accept_distribution": false, "reason": "", "parent_spec": null}'
)
GOLDEN_DIGEST = "sha256:01307d381f8a986e73536dc57d124d43d7ce84b1a664d58e4ebbe6027c8fcf17"
PLAIN_DIGEST = "sha256:5e0203b349885bffa5ea6120c954a94b63153ead918194bed9c20d518fbaf25d"

WHOLE: dict[str, Any] = {
    "owner": "pretraining",
    "membership": Membership(elastic=Elastic(2, 4, uneven="spread")),
    "parallel": ParallelPlan(dp=2, tp=2, ep=2, placement=Placement(group=2, avoid=("rack3",))),
    "batch": Batch(sequence_length=4096, loss_reduction="token-mean"),
    "recovery": RecoveryGoals(goals=(Goal("host", rpo_seconds=60.0),), rollback_window_steps=100),
    "failure": FailurePolicy(max_restarts=9, retries=pairs({"F1": 5, "F5": 2}), backoff_seconds=0.5),
    "budgets": Budgets(cost=10, currency="EUR", device_hour_price=2, failures=7),
    "security": Security(credentials="env:STORE", scope=("runs/",), publish_authority=("release",)),
    "observability": Observability(sinks=("jsonl:/x",), alerts=pairs({"progress_stall": "oncall"})),
    "output": Output(artifacts=("model",), evaluation="sha256:" + "0" * 64, publish="accepted"),
}


def test_a_spec_from_before_the_sections_reads_back_with_its_digest() -> None:
    old = RunSpec.from_json(GOLDEN)
    assert old.digest() == GOLDEN_DIGEST and old.to_json() == json.loads(GOLDEN)
    assert RunSpec().digest() == PLAIN_DIGEST
    assert old.membership is None and old.failure == FailurePolicy()


@pytest.mark.parametrize("name", WHOLE)
def test_every_section_reads_back_and_changes_the_digest(name: str) -> None:
    spec = RunSpec(**{name: WHOLE[name]})
    assert RunSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert spec.digest() != RunSpec().digest()
    assert all(part.split(".")[0] == name for part in spec.diff(RunSpec()))


def test_all_sections_together_and_later_fields_of_old_ones_read_back() -> None:
    spec = dataclasses.replace(
        RunSpec(**WHOLE),
        data=DataSpec(dataset_id="x", transforms="3", mixture="2"),
        provenance=Provenance(package_lock="sha256:" + "0" * 64, kernels=pairs({"triton": "3.4"})),
    )
    assert RunSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    hash(spec)


def test_the_same_amount_written_otherwise_has_the_same_digest() -> None:
    assert (
        RunSpec(budgets=Budgets(wall_seconds=60)).digest()
        == RunSpec(budgets=Budgets(wall_seconds=60.0)).digest()
    )


def test_every_later_field_has_a_rule_of_its_own_section() -> None:
    assert {name.split(".")[0] for name in codec.later_fields()} <= set(FIELD_RULES)
    assert {item.name for item in dataclasses.fields(RunSpec)} <= set(FIELD_RULES)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"fixed": 2, "elastic": Elastic(1, 2)},
        {"fixed": 2, "role_repair": (RepairableRole("reward", ("c",), ()),)},
    ],
)
def test_exactly_one_membership_contract_is_selected(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="exactly one"):
        Membership(**changes)


@pytest.mark.parametrize(
    ("named", "make"),
    [
        ("membership.fixed", lambda: Membership(fixed=0)),
        ("membership.elastic", lambda: Membership(elastic=Elastic(3, 2))),
        ("membership.elastic.uneven", lambda: Elastic(1, 2, uneven="drop")),
        ("membership.elastic.supports", lambda: Elastic(1, 2, supports=("everything",))),
        ("membership.role_repair", lambda: Membership(role_repair=(RepairableRole("a", ("c",), ()),) * 2)),
        ("communicators", lambda: RepairableRole("a", (), ("weights",))),
        ("parallel.ep", lambda: ParallelPlan(dp=3, ep=2)),
        ("parallel.placement.group", lambda: ParallelPlan(dp=3, placement=Placement(group=2))),
        ("batch.unit", lambda: Batch(unit="words")),
        ("recovery.goals", lambda: RecoveryGoals(goals=(Goal("host", rpo_steps=1),) * 2)),
        ("recovery.probation_steps", lambda: RecoveryGoals(probation_steps=-1)),
        ("failure.retries.F21", lambda: FailurePolicy(retries=(("F21", 1),))),
        ("failure.retries.F7", lambda: FailurePolicy(retries=(("F7", 1),))),
        ("failure.retries.F1", lambda: FailurePolicy(retries=(("F1", True),))),
        ("failure.backoff_seconds", lambda: FailurePolicy(backoff_seconds=9.0, backoff_max_seconds=1.0)),
        ("failure.repeat_threshold", lambda: FailurePolicy(repeat_threshold=1)),
        ("failure.quarantine", lambda: FailurePolicy(quarantine=("user",))),
        ("failure.collective_timeout_seconds", lambda: FailurePolicy(collective_timeout_seconds=0.0)),
        ("budgets.cost", lambda: Budgets(cost=1.0)),
        ("budgets.wall_seconds", lambda: Budgets(wall_seconds=float("nan"))),
        ("budgets.failures", lambda: Budgets(failures=-1)),
        ("observability.alerts", lambda: Observability(alerts=(("stall", ""),))),
        ("observability.trace_sampling", lambda: Observability(trace_sampling=2.0)),
        ("output.evaluation", lambda: Output(publish="accepted")),
        ("membership", lambda: RunSpec(membership=Membership(fixed=3), parallel=ParallelPlan(dp=2))),
    ],
)
def test_illegal_values_are_refused_by_name(named: str, make: Any) -> None:
    with pytest.raises(UsageError, match=named.replace(".", r"\.")):
        make()


@pytest.mark.parametrize(
    "value",
    [
        "AKIAABCDEFGHIJKLMNOP",
        "hunter2",
        "env:",
        "env:not a name",
        "https://a:b@store",
        "vault:ghp_" + "a" * 20,
    ],
)
def test_credentials_are_a_reference_and_the_value_is_never_shown(value: str) -> None:
    with pytest.raises(UsageError) as caught:
        Security(credentials=value)
    assert value.partition(":")[2] == "" or value not in str(caught.value)


@pytest.mark.parametrize("value", ["env:STORE", "file:/run/secrets/store", "profile:train", "vault:kv/train"])
def test_references_to_credentials_are_accepted(value: str) -> None:
    assert Security(credentials=value).credentials == value


@pytest.mark.parametrize("missing", CAPABILITIES)
def test_an_elastic_range_is_frozen_only_when_every_capability_is_declared(missing: str) -> None:
    def membership(supports: tuple[str, ...]) -> RunSpec:
        return RunSpec(
            membership=Membership(elastic=Elastic(1, 2, supports=supports)), promise=Promise.EXACT_ORDER
        )

    membership(CAPABILITIES).freeze()
    with pytest.raises(UsageError, match=missing):
        membership(tuple(each for each in CAPABILITIES if each != missing)).freeze()


def test_an_elastic_range_cannot_keep_bits() -> None:
    elastic = Membership(elastic=Elastic(1, 2, supports=CAPABILITIES))
    with pytest.raises(UsageError, match="exact-order"):
        RunSpec(membership=elastic).freeze()
    RunSpec(membership=Membership(elastic=Elastic(2, 2, supports=CAPABILITIES))).freeze()


def test_a_dirty_working_tree_cannot_be_frozen() -> None:
    with pytest.raises(UsageError, match=r"provenance\.dirty"):
        RunSpec(provenance=Provenance(source_revision="0" * 40, dirty=True)).freeze()


@pytest.mark.parametrize(
    ("document", "named", "hint"),
    [
        ({"v": 1, "ownr": "a"}, r"spec\.ownr", "owner"),
        ({"v": 1, "budgets": {"wall_time": 3}}, r"spec\.budgets\.wall_time", "wall_seconds"),
        ({"v": 1, "membership": {"elastic": {"min": 1}}}, r"spec\.membership\.elastic\.max", ""),
        ({"v": 1, "recovery": {"goals": {"domain": "host"}}}, r"spec\.recovery\.goals", ""),
        ({"v": 1, "recovery": {"goals": [{"domain": "moon", "rpo_steps": 1}]}}, "moon", ""),
    ],
)
def test_malformed_sections_are_named_with_the_nearest_key(document: Any, named: str, hint: str) -> None:
    with pytest.raises(FormatError, match=named) as caught:
        RunSpec.from_json(document)
    assert hint in caught.value.hint


# --- what a restart may change ---------------------------------------------------------------


def test_policy_may_change_at_any_restart() -> None:
    free = {name: value for name, value in WHOLE.items() if name not in ("membership", "parallel", "batch")}
    comparison = check_resume(RunSpec(**free), RunSpec(owner="other", budgets=Budgets(failures=1)))
    assert comparison.same_run and not comparison.warned


def test_a_changed_membership_contract_is_refused_under_the_bitwise_promise_only() -> None:
    was, now = RunSpec(membership=Membership(fixed=2)), RunSpec(membership=Membership(elastic=Elastic(1, 2)))
    with pytest.raises(SpecMismatchError) as caught:
        check_resume(was, now)
    assert "membership.fixed" in caught.value.fields
    lower = {"promise": Promise.EXACT_ORDER}
    assert compare(dataclasses.replace(was, **lower), dataclasses.replace(now, **lower)).same_run


def test_what_one_of_the_two_does_not_say_is_no_difference() -> None:
    said = RunSpec(**WHOLE)
    assert check_resume(RunSpec(), said).same_run and check_resume(said, RunSpec()).same_run


def test_batch_semantics_are_the_run() -> None:
    with pytest.raises(SpecMismatchError, match=r"batch\.loss_reduction"):
        check_resume(RunSpec(batch=Batch()), RunSpec(batch=Batch(loss_reduction="sum")))
    assert rule_of("parallel.placement.within").name == "FREE"
