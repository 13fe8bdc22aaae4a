"""``durable agent`` as real processes: ready, killed, restarted, ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from peer_agents import BIG, DEADLINE, KEY, SECRET_TEXT, client, shared_memory

from durable_core.cli.app import run
from durable_core.errors import Fenced, InDoubt, TierError, TierUnavailable
from durable_core.tier.peer.seals import BLOCK
from durable_core.tier.peer.secret import read_secret, write_secret


@pytest.fixture
def directory() -> Iterator[Path]:
    with shared_memory() as path:
        yield path


def start(*arguments: object, **environ: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "durable_core.cli", "agent", *map(str, arguments)]
    env = {**os.environ, "DURABLE_PEER_SECRET": SECRET_TEXT, **environ}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


@contextlib.contextmanager
def agent(directory: Path, *arguments: object) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A process that is ready, and what it said; ended by the test, or killed."""
    process = start("--directory", directory, "--capacity", "64MiB", "--json", *arguments)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()
        yield process, json.loads(line)
    finally:
        process.kill()
        process.communicate()


def test_killed_and_restarted_it_has_everything(directory: Path) -> None:
    with agent(directory) as (process, said):
        tier = client(said["address"], generation=5)
        tier.write_object(KEY, [BIG])
        process.kill()
        process.wait()
        with pytest.raises(TierUnavailable):
            tier.get(KEY)
    with agent(directory) as (_, again):
        assert again["used_bytes"] > len(BIG)
        assert client(again["address"]).get(KEY) == BIG
        with pytest.raises(Fenced):
            client(again["address"], generation=4).put("hints/x", b"x")


def test_a_client_goes_on_with_the_agent_that_took_its_place(directory: Path) -> None:
    """Its idle connection leads nowhere, which it notices before it says anything on it."""
    with agent(directory) as (process, said):
        tier = client(said["address"])
        tier.put("hints/x", b"1")
        process.kill()
        process.wait()
        with agent(directory, "--port", said["address"].rpartition(":")[2]):
            tier.put("hints/x", b"2")
            assert tier.get("hints/x") == b"2"


def test_killed_in_the_middle_of_a_write_it_has_no_part_of_it(directory: Path) -> None:
    with agent(directory) as (process, said):
        tier = client(said["address"])
        tier.put_if_absent("a/whole", b"whole")

        def parts() -> Iterator[bytes]:
            yield bytes(3 * BLOCK)
            process.kill()
            process.wait()
            for _ in range(64):
                yield bytes(BLOCK)

        with pytest.raises(TierUnavailable):
            tier.write_object(KEY, parts())
    with agent(directory) as (_, again):
        tier = client(again["address"])
        assert list(tier.list("")) == ["a/whole"]
        assert list((directory / "runs").glob("*/tmp/*")) == []  # nor the memory of what was half written
        assert tier.write_object(KEY, [BIG]) == len(BIG)


def test_whatever_was_acknowledged_survives_a_kill_at_any_time(directory: Path) -> None:
    for round_ in range(3):
        acknowledged: list[str] = []
        with agent(directory) as (process, said):
            killer = threading.Timer(0.05 * (round_ + 1), process.kill)
            tier = client(said["address"])
            killer.start()
            with contextlib.suppress(TierError):
                for i in range(100_000):
                    key = f"objects/{round_}-{i}"
                    tier.write_object(key, [key.encode() * 1000])
                    acknowledged.append(key)
            killer.join()
            process.wait()
        with agent(directory) as (_, again):
            tier = client(again["address"])
            found = set(tier.list("objects/"))
            assert set(acknowledged) <= found
            assert all(tier.get(key) == key.encode() * 1000 for key in found)
            tier.forget()


def test_a_write_that_meets_the_kill_is_in_doubt_or_was_not_done(directory: Path) -> None:
    with agent(directory) as (process, said):
        tier = client(said["address"])
        tier.put("hints/x", b"0")
        process.send_signal(signal.SIGSTOP)
        threading.Timer(0.1, process.kill).start()
        with pytest.raises(InDoubt):
            tier.put("hints/x", b"1")


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_cleanly_and_removes_nothing(directory: Path, tmp_path: Path, ending: signal.Signals) -> None:
    port_file = tmp_path / "port"
    with agent(directory, "--port-file", port_file) as (process, said):
        assert port_file.read_text() == f"{said['address']}\n"
        assert said["pid"] == process.pid and said["capacity_bytes"] == 64 << 20
        tier = client(said["address"])  # it stays connected
        tier.put_if_absent(KEY, b"kept")
        process.send_signal(ending)
        out, err = process.communicate(timeout=DEADLINE)
        assert (process.returncode, out, err) == (0, "", "")
        assert not port_file.exists()
    with agent(directory) as (_, again):
        assert client(again["address"]).get(KEY) == b"kept"


def test_told_to_forget_it_leaves_no_object_behind(directory: Path) -> None:
    with agent(directory, "--forget") as (process, said):
        client(said["address"], generation=3).write_object(KEY, [BIG])
        process.terminate()
        assert process.wait(DEADLINE) == 0
    with agent(directory) as (_, again):
        assert again["used_bytes"] == 0
        assert list(client(again["address"], generation=3).list("")) == []
        with pytest.raises(Fenced):
            client(again["address"], generation=2).put("hints/x", b"x")


def test_for_people_it_says_one_line(directory: Path) -> None:
    process = start("--directory", directory)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("agent at 127.0.0.1:") and str(directory) in line
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert SECRET_TEXT not in line
        process.terminate()
        out, err = process.communicate(timeout=DEADLINE)
        assert (process.returncode, out, err) == (0, "", "")
    finally:
        process.kill()
        process.communicate()


def test_the_secret_comes_from_a_file(directory: Path, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_secret(path)
    with agent(directory, "--secret-file", path) as (_, said):
        client(said["address"], secret=read_secret(path)).put(KEY, b"x")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--capacity", "lots"], "no size"),
        (["--capacity", "0"], "no size"),
        (["--tls-cert", "x"], "--tls-key"),
        (["--tls-cert", "/nowhere", "--tls-key", "/nowhere"], "certificate"),
        (["--secret-file", "/nowhere"], "secret file"),
        (["--port", "70000"], "--port"),
    ],
)
def test_a_wrong_setting_is_a_usage_error(
    arguments: list[str], says: str, directory: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("DURABLE_PEER_SECRET", SECRET_TEXT)
    assert run(["agent", "--directory", str(directory), *arguments]) == 2
    assert says in capsys.readouterr().err


def test_a_taken_port_is_said(directory: Path, tmp_path: Path) -> None:
    with agent(directory) as (_, said):
        process = start("--directory", tmp_path / "other", "--port", said["address"].rpartition(":")[2])
        _, err = process.communicate(timeout=DEADLINE)
        assert process.returncode == 1 and "cannot listen" in err and len(err.splitlines()) == 1
