"""L6. ``durable agent``: keeps other hosts' objects in this host's memory, until it is told to end."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from durable_core.cli.options import size
from durable_core.cli.output import OK, Answer, epilog, human_bytes, show
from durable_core.errors import UsageError

if TYPE_CHECKING:
    from durable_core.tier.peer.agent import Agent

_EPILOG = epilog()


@click.command("agent", epilog=_EPILOG)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="0: any that is free."
)
@click.option("--directory", help="Where to keep objects. Default: one of this user's in /dev/shm.")
@click.option("--capacity", callback=size, help="As 8GiB. Default: half of the directory's file system.")
@click.option("--rate", callback=size, help="Bytes per second in all, as 500MiB. Default: no limit.")
@click.option("--secret-file", help="Default: DURABLE_PEER_SECRET, or the file DURABLE_PEER_SECRET_FILE.")
@click.option("--tls-cert", help="PEM file; with --tls-key, only TLS is spoken.")
@click.option("--tls-key", help="PEM file.")
@click.option("--port-file", help="Write host:port there once ready.")
@click.option(
    "--forget", is_flag=True, help="At the end delete what is kept. Default: the next agent has it."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def agent(
    host: str, port: int, directory: str | None, capacity: int | None, rate: int | None,
    secret_file: str | None, tls_cert: str | None, tls_key: str | None, port_file: str | None,
    forget: bool, as_json: bool,
) -> int:  # fmt: skip
    """Keep other hosts' snapshots in memory.

    One agent runs on each host. It says its address when it is ready, and ends on SIGTERM. What it keeps
    is in files in shared memory: a restarted agent has all of it.
    """
    from durable_core.tier.peer.agent import Agent
    from durable_core.tier.peer.secret import find_secret

    if (tls_cert is None) is not (tls_key is None):
        raise UsageError("TLS needs both --tls-cert and --tls-key")
    secret = find_secret(os.environ, secret_file)
    tls = None
    if tls_cert is not None and tls_key is not None:
        from durable_core.tier.peer.tls import agent_context

        tls = agent_context(tls_cert, tls_key)
    where = Path(directory) if directory is not None else _default_directory()
    if capacity is None:
        capacity = shutil.disk_usage(_existing(where)).total // 2
    # Blocked before any thread is started, so that they wait for sigwait below.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    with ExitStack() as stack:
        serving = stack.enter_context(
            Agent(
                where, secret=secret, capacity_bytes=capacity, host=host, port=port, tls=tls,
                bytes_per_second=rate or 0,
            )
        )  # fmt: skip
        if port_file is not None:
            _write_whole(Path(port_file), f"{serving.address}\n")
            stack.callback(Path(port_file).unlink, missing_ok=True)
        _announce(serving, where, capacity, as_json=as_json)
        signal.sigwait({signal.SIGTERM, signal.SIGINT})
        if forget:
            serving.close(forget=True)
    return OK


def _announce(serving: Agent, where: Path, capacity: int, *, as_json: bool) -> None:
    used = serving.store.room.used
    document = {
        "address": serving.address,
        "pid": os.getpid(),
        "directory": str(where),
        "capacity_bytes": capacity,
        "used_bytes": used,
    }
    line = f"agent at {serving.address}: {human_bytes(used)} of {human_bytes(capacity)} in {where}"
    show(Answer(document, [line]), as_json=as_json)
    sys.stdout.flush()


def _default_directory() -> Path:
    return Path(f"/dev/shm/durable-{os.getuid()}/peer")


def _existing(path: Path) -> Path:
    """The nearest directory that is there."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())


def _write_whole(path: Path, text: str) -> None:
    """Whoever waits for the file never reads half of it."""
    tmp = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        tmp.write_text(text)
        tmp.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
