"""The remote tier passes the contract of all tiers, on a real server and an emulated one, by each client."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from remote_servers import BUCKET

from durable_core.testing.tier_contract import TierContract
from durable_core.tier.remote import RemoteOptions, RemoteTier
from durable_core.tier.remote.client import ObjectClient
from durable_core.tier.remote.options import Place


@pytest.fixture(scope="module")
def clients() -> dict[tuple[str, str], ObjectClient]:
    """Making one takes a while (botocore reads its models), and they know nothing of prefixes."""
    return {}


class Remote(TierContract):
    server: str
    backend: str

    @pytest.fixture
    def tier(
        self,
        request: pytest.FixtureRequest,
        clients: dict[tuple[str, str], ObjectClient],
        open_at: Callable[..., RemoteTier],
        prefix: str,
    ) -> RemoteTier:
        which = self.server, self.backend
        if which not in clients:
            endpoint = request.getfixturevalue(self.server)
            clients[which] = open_at(endpoint, backend=self.backend).client
        return RemoteTier(clients[which], Place("s3", BUCKET, f"{prefix}/"), RemoteOptions())


class OnWeed(Remote):
    server = "weed"
    race_threads = 3  # SeaweedFS waits about a second for a lock that more contend for
    race_rounds = 5


class TestObstoreOnWeed(OnWeed):
    backend = "obstore"


class TestS3fsOnWeed(OnWeed):
    backend = "s3fs"


class TestObstoreOnMoto(Remote):
    server, backend = "moto", "obstore"
    race_rounds = 10


class TestS3fsOnMoto(Remote):
    server, backend = "moto", "s3fs"
    race_rounds = 10
