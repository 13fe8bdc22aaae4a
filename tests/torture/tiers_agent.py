"""A host that keeps copies for others: ``tiers_agent.py DIRECTORY PORT``; prints its address and serves."""

from __future__ import annotations

import os
import signal
import sys

from durable_core.tier.peer.agent import Agent
from durable_core.tier.peer.secret import find_secret

CAPACITY = 1 << 30


def main() -> None:
    agent = Agent(sys.argv[1], secret=find_secret(os.environ), capacity_bytes=CAPACITY, port=int(sys.argv[2]))
    print(agent.address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
