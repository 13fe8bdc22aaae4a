"""L3. A tier in the memory of another host: what an agent keeps, checked as if it were an enemy's.

Every byte that a read returns has been compared with the tag its writer made (``seals``); an agent that
answers zeros, other bytes, fewer or more than asked for is found out: ``DigestMismatchError`` or another
``CorruptError`` when bytes are wrong, ``TierUnavailable`` when the conversation is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from durable_core.clock import Clock
from durable_core.errors import (
    DigestMismatchError,
    FormatError,
    InDoubt,
    ObjectNotFoundError,
    TierUnavailable,
    UnsupportedError,
    UsageError,
)
from durable_core.format import canonical, layout
from durable_core.format.fields import Fields
from durable_core.tier.base import DEFAULT_LIMIT, Buffer, Tier, byte_view
from durable_core.tier.peer import replies
from durable_core.tier.peer.connections import CONNECT, TIMEOUT, Connections, Conversation
from durable_core.tier.peer.frames import ConnectionLost, Frame, FrameRefused
from durable_core.tier.peer.seals import BLOCK, MAX_BLOCKS, NONCE_BYTES, Seal, Sealer, block_bytes, span
from durable_core.tier.peer.secret import Secret

if TYPE_CHECKING:
    import ssl

#: An agent that lists more than this is not believed.
_MAX_KEYS = 1_000_000


class PeerTier(Tier):
    """The objects of one run at the agent at ``address`` (``host:port``).

    ``generation`` is that of the launch this process belongs to, learnt once: the agent refuses writes
    once it has heard of a higher one (``Fenced``), and nothing here can raise it. 0 is for readers.
    ``timeout``: seconds for one frame to pass or an answer to come; ``connect`` for a connection.
    ``tls``: a client's context, when the agent speaks TLS. Threads may share a ``PeerTier``; each
    operation in progress has a connection, of which two stay open between operations.
    """

    replaces_atomically = True

    def __init__(
        self,
        address: str,
        *,
        run_id: str,
        generation: int,
        secret: Secret,
        tls: ssl.SSLContext | None = None,
        connect: float = CONNECT,
        timeout: float = TIMEOUT,
        clock: Clock | None = None,
    ) -> None:
        self._connections = Connections(
            address, run_id, generation, secret, tls=tls, connect=connect, timeout=timeout, clock=clock
        )
        self._sealer = Sealer(secret, run_id)
        self.location = self._connections.location

    def close(self) -> None:
        """Close the idle connections. The tier can be used again."""
        self._connections.close()

    # --- reading ---------------------------------------------------------------------------

    def get(self, key: str, *, limit: int = DEFAULT_LIMIT) -> bytes:
        layout.check_key(key)
        with self._connections.conversation() as talk:
            talk.channel.send({"op": "get", "key": key, "limit": limit})
            seal = self._seal(talk, key)
            if seal.size > limit:
                self._end_of_blocks(talk, key, 0)
                raise FormatError(key, f"{seal.size} bytes, more than the limit of {limit}")
            out = bytearray(seal.size)
            for _ in self._receive_blocks(talk, key, seal, 0, memoryview(out)):
                pass
            return bytes(out)

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        """As in ``Tier``. When it raises, what ``out`` holds means nothing."""
        self.stream_into(key, offset, out, lambda _: None)

    def stream_into(
        self, key: str, offset: int, out: memoryview, seen: Callable[[memoryview], object]
    ) -> None:
        layout.check_key(key)
        if offset < 0:
            raise UsageError(f"{key}: read at negative offset {offset}")
        target = byte_view(out)
        with self._connections.conversation() as talk:
            talk.channel.send({"op": "read", "key": key, "begin": offset, "nbytes": len(target)})
            seal = self._seal(talk, key)
            if offset + len(target) > seal.size:
                self._end_of_blocks(talk, key, 0)
                raise FormatError(key, f"{seal.size} bytes, too short for {len(target)} at {offset}")
            for part in self._receive_blocks(talk, key, seal, offset, target):
                seen(part)

    def size(self, key: str) -> int:
        layout.check_key(key)
        with self._connections.conversation() as talk:
            talk.channel.send({"op": "size", "key": key})
            seal = self._seal(talk, key)
            talk.over = True
            return seal.size

    def list(self, prefix: str) -> Iterator[str]:
        layout.check_prefix(prefix)
        keys: list[str] = []
        with self._connections.conversation() as talk:
            talk.channel.send({"op": "list", "prefix": prefix})
            while True:
                frame = self._answer(talk, prefix)
                page = canonical.loads(talk.channel.payload_bytes(frame), key=prefix) if frame.nbytes else []
                if not isinstance(page, list) or any(
                    layout.key_fault(key) or not key.startswith(prefix) for key in page
                ):
                    raise FormatError(prefix, f"{self.location} lists what is no key under it")
                keys += page
                if len(keys) > _MAX_KEYS:
                    raise TierUnavailable(f"{self.location} lists more than {_MAX_KEYS} keys")
                if not frame.fields().flag("more"):
                    talk.over = True
                    return iter(keys)

    # --- writing ---------------------------------------------------------------------------

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        view = byte_view(data)
        stored, _ = self._write(key, [view], replace=False, expected=len(view))
        return stored

    def put(self, key: str, data: Buffer) -> None:
        view = byte_view(data)
        self._write(key, [view], replace=True, expected=len(view))

    def write_object(self, key: str, parts: Iterable[Buffer]) -> int:
        stored, nbytes = self._write(key, parts, replace=False, expected=0)
        if not stored:
            raise UsageError(f"{key} is already there, and objects are immutable")
        return nbytes

    def replace_object(self, key: str, parts: Iterable[Buffer]) -> int:
        return self._write(key, parts, replace=True, expected=0)[1]

    def delete(self, key: str) -> None:
        layout.check_key(key)
        self._change({"op": "delete", "key": key}, key)

    def sync_tail(self, prefix: str) -> None:
        """Nothing to do: what an agent acknowledged is in a file that outlives it."""
        layout.check_prefix(prefix)

    def collect_residue(self, *, limit: int = 1000) -> int:
        return self._change({"op": "residue", "limit": limit}, "").count("removed")

    def forget(self) -> int:
        """Delete everything the agent keeps of this run; the bytes of memory freed. ``Fenced`` when stale."""
        return self._change({"op": "forget"}, "").count("freed")

    def room(self) -> tuple[int, int]:
        """Bytes the agent keeps, of all runs, and bytes it may keep."""
        with self._connections.conversation() as talk:
            talk.channel.send({"op": "room"})
            fields = self._answer(talk, "").fields()
            talk.over = True
            return fields.count("used"), fields.count("capacity")

    def probe(self) -> None:
        """Also proves that the agent can be reached, has the secret, and lets this generation write."""
        key = f"probe/{os.urandom(16).hex()}"
        try:
            first, second = self.put_if_absent(key, b"first"), self.put_if_absent(key, b"second")
            if not first or second or self.get(key) != b"first":
                raise UnsupportedError(f"{self.location}: creating a name twice succeeded twice")
        finally:
            self.delete(key)
        with contextlib.suppress(ObjectNotFoundError):
            self.size(key)
            raise UnsupportedError(f"{self.location}: what was deleted is still there")

    # --- one write -------------------------------------------------------------------------

    def _write(self, key: str, parts: Iterable[Buffer], *, replace: bool, expected: int) -> tuple[bool, int]:
        """Whether it was stored, and its bytes. Leaving before the end is sent leaves nothing there."""
        layout.check_key(key)
        with self._connections.conversation() as talk:
            talk.channel.send({"op": "write", "key": key, "replace": replace, "size": expected})
            digests: list[bytes] = []
            size = 0
            for block in blocks_from(parts):
                if talk.channel.stream.readable():
                    return self._refused_early(talk, key), size
                if len(digests) == MAX_BLOCKS:
                    raise UsageError(f"{key}: an object at a peer has at most {MAX_BLOCKS * BLOCK} bytes")
                digests.append(self._sealer.digest(block))
                size += len(block)
                talk.channel.send({"op": "block"}, block, digests[-1])
            seal = self._sealer.seal(key, size, os.urandom(NONCE_BYTES))
            with self._in_doubt(f"write {key}"):
                talk.channel.send({"op": "end", **seal.header()}, self._sealer.tags(seal, digests))
                frame = talk.channel.receive()
            stored = self._checked(talk, frame, key).fields().flag("stored")
            talk.over = True
            return stored, size

    def _refused_early(self, talk: Conversation, key: str) -> bool:
        """The agent says no and goes on to wait for the rest: the connection ends here, instead of it."""
        try:
            return self._answer(talk, key).fields().flag("stored")
        finally:
            talk.over = False

    def _change(self, request: Mapping[str, Any], key: str) -> Fields:
        """A request that changes something, in one frame."""
        with self._connections.conversation() as talk:
            with self._in_doubt(f"{request['op']} {key}"):
                talk.channel.send(request)
                frame = talk.channel.receive()
            fields = self._checked(talk, frame, key).fields()
            talk.over = True
            return fields

    @contextlib.contextmanager
    def _in_doubt(self, doing: str) -> Iterator[None]:
        """Around the frame that makes the agent act, and its answer: what fails here may have been done."""
        try:
            yield
        except (ConnectionLost, FrameRefused, FormatError) as error:
            raise InDoubt(f"{self.location} may or may not have done: {doing} ({error})") from error

    # --- answers ---------------------------------------------------------------------------

    def _answer(self, talk: Conversation, key: str) -> Frame:
        return self._checked(talk, talk.channel.receive(), key)

    def _checked(self, talk: Conversation, frame: Frame, key: str) -> Frame:
        """The frame, unless it says an error, which is raised and ends the exchange."""
        if error := replies.heard(frame.header, key, self.location):
            talk.over = frame.nbytes == 0
            raise error
        return frame

    def _seal(self, talk: Conversation, key: str) -> Seal:
        """The first answer to a read: what the object is, as its writer sealed it."""
        frame = self._answer(talk, key)
        if frame.nbytes:
            raise FormatError(key, f"{self.location} answers with bytes that nobody asked for")
        seal = Seal.of(frame.fields())
        self._sealer.check(key, seal)
        return seal

    def _receive_blocks(
        self, talk: Conversation, key: str, seal: Seal, offset: int, out: memoryview
    ) -> Iterator[memoryview]:
        """Fill ``out`` from byte ``offset``, part by part: whole blocks in place, others through a buffer."""
        indices = span(seal.size, offset, len(out))
        for index in indices:
            begin, length = index * BLOCK - offset, block_bytes(seal.size, index)
            part = out[max(begin, 0) : begin + length]
            whole = part if len(part) == length else memoryview(bytearray(length))
            self._receive_block(talk, key, seal, index, whole)
            if whole is not part:
                part[:] = whole[max(-begin, 0) :][: len(part)]
            yield part
        self._end_of_blocks(talk, key, len(indices))

    def _receive_block(
        self, talk: Conversation, key: str, seal: Seal, index: int, target: memoryview
    ) -> None:
        frame = self._answer(talk, key)
        fields = frame.fields()
        if fields.count("index") != index or frame.nbytes != len(target):
            what = f"{frame.nbytes} bytes where block {index} has {len(target)}"
            raise FormatError(key, f"{self.location} answers {what}")
        talk.channel.payload(frame, target)
        if fields.text("tag") != self._sealer.tag(seal, index, frame.digest).hex():
            raise DigestMismatchError(key, f"block {index} at {self.location} is not what was put there")

    def _end_of_blocks(self, talk: Conversation, key: str, count: int) -> None:
        frame = self._answer(talk, key)
        if frame.nbytes or frame.fields().count("blocks") != count:
            raise FormatError(key, f"{self.location} goes on after the last of {count} blocks")
        talk.over = True


def blocks_from(parts: Iterable[Buffer]) -> Iterator[memoryview]:
    """The bytes of all parts in blocks; only the last is shorter. Copied where a block has several parts.

    A block is done with when the next is asked for, and a part when the next part is.
    """
    joined = memoryview(bytearray(0))
    held = 0
    for part in parts:
        view = byte_view(part)
        while view:
            if not held and len(view) >= BLOCK:
                yield view[:BLOCK]
                view = view[BLOCK:]
                continue
            if not joined:
                joined = memoryview(bytearray(BLOCK))
            taken = min(len(view), BLOCK - held)
            joined[held : held + taken] = view[:taken]
            held, view = held + taken, view[taken:]
            if held == BLOCK:
                yield joined
                held = 0
    if held:
        yield joined[:held]
