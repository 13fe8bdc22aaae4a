"""Where a run keeps its bytes in the tier campaign, and how a worker, a host and the whole cluster are lost.

The cluster is this machine in disguise: a directory in shared memory is the host's memory, a directory is
its disk, an agent process is another host, an S3 server (or, asked for, one more directory) is far away.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Kind = Literal["worker", "host", "cluster"]
KINDS: tuple[Kind, ...] = ("worker", "host", "cluster")
SECRET = "a secret for the torture of the tiers"


@dataclass(frozen=True)
class Places:
    """The root of one run, what stands in front of it, and the environment that opens it.

    ``disk`` is ``None`` where the root is a directory itself; ``far``: what the journal calls the root.
    """

    home: str
    far: str
    memory: str
    disk: str | None
    peers: tuple[str, ...]
    env: Mapping[str, str]

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Places:
        return Places(**{**document, "peers": tuple(document["peers"])})

    def tiers(self) -> Any:
        """As a script declares them. Imported late: the campaign itself needs no framework."""
        from durable_core.session.places import Disk, Memory, Peer, Tiers

        return Tiers(
            memory=Memory(every_n_steps=1, directory=self.memory),
            peer=Peer(addresses=self.peers, every_n_steps=1),
            disk=None if self.disk is None else Disk(self.disk),
        )


class Agent:
    """Another host: ``durable agent``, which keeps what it is sent in that host's memory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.address = ""
        self._start("0")

    def _start(self, port: str) -> None:
        command = [
            sys.executable, "-m", "durable_core.cli", "agent", "--directory", str(self._directory),
            "--port", port, "--capacity", "1GiB", "--json",
        ]  # fmt: skip
        environment = {**os.environ, "DURABLE_PEER_SECRET": SECRET}
        self._process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the agent ended with {self._process.wait()}")
        self.address = str(json.loads(line)["address"])

    def lose(self) -> None:
        """The machine is gone; an empty one takes its address."""
        self.close()
        self._start(self.address.rpartition(":")[2])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        shutil.rmtree(self._directory, ignore_errors=True)


class Cluster:
    """One host to train on, another that keeps copies, and the store behind both."""

    def __init__(self, base: Path, memory: Path, *, endpoint: str | None) -> None:
        self._base, self._memory, self._endpoint = base, memory, endpoint
        self._agent = Agent(memory / "other-host")

    @property
    def env(self) -> dict[str, str]:
        found = {"DURABLE_PEER_SECRET": SECRET}
        if self._endpoint is not None:
            from tests.remote.remote_servers import CREDENTIALS

            found |= {**CREDENTIALS, "AWS_ENDPOINT_URL": self._endpoint}
        return found

    def places(self, name: str) -> Places:
        memory = self._memory / "this-host" / name
        memory.mkdir(parents=True)
        peers = (self._agent.address,)
        if self._endpoint is None:
            return Places(str(self._base / f"{name}.root"), "disk", str(memory), None, peers, self.env)
        from tests.remote.remote_servers import BUCKET

        disk = self._base / f"{name}.disk"
        disk.mkdir(parents=True)
        home = f"s3://{BUCKET}/{self._base.name}-{name}"
        return Places(home, "remote", str(memory), str(disk), peers, self.env)

    def lose(self, kind: Kind, places: Places) -> None:
        """After every process of the run is dead: what dies with it."""
        if kind == "worker":
            return
        _empty(places.memory)
        if kind == "cluster":
            if places.disk is not None:
                _empty(places.disk)
            self._agent.lose()

    def forget(self, places: Places) -> None:
        """A run has ended: its memory is given back."""
        shutil.rmtree(places.memory)

    def journal(self, places: Places) -> list[dict[str, Any]]:
        """The records of a run, in order: read straight from the store, not through the code under test."""
        if self._endpoint is None:
            paths = sorted((Path(places.home) / "journal").glob("*.json"))
            return [json.loads(path.read_bytes()) for path in paths]
        from tests.remote.remote_servers import BUCKET, raw_client

        client, prefix = raw_client(self._endpoint), places.home.removeprefix(f"s3://{BUCKET}/") + "/journal/"
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        keys = sorted(item["Key"] for page in pages for item in page.get("Contents", ()))
        return [json.loads(client.get_object(Bucket=BUCKET, Key=key)["Body"].read()) for key in keys]

    def close(self) -> None:
        self._agent.close()


def _empty(directory: str) -> None:
    shutil.rmtree(directory)
    Path(directory).mkdir()


@contextlib.contextmanager
def cluster(base: Path, *, remote: bool) -> Iterator[Cluster]:
    """A fresh one; all its processes end, and its memory is given back, with the block."""
    with contextlib.ExitStack() as stack:
        shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        memory = stack.enter_context(tempfile.TemporaryDirectory(prefix="durable-torture-", dir=shm))
        endpoint = stack.enter_context(server(base / "s3")) if remote else None
        made = Cluster(base, Path(memory), endpoint=endpoint)
        stack.callback(made.close)
        yield made


@contextlib.contextmanager
def server(directory: Path) -> Iterator[str]:
    """A real S3 server with an empty bucket: its endpoint."""
    from tests.remote.remote_servers import BUCKET, raw_client, start_weed

    directory.mkdir(parents=True)
    process, endpoint = start_weed(directory)
    try:
        raw_client(endpoint).create_bucket(Bucket=BUCKET)
        yield endpoint
    finally:
        process.kill()
        process.wait()
