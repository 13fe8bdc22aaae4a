"""L3. Frames over a byte stream: authenticated, in order, and bounded before anything is allocated.

Greeting (each side proves that it has the secret; nothing else is said before)::

    agent  -> client   magic (8 bytes), nonce (32)
    client -> agent    nonce (32), proof (32)
    agent  -> client   1 and proof (32), or 0 and 32 zero bytes

Then frames, whose keys are made of the secret and both nonces, one key for each direction, so that
nothing said on another connection, in the other direction or earlier can be said again::

    prefix   !4sHIQ: magic, bytes of the header, bytes of the payload, number of the frame
    header   canonical JSON, an object
    digest   xxh3-128 of the payload under a secret seed, 16 bytes
    mac      HMAC-SHA256 of all of the above, 32 bytes
    payload

A frame's lengths are therefore authentic before its payload is received. The payload's digest is no
cryptographic one (that would halve the throughput): where somebody may alter packets, use TLS.
"""

from __future__ import annotations

import hmac
import os
import select
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from durable_core.clock import Clock
from durable_core.errors import FormatError, TierDenied, TierUnavailable
from durable_core.format import canonical
from durable_core.format.fields import Fields
from durable_core.tier.base import Buffer, byte_view
from durable_core.tier.peer.seals import BLOCK, digest, digest_seed
from durable_core.tier.peer.secret import Secret

MAX_HEADER = 4096
MAX_PAYLOAD = BLOCK

_PREFIX = struct.Struct("!4sHIQ")
_FRAME = b"dpf1"
_HELLO = b"durpeer1"
_NONCE = 32
_MAC = 32
_DIGEST = 16
_REFUSED = bytes(1 + _MAC)
#: Payloads up to this are sent in one piece with what precedes them.
_SMALL = 16 * 1024
_DIRECTIONS = ("to client", "to agent")


class ConnectionLost(TierUnavailable):
    """The connection failed, ended or took too long."""


class FrameRefused(TierUnavailable):
    """What came is no frame of this connection: malformed, forged, repeated, out of order, too large."""


@dataclass(frozen=True)
class Frame:
    """A header that is authentic, and the payload that follows it, not yet received."""

    header: Mapping[str, Any]
    nbytes: int
    digest: bytes

    def fields(self) -> Fields:
        """For reading the header; a wrong field is a ``FormatError``."""
        return Fields(self.header, key="frame", where="its header")


class Stream:
    """A socket whose every transfer is whole and has a deadline (``timeout`` seconds for each)."""

    def __init__(self, sock: socket.socket, clock: Clock, timeout: float) -> None:
        self.sock = sock
        self.timeout = timeout
        self._clock = clock

    def send(self, data: Buffer) -> None:
        view = byte_view(data)
        self._transfer(view, "send", self.timeout, lambda rest: self.sock.send(rest))

    def receive_into(self, out: memoryview, *, timeout: float | None = None) -> None:
        timeout = self.timeout if timeout is None else timeout
        self._transfer(out, "receive", timeout, lambda rest: self.sock.recv_into(rest))

    def receive(self, nbytes: int, *, timeout: float | None = None) -> bytes:
        out = bytearray(nbytes)
        self.receive_into(memoryview(out), timeout=timeout)
        return bytes(out)

    def readable(self) -> bool:
        """Whether something, or the end, has arrived already. Never waits."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        self.sock.close()

    def _transfer(
        self, view: memoryview, doing: str, timeout: float, step: Callable[[memoryview], int]
    ) -> None:
        deadline = self._clock.monotonic() + timeout
        while view:
            left = deadline - self._clock.monotonic()
            if left <= 0:
                raise ConnectionLost(f"a peer did not {doing} within {timeout:g} s")
            try:
                self.sock.settimeout(left)
                done = step(view)
            except TimeoutError:
                continue
            except OSError as error:
                raise ConnectionLost(f"cannot {doing}: {error.strerror or error}") from error
            if done == 0:
                raise ConnectionLost("the peer ended the connection")
            view = view[done:]


class Channel:
    """Frames in both directions. One thread at a time; after any error the connection is of no more use."""

    def __init__(self, stream: Stream, send_key: bytes, receive_key: bytes, seed: int) -> None:
        self.stream = stream
        self._send_key, self._receive_key = send_key, receive_key
        self._seed = seed
        self._sent = self._received = 0
        self._pending = 0

    def send(self, header: Mapping[str, Any], payload: Buffer = b"", payload_digest: bytes = b"") -> None:
        """``payload_digest``: what ``digest(payload)`` gives, if the caller has it already."""
        body = canonical.dumps(header)
        view = byte_view(payload)
        if len(body) > MAX_HEADER or len(view) > MAX_PAYLOAD:
            raise FrameRefused(f"a frame of {len(body)} + {len(view)} bytes is too large to send")
        prefix = _PREFIX.pack(_FRAME, len(body), len(view), self._sent)
        signed = prefix + body + (payload_digest or digest(view, self._seed))
        head = signed + hmac.digest(self._send_key, signed, "sha256")
        self._sent += 1
        if len(view) <= _SMALL:
            self.stream.send(head + bytes(view))
        else:
            self.stream.send(head)
            self.stream.send(view)

    def receive(self, *, timeout: float | None = None) -> Frame:
        """The next frame's header. Its payload has to be taken with ``payload`` before the next one."""
        if self._pending:
            raise FrameRefused("the payload of the frame before was not taken")
        prefix = self.stream.receive(_PREFIX.size, timeout=timeout)
        magic, header_bytes, nbytes, number = _PREFIX.unpack(prefix)
        if magic != _FRAME or header_bytes > MAX_HEADER or nbytes > MAX_PAYLOAD or number != self._received:
            raise FrameRefused(f"not frame {self._received} of this connection ({nbytes} bytes announced)")
        rest = self.stream.receive(header_bytes + _DIGEST + _MAC)
        signed, mac = prefix + rest[:-_MAC], rest[-_MAC:]
        if not hmac.compare_digest(hmac.digest(self._receive_key, signed, "sha256"), mac):
            raise FrameRefused(f"frame {number} was not made by a holder of the secret")
        try:
            header = canonical.loads(rest[:header_bytes], key="header", limit=MAX_HEADER)
        except FormatError as error:
            raise FrameRefused(f"frame {number}: {error}") from error
        if not isinstance(header, dict):
            raise FrameRefused(f"the header of frame {number} is no object")
        self._received += 1
        self._pending = nbytes
        return Frame(header, nbytes, rest[header_bytes:-_MAC])

    def payload(self, frame: Frame, out: memoryview) -> None:
        """Receive the payload of the latest frame; ``out`` has its length. Verified when it returns."""
        if len(out) != frame.nbytes or self._pending != frame.nbytes:
            raise FrameRefused(f"a payload of {frame.nbytes} bytes where {len(out)} were expected")
        self.stream.receive_into(out)
        self._pending = 0
        if digest(out, self._seed) != frame.digest:
            raise FrameRefused("the payload of a frame was damaged on its way")

    def payload_bytes(self, frame: Frame) -> bytes:
        out = bytearray(frame.nbytes)
        self.payload(frame, memoryview(out))
        return bytes(out)


def greet_as_agent(stream: Stream, secret: Secret, *, timeout: float) -> Channel:
    """The agent's half. ``TierDenied`` for a client that lacks the secret, which is told so."""
    ours = os.urandom(_NONCE)
    stream.send(_HELLO + ours)
    answer = stream.receive(_NONCE + _MAC, timeout=timeout)
    theirs, proof = answer[:_NONCE], answer[_NONCE:]
    if not hmac.compare_digest(secret.derive("client proof", ours, theirs), proof):
        stream.send(_REFUSED)
        raise TierDenied("a client without the secret")
    stream.send(b"\1" + secret.derive("agent proof", ours, theirs))
    to_client, to_agent = (secret.derive(purpose, ours, theirs) for purpose in _DIRECTIONS)
    return Channel(stream, to_client, to_agent, digest_seed(secret))


def greet_as_client(stream: Stream, secret: Secret, where: str) -> Channel:
    """The client's half. ``TierDenied`` when either side lacks the secret."""
    hello = stream.receive(len(_HELLO) + _NONCE)
    if not hello.startswith(_HELLO):
        raise TierUnavailable(f"{where} is no agent of this version")
    theirs, ours = hello[len(_HELLO) :], os.urandom(_NONCE)
    stream.send(ours + secret.derive("client proof", theirs, ours))
    answer = stream.receive(1 + _MAC)
    if answer == _REFUSED:
        raise TierDenied(f"{where} refused the secret", hint="both sides need the same secret")
    if not hmac.compare_digest(b"\1" + secret.derive("agent proof", theirs, ours), answer):
        raise TierDenied(f"{where} does not have the secret", hint="both sides need the same secret")
    to_client, to_agent = (secret.derive(purpose, theirs, ours) for purpose in _DIRECTIONS)
    return Channel(stream, to_agent, to_client, digest_seed(secret))
