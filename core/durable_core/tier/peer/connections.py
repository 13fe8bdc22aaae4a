"""L3. A client's connections to one agent: made when needed, introduced, kept for the next exchange."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from durable_core.clock import Clock, SystemClock
from durable_core.errors import TierUnavailable, UsageError
from durable_core.tier.peer import replies
from durable_core.tier.peer.frames import Channel, Stream, greet_as_client
from durable_core.tier.peer.secret import Secret
from durable_core.tier.peer.store import run_fault

if TYPE_CHECKING:
    import ssl

#: Seconds: to connect and greet; for one frame to pass, or an answer to come.
CONNECT, TIMEOUT = 5.0, 30.0
_IDLE = 2


@dataclass
class Conversation:
    """One exchange on a channel; only when it is ``over`` can the channel serve another."""

    channel: Channel
    over: bool = False


class Connections:
    """Each operation in progress has a connection of its own; two stay open between operations.

    The run and the generation are said on every one of them, before anything else, and are those given here.
    """

    def __init__(
        self,
        address: str,
        run_id: str,
        generation: int,
        secret: Secret,
        *,
        tls: ssl.SSLContext | None,
        connect: float,
        timeout: float,
        clock: Clock | None,
    ) -> None:
        if fault := run_fault(run_id):
            raise UsageError(f"bad run id {run_id!r}: {fault}")
        if generation < 0:
            raise UsageError(f"generation {generation} is negative")
        self.location = f"peer://{address}/{run_id}"
        self._where = parse_address(address)
        self._hello = {"op": "hello", "run": run_id, "generation": generation}
        self._secret, self._tls = secret, tls
        self._connect_timeout, self._timeout = connect, timeout
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._idle: list[Channel] = []
        self._owner = os.getpid()

    def close(self) -> None:
        """Close those that are idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for channel in idle:
            channel.stream.close()

    @contextlib.contextmanager
    def conversation(self) -> Iterator[Conversation]:
        """A channel for one exchange; closed afterwards unless the exchange is over.

        ``TierUnavailable`` when there is no agent, ``TierDenied`` when one side lacks the secret.
        """
        talk = Conversation(self._kept() or self._made())
        try:
            yield talk
        finally:
            with self._lock:
                keep = talk.over and len(self._idle) < _IDLE
                if keep:
                    self._idle.append(talk.channel)
            if not keep:
                talk.channel.stream.close()

    def _kept(self) -> Channel | None:
        with self._lock:
            if self._owner != os.getpid():  # forked: the connections are the parent's
                self._owner, self._idle = os.getpid(), []
            while self._idle:
                channel = self._idle.pop()
                if not channel.stream.readable():
                    return channel
                channel.stream.close()  # the agent ended it, or was restarted
        return None

    def _made(self) -> Channel:
        stream = Stream(self._connected(), self._clock, self._connect_timeout)
        try:
            channel = greet_as_client(stream, self._secret, self.location)
            stream.timeout = self._timeout
            channel.send(self._hello)
            if error := replies.heard(channel.receive().header, "", self.location):
                raise error
        except BaseException:
            stream.close()
            raise
        return channel

    def _connected(self) -> socket.socket:
        host, port = self._where
        sock: socket.socket | None = None
        try:
            sock = socket.create_connection((host, port), timeout=self._connect_timeout)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock if self._tls is None else self._tls.wrap_socket(sock, server_hostname=host)
        except OSError as error:
            if sock is not None:
                sock.close()
            raise TierUnavailable(
                f"cannot connect to {self.location}: {error.strerror or error}", hint="is its agent running?"
            ) from error


def parse_address(address: str) -> tuple[str, int]:
    """``host:port`` or ``[v6]:port``; ``UsageError`` for anything else."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"{address!r} is no address of an agent", hint="write host:port")
    return host, int(port)
