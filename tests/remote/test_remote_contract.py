"""The remote tier passes the contract of all tiers, on a real server and an emulated one, by each client."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from durable_core.testing.tier_contract import TierContract
from durable_core.tier.remote import RemoteTier


class Remote(TierContract):
    server: str
    backend: str

    @pytest.fixture
    def tier(self, request: pytest.FixtureRequest, open_at: Callable[..., RemoteTier]) -> RemoteTier:
        return open_at(request.getfixturevalue(self.server), backend=self.backend)


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
