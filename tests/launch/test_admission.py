"""Admission of whole gangs in a simulated cluster, and its reasons; members are another contract."""

from __future__ import annotations

import dataclasses

import pytest

from durable_core.errors import UsageError
from durable_core.launch.admission import Admission, Members, Refused, Request, Why, choose
from durable_core.launch.cluster import Cluster, Spares
from durable_core.spec import Budgets, ParallelPlan, Placement, RunSpec


def refused(answer: Admission | Refused) -> Refused:
    assert isinstance(answer, Refused), answer
    return answer


def admitted(answer: Admission | Refused) -> Admission:
    assert isinstance(answer, Admission), answer
    return answer


def test_admission_and_members_are_two_contracts() -> None:
    cluster = Cluster.of(1, 2, 2)
    admission = admitted(cluster.admit(Request(4), "op1"))
    first = Members.of(admission, 1, ("dp0", "dp1", "dp2", "dp3"))
    second = Members.of(admission, 2, ("dp3", "dp2", "dp1", "dp0"))
    assert not issubclass(Members, Admission)
    assert not any("rank" in item.name for item in dataclasses.fields(Members))
    assert first.admission == second.admission == admission.id and first.roles != second.roles
    with pytest.raises(UsageError, match="one device for each role"):
        Members.of(admission, 3, ("dp0",))


def test_a_gang_that_does_not_fit_holds_nothing() -> None:
    cluster = Cluster.of(1, 2, 2)
    answer = refused(cluster.admit(Request(5), "op1"))
    assert answer.why is Why.NOT_ENOUGH and "4 of 5" in answer.detail
    assert not cluster.held and len(cluster.free) == 4
    admitted(cluster.admit(Request(4), "op2"))


def test_enough_devices_may_have_no_valid_placement() -> None:
    cluster = Cluster.of(1, 4, 4)
    cluster.occupy(f"r0h{host}d{device}" for host in range(4) for device in (0, 1))
    answer = refused(cluster.admit(Request(8, group=4), "op1"))
    assert answer.why is Why.NO_PLACEMENT and "at most 2 in one host" in answer.detail
    assert len(admitted(cluster.admit(Request(8, group=2), "op2")).devices) == 8


def test_groups_lie_in_one_domain_of_the_level_that_is_asked_for() -> None:
    cluster = Cluster.of(2, 2, 2)
    cluster.occupy(["r0h0d0", "r0h1d0", "r1h0d0", "r1h1d0"])
    assert refused(cluster.admit(Request(2, group=2, within="host"), "op1")).why is Why.NO_PLACEMENT
    devices = admitted(cluster.admit(Request(4, group=2, within="rack"), "op2")).devices
    assert [device.rack for device in devices] == ["r0", "r0", "r1", "r1"]


def test_a_gang_goes_into_the_smallest_domain_that_holds_it() -> None:
    cluster = Cluster.of(1, 3, 4)
    cluster.occupy(["r0h1d0", "r0h1d1"])
    assert {device.host for device in admitted(cluster.admit(Request(2), "op1")).devices} == {"r0h1"}


def test_a_quarantined_node_is_its_own_reason_and_is_never_chosen() -> None:
    cluster = Cluster.of(1, 2, 2)
    cluster.quarantine("r0h0")
    answer = refused(cluster.admit(Request(4), "op1"))
    assert answer.why is Why.QUARANTINED and "r0h0" in answer.detail
    assert admitted(cluster.admit(Request(2), "op2")).hosts == ("r0h1",)
    cluster.quarantine("r0")
    assert refused(cluster.admit(Request(2), "op3")).why is Why.QUARANTINED
    for name in ("r0", "r0h0"):
        cluster.restore(name)
    assert admitted(cluster.admit(Request(2), "op4")).hosts == ("r0h0",)


def test_what_is_to_be_avoided_counts_as_not_there() -> None:
    cluster = Cluster.of(2, 1, 2)
    assert refused(cluster.admit(Request(4, avoid=frozenset({"r0"})), "op1")).why is Why.NOT_ENOUGH
    assert admitted(cluster.admit(Request(2, avoid=frozenset({"r0"})), "op2")).hosts == ("r1h0",)


def test_over_budget_is_said_before_anything_is_looked_for() -> None:
    parallel = ParallelPlan(dp=4, placement=Placement(group=2))
    spec, free = RunSpec(budgets=Budgets(device_hours=10), parallel=parallel), Cluster.of(1, 2, 2).free
    request = Request.of(spec, 4, used_device_hours=6, hours=1.5)
    assert (request.group, request.device_hours) == (2, 12)
    answer = choose(request, free)
    assert isinstance(answer, Refused) and answer.why is Why.OVER_BUDGET and "12 of 10" in answer.detail
    assert not isinstance(choose(Request.of(spec, 4, used_device_hours=6, hours=1), free), Refused)


def test_asking_again_under_one_op_id_takes_nothing_twice() -> None:
    cluster = Cluster.of(1, 2, 2)
    first = cluster.admit(Request(2), "op1")
    assert cluster.admit(Request(2), "op1") == first and len(cluster.held) == 2
    for _ in range(2):
        cluster.release(admitted(first).id)
    assert len(cluster.free) == 4


@pytest.mark.parametrize("spares", [0, 1])
def test_a_lost_host_is_replaced_with_and_without_spares(spares: int) -> None:
    cluster = Cluster.of(1, 4, 2, Spares(spares))
    assert len(cluster.free) == 8 - 2 * spares
    admission = admitted(cluster.admit(Request(4), "op1"))
    cluster.lose(admission.hosts[0])
    after = admitted(cluster.replace(admission.id, "op2"))
    assert after.id == admission.id and admission.hosts[0] not in after.hosts
    assert after.devices[2:] == admission.devices[2:], "who was not lost stays where it was"
    assert cluster.replace(admission.id, "op2") == after
    assert ("r0h3" in after.hosts) is bool(spares) and cluster.spares == ()


def test_a_loss_that_nothing_can_replace_changes_nothing_and_the_run_may_ask_again() -> None:
    cluster = Cluster.of(1, 2, 2)
    admission = admitted(cluster.admit(Request(4), "op1"))
    cluster.lose("r0h0")
    assert refused(cluster.replace(admission.id, "op2")).why is Why.NOT_ENOUGH
    cluster.release(admission.id)
    assert admitted(cluster.admit(Request(2), "op3")).hosts == ("r0h1",)


def test_a_replacement_lies_where_its_group_is() -> None:
    cluster = Cluster.of(2, 2, 1, Spares(1))  # the spare is in the other rack
    admission = admitted(cluster.admit(Request(2, group=2, within="rack"), "op1"))
    assert {device.rack for device in admission.devices} == {"r0"}
    cluster.lose("r0h0")
    assert refused(cluster.replace(admission.id, "op2")).why is Why.NO_PLACEMENT
    assert cluster.held == admission.devices and cluster.spares == ("r1h1",)


def test_the_usual_share_of_spares() -> None:
    assert Spares.of(1250, 0.01).hosts == 12 and Spares.of(10).hosts == 1 and Spares.of(10, 0).hosts == 0
    with pytest.raises(UsageError):
        Spares.of(10, 1.0)
