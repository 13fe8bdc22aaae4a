"""The peer tier passes the contract of tiers, against an agent in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from peer_agents import RUN, SECRET, shared_memory

from durable_core.testing.tier_contract import TierContract
from durable_core.tier.peer.agent import Agent
from durable_core.tier.peer.client import PeerTier


class TestPeer(TierContract):
    @pytest.fixture
    def tier(self) -> Iterator[PeerTier]:
        with (
            shared_memory() as directory,
            Agent(directory, secret=SECRET, capacity_bytes=1 << 28) as agent,
        ):
            tier = PeerTier(agent.address, run_id=RUN, generation=1, secret=SECRET)
            yield tier
            tier.close()
