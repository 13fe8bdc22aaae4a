"""L6. A machine within the machine, for faults that are the kernel's: a file system that fills up or turns
read-only, two hosts with a wire between them. Linux user namespaces, no privileges needed; where they are not
allowed, the scenario says that it cannot be played here.
"""

from __future__ import annotations

import contextlib
import functools
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from durable_core.errors import UnsupportedError

_TOOLS_S = 20.0


@dataclass(frozen=True)
class Inside:
    """A namespace that is held open by process ``pid``; ``alone``: it has a network of its own."""

    pid: int
    alone: bool = False

    @property
    def prefix(self) -> tuple[str, ...]:
        """Before a command that is to run in it."""
        network = ("-n",) if self.alone else ()
        return ("nsenter", "-t", str(self.pid), "-U", "-m", *network, "--preserve-credentials")

    def run(self, *command: str) -> None:
        done = subprocess.run(
            (*self.prefix, *command), capture_output=True, text=True, timeout=_TOOLS_S, check=False
        )
        if done.returncode:
            raise UnsupportedError(f"{' '.join(command)}: {done.stderr.strip()}")

    def path(self, outside: Path) -> Path:
        """Where a path of the inside is seen from the outside."""
        return Path(f"/proc/{self.pid}/root") / outside.relative_to("/")


@functools.cache
def unavailable() -> str:
    """Why there are no namespaces here; ``""`` when there are."""
    for tool in ("unshare", "nsenter", "ip", "mount"):
        try:
            subprocess.run((tool, "--help"), capture_output=True, timeout=_TOOLS_S, check=False)
        except FileNotFoundError:
            return f"there is no {tool} on this machine"
    done = subprocess.run(
        ("unshare", "-rmn", "mount", "-t", "tmpfs", "none", "/mnt"),
        capture_output=True, text=True, timeout=_TOOLS_S, check=False,
    )  # fmt: skip
    return "" if done.returncode == 0 else f"user namespaces are not allowed here: {done.stderr.strip()}"


@contextlib.contextmanager
def machine(*, alone: bool = False) -> Iterator[Inside]:
    """With mounts of its own, and if ``alone`` with a network of its own in which there is loopback only.
    ``UnsupportedError`` where it cannot be had."""
    if why := unavailable():
        raise UnsupportedError(why)
    holder = subprocess.Popen(
        ("unshare", "-rmn" if alone else "-rm", "sh", "-c", "echo ready; exec cat"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        inside = Inside(holder.pid, alone)
        if alone:
            inside.run("ip", "link", "set", "lo", "up")
        yield inside
    finally:
        holder.kill()
        holder.wait()
        for stream in (holder.stdin, holder.stdout):
            if stream is not None:
                stream.close()


def disk(inside: Inside, at: Path, megabytes: int) -> None:
    """A file system of that size, of its own, at ``at``."""
    at.mkdir(exist_ok=True)
    inside.run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(at))


def read_only(inside: Inside, at: Path, *, on: bool) -> None:
    inside.run("mount", "-o", "remount,ro" if on else "remount,rw", str(at))


def two_hosts(inside: Inside) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Two hosts, 10.9.0.1 and 10.9.0.2, on one wire: the prefixes of their commands, after
    ``inside.prefix``."""
    inside.run("mount", "-t", "tmpfs", "none", "/run")
    inside.run("mkdir", "-p", "/run/netns")
    inside.run("ip", "link", "add", "wire1", "type", "veth", "peer", "name", "wire2")
    for number in (1, 2):
        name = f"host{number}"
        inside.run("ip", "netns", "add", name)
        inside.run("ip", "link", "set", f"wire{number}", "netns", name)
        inside.run("ip", "-n", name, "addr", "add", f"10.9.0.{number}/24", "dev", f"wire{number}")
        inside.run("ip", "-n", name, "link", "set", "lo", "up")
        inside.run("ip", "-n", name, "link", "set", f"wire{number}", "up")
    return ("ip", "netns", "exec", "host1"), ("ip", "netns", "exec", "host2")


def wire(inside: Inside, *, up: bool) -> None:
    """Cut, or mend, the wire between the two hosts."""
    inside.run("ip", "-n", "host1", "link", "set", "wire1", "up" if up else "down")
