"""The peer tier passes the contract of tiers, against an agent in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from peer_agents import client, serving

from durable_core.testing.tier_contract import TierContract
from durable_core.tier.peer.client import PeerTier


class TestPeer(TierContract):
    @pytest.fixture
    def tier(self) -> Iterator[PeerTier]:
        with serving() as agent:
            tier = client(agent)
            yield tier
            tier.close()
