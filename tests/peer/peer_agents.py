"""What the tests of the peer tier share: agents, clients, and connections made by hand."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from durable_core.clock import SystemClock
from durable_core.tier.peer.agent import Agent
from durable_core.tier.peer.client import PeerTier
from durable_core.tier.peer.connections import parse_address
from durable_core.tier.peer.frames import Channel, Stream, greet_as_client
from durable_core.tier.peer.seals import BLOCK
from durable_core.tier.peer.secret import Secret

SECRET_TEXT = "a secret for the tests"
SECRET = Secret(SECRET_TEXT)
OTHER_SECRET = Secret("another secret for the tests")
RUN = "0123456789abcdef0123456789abcdef"
OTHER_RUN = "f" * 32
KEY = "snapshots/g000001-s000000000001/dp0-0123abcd.slot"
DEADLINE = 20.0

#: Three blocks, the last one short, no two of the same bytes.
BIG = bytes(i % 251 for i in range(2 * BLOCK + 12345))


@contextlib.contextmanager
def shared_memory() -> Iterator[Path]:
    """A directory to be, in shared memory where there is some; removed afterwards."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    path = tempfile.mkdtemp(dir=base, prefix="durable-peer-test-")
    try:
        yield Path(path) / "agent"
    finally:
        shutil.rmtree(path)


@contextlib.contextmanager
def serving(directory: Path | None = None, **options: Any) -> Iterator[Agent]:
    with contextlib.ExitStack() as stack:
        where = stack.enter_context(shared_memory()) if directory is None else directory
        yield stack.enter_context(Agent(where, **{"secret": SECRET, "capacity_bytes": 1 << 28, **options}))


def client(agent: Agent | str, **options: Any) -> PeerTier:
    address = agent if isinstance(agent, str) else agent.address
    return PeerTier(
        address, **{"run_id": RUN, "generation": 1, "secret": SECRET, "timeout": DEADLINE, **options}
    )


def dial(address: str) -> socket.socket:
    """A bare connection, whose waits end in an error."""
    sock = socket.create_connection(parse_address(address), timeout=DEADLINE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def channel(address: str, secret: Secret = SECRET, *, hello: bool = True) -> Channel:
    """Frames over a connection of one's own; past ``hello`` unless told otherwise."""
    stream = Stream(dial(address), SystemClock(), DEADLINE)
    made = greet_as_client(stream, secret, address)
    if hello:
        made.send({"op": "hello", "run": RUN, "generation": 1})
        assert made.receive().header == {"highest": 1}
    return made


def is_closed(sock: socket.socket) -> bool:
    """Whether the agent ends the connection (before the deadline) without another word."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def until(condition: Callable[[], bool]) -> None:
    """Wait for something in this process to become so."""
    clock = SystemClock()
    deadline = clock.monotonic() + DEADLINE
    while not condition():
        assert clock.monotonic() < deadline, "it did not happen"
        clock.sleep(0.002)
