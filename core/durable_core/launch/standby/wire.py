"""L5. Messages between the agent and a standby: JSON after its length, file descriptors beside it."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

_LENGTH = struct.Struct("<I")
_MOST_FILES = 8


def send(channel: socket.socket, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
    """Raises ``OSError`` (``TimeoutError`` after the channel's timeout); the channel is of no use then."""
    data = json.dumps(message).encode()
    data = _LENGTH.pack(len(data)) + data
    sent = socket.send_fds(channel, [data], files) if files else channel.send(data)
    if sent < len(data):  # an empty piece fails too when the other end, which has it all, is closed by now
        channel.sendall(data[sent:])


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message and the descriptors that came with it; ``None`` when the other end is closed."""
    head, files, _, _ = socket.recv_fds(channel, _LENGTH.size, _MOST_FILES)
    head += _exactly(channel, _LENGTH.size - len(head)) if head else b""
    if len(head) < _LENGTH.size:
        return None
    size = _LENGTH.unpack(head)[0]
    body = _exactly(channel, size)
    return (json.loads(body), list(files)) if len(body) == size else None


def _exactly(channel: socket.socket, size: int) -> bytes:
    """Fewer bytes only when the other end was closed."""
    found = bytearray()
    while len(found) < size and (piece := channel.recv(size - len(found))):
        found += piece
    return bytes(found)
