"""The command line on a run in an object store, killed while its newest checkpoints lay on a disk alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from remote_servers import BUCKET

from durable_core.cli.app import run as durable
from durable_core.engine.inspect import open_run

HERE = Path(__file__).parent

#: Commits on the disk, copies none of it, and is gone.
KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from remote_loop import train
from durable_core import Disk, Tiers
from durable_core.clock import SystemClock

clock = SystemClock()

def at(step, session):  # flush() would wait for the copy as well
    deadline = clock.monotonic() + 60
    while session.status().newest_step != step and clock.monotonic() < deadline:
        clock.sleep(0.005)
    if step == 3:
        os.kill(os.getpid(), signal.SIGKILL)

train(sys.argv[2], 10, at=at, tiers=Tiers(disk=Disk(sys.argv[3], every=1000)))
"""


@pytest.fixture
def root(prefix: str, weed: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", weed)
    return f"s3://{BUCKET}/runs/{prefix}-disk"


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = durable([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_what_only_the_disk_has_is_elsewhere_and_repaired_there(
    root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = [sys.executable, "-c", KILLED, str(HERE), root, str(disk)]
    killed = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    newest = open_run(root).committed()[-1]
    assert newest.step == 3 and newest.tiers == ("disk",)

    code, found = answer(capsys, "verify", root)
    assert code == 0 and found["checkpoints"][-1]["elsewhere"]
    assert durable(["verify", root, "--strict"]) == 5
    code, found = answer(capsys, "scrub", root, "--disk", str(disk))
    assert code == 0 and found["faults"] == [], (
        "the origin lies in the root alone, the rest on the disk alone"
    )

    (shard,) = disk.rglob(f"*-c{newest.c:08d}-*/*.safetensors")
    shard.chmod(0o644)
    data = bytearray(shard.read_bytes())
    data[4096 + 8] ^= 1
    shard.write_bytes(data)
    code, found = answer(capsys, "scrub", root, "--repair")
    assert code == 0, "a disk that was not read is nobody's fault"
    code, found = answer(capsys, "scrub", root, "--disk", str(disk), "--repair")
    assert code == 5 and [mark["unseen"] for mark in found["lost"]] == [""]
    assert open_run(root).newest_usable().step < 3
