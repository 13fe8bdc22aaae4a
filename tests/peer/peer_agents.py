"""What the tests of the peer tier share: a secret, a directory in memory, connections by hand."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from durable_core.tier.peer.secret import Secret

SECRET = Secret("a secret for the tests")
RUN = "0123456789abcdef0123456789abcdef"
OTHER_RUN = "f" * 32


@contextlib.contextmanager
def shared_memory() -> Iterator[Path]:
    """A directory of its own in shared memory where there is one; removed afterwards."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base, prefix="durable-peer-test-") as path:
        yield Path(path) / "agent"
