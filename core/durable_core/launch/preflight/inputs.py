"""L5. Checks of what the run reads and of where it is told of."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

from durable_core.data import manifest as manifests
from durable_core.errors import CorruptError, DataUnavailableError, UsageError
from durable_core.launch.preflight.report import Found, failed, not_applicable, ok
from durable_core.launch.preflight.target import Target

#: Seconds for a metric sink to accept a connection.
CONNECT_S = 1.0
_PORTS = {"http": 80, "https": 443}


def data(target: Target) -> Found:
    """The manifest can be read, is the one that the spec names, and a sample of its objects is as it says."""
    if not target.data:
        return not_applicable("no manifest was given")
    try:
        manifest = manifests.load(target.data)
        root = target.data_root or manifests.root_of(target.data, manifest)
        named = target.spec.data.dataset_id if target.spec.data is not None else ""
        if named.startswith("sha256:") and named != manifest.dataset_id:
            return failed(
                f"the manifest is of {manifest.dataset_id}, the spec names {named}", "give that one"
            )
        found = manifests.verify(manifest, root, sample=target.sample)
    except (CorruptError, DataUnavailableError, UsageError) as error:
        return failed(error.message, error.hint or "durable data verify")
    if found.faults:
        fault = found.faults[0]
        return failed(
            f"{len(found.faults)} of {found.looked_at} objects: {fault.name}: {fault.reason}",
            "durable data verify tells them all",
        )
    return ok(f"{found.looked_at} objects are there, {found.read} of them read and as the manifest says")


def cache(target: Target) -> Found:
    """A sample of the newest objects in the cache is what their names say."""
    if not target.cache:
        return not_applicable("no cache was given")
    folder = Path(target.cache).expanduser() / "objects"
    if not folder.is_dir():
        return not_applicable(f"{target.cache} is empty")
    try:
        files = sorted(folder.glob("??/" + "?" * 64), key=lambda path: path.stat().st_mtime, reverse=True)
        damaged = [path.name for path in files[: target.sample] if _digest(path) != path.name]
    except FileNotFoundError:  # given up for another object meanwhile
        return ok(f"{target.cache} is in use")
    except OSError as error:
        return failed(f"{target.cache}: {error.strerror}", "let this user read the cache")
    if damaged:
        return failed(f"{', '.join(damaged)} in {target.cache} are not what they should be", "remove them")
    return ok(f"{min(len(files), target.sample)} of {len(files)} objects read and whole")


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            found.update(chunk)
    return found.hexdigest()


def telemetry(target: Target) -> Found:
    """Every metric sink takes what is sent to it."""
    sinks = target.spec.observability.sinks
    if not sinks:
        return not_applicable("no sink is declared")
    wrong = [f"{sink}: {why}" for sink in sinks if (why := _unreachable(sink))]
    if wrong:
        return failed("; ".join(wrong), "mend the sink, or take it out of observability.sinks")
    return ok(f"{len(sinks)} sinks can be reached")


def _unreachable(sink: str) -> str:
    """``jsonl:PATH`` is a file to append to; any URL with a host is connected to."""
    kind, _, rest = sink.partition(":")
    if kind == "jsonl":
        path = Path(rest).expanduser()
        if path.exists():
            return "" if path.is_file() and os.access(path, os.W_OK) else "cannot be appended to"
        return "" if os.access(path.parent, os.W_OK | os.X_OK) else "its directory cannot be written"
    url = urlsplit(sink)
    port = url.port or _PORTS.get(url.scheme)
    if not url.hostname or port is None:
        return "is neither jsonl:PATH nor a URL with a host and a port"
    try:
        socket.create_connection((url.hostname, port), CONNECT_S).close()
    except OSError as error:
        return f"{error.strerror or error}"
    return ""
