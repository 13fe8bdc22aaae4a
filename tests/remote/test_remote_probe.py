"""A store that does not honour create-if-absent is refused before anything is trusted to it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from remote_servers import BUCKET, Careless, FaultProxy, closing, raw_client

from durable_core.errors import TierUnavailable, UnsupportedError, UsageError
from durable_core.session import Run
from durable_core.tier.remote import RemoteTier

Opener = Callable[..., RemoteTier]


@pytest.mark.parametrize("fault", [fault for fault in Careless.FAULTS if fault != "none"])
def test_each_kind_of_careless_store_is_refused(open_at: Opener, backend: str, fault: str) -> None:
    store = Careless(fault)
    with closing(store):
        tier = open_at(store.endpoint, backend=backend)
        with pytest.raises(UnsupportedError, match="If-None-Match") as caught:
            tier.probe()
        assert tier.location in str(caught.value)
        assert tier.proof is None and store.objects == {}


def test_the_same_store_without_its_fault_is_accepted(open_at: Opener, backend: str) -> None:
    store = Careless("none")
    with closing(store):
        open_at(store.endpoint, backend=backend).probe()
        assert store.objects == {}


def test_a_run_does_not_start_on_a_careless_store(monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    store = Careless("overwrites")
    with closing(store), pytest.raises(UnsupportedError, match="second create"):
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
        Run.open(f"s3://{BUCKET}/{prefix}")
    assert store.objects == {}


def test_checksums_are_proved_where_a_wrong_one_can_be_sent(weed: str, moto: str, open_at: Opener) -> None:
    cases = [(weed, "s3fs", True), (moto, "s3fs", False), (weed, "obstore", None)]
    for endpoint, backend, verified in cases:
        tier = open_at(endpoint, backend=backend)
        tier.probe()
        assert tier.proof is not None and tier.proof.checksums is verified
        assert bool(tier.proof.warning) is (verified is False)


def test_a_lost_answer_proves_nothing_and_is_tried_again(
    proxy: FaultProxy, weed: str, open_at: Opener, backend: str, prefix: str
) -> None:
    tier = open_at(proxy.endpoint, backend=backend)
    proxy.add("drop-answer", when=lambda seen: seen.method == "PUT", times=2)
    tier.probe()
    assert tier.proof is not None
    proxy.add("answer", times=999)
    with pytest.raises(TierUnavailable):
        tier.probe()
    proxy.clear()
    tier.probe()
    # What a failed probe could not remove is a temporary: no key, and collected when it is old.
    left = [item["Key"] for item in _objects(weed, prefix)]
    assert all(name.startswith(f"{prefix}/tmp/probe-") for name in left)
    assert list(tier.list("")) == []


def _objects(endpoint: str, prefix: str) -> list[dict[str, str]]:
    found = raw_client(endpoint).list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/")
    return list(found.get("Contents", ()))


def test_a_scheme_without_a_client_says_so(open_at: Opener) -> None:
    from durable_core.tier.remote import RemoteOptions, open_remote

    with pytest.raises(UsageError, match="gs://"):
        open_remote("gs://bucket/run", RemoteOptions(backend="s3fs"))
