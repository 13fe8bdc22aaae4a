"""L3. What an agent does for one client: answers its requests, one after another.

Every request is a frame with ``op``; the answer is a frame, or several. The run and the generation are
said once, in ``hello``, and hold for the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from durable_core.errors import DurableError, FormatError, UsageError
from durable_core.format import canonical
from durable_core.format.fields import Fields
from durable_core.tier.base import Buffer
from durable_core.tier.peer.frames import Channel, ConnectionLost, Frame, FrameRefused
from durable_core.tier.peer.replies import refusal
from durable_core.tier.peer.seals import (
    BLOCK,
    TAG_BYTES,
    Seal,
    block_bytes,
    blocks_of,
    span,
    stored_bytes,
)
from durable_core.tier.peer.store import Kept, RunStore, Store

_KEYS_PER_FRAME = 1000


class Service:
    """``pace`` is told the bytes of every block before it moves."""

    def __init__(self, channel: Channel, store: Store, pace: Callable[[int], None]) -> None:
        self._channel = channel
        self._store = store
        self._pace = pace
        self._run: RunStore
        self._generation = 0
        self._answers: Mapping[str, Callable[[Fields], Mapping[str, Any]]] = {
            "read": self._read,
            "get": self._get,
            "size": self._size,
            "delete": self._delete,
            "list": self._list,
            "residue": self._residue,
            "forget": self._forget,
            "room": self._room,
        }

    def refuse(self, error: DurableError) -> None:
        """Answer the first request with ``error``."""
        self._channel.receive()
        self._channel.send(refusal(error))

    def run(self, *, idle: float) -> None:
        """Until the client leaves, or for ``idle`` seconds says nothing: raises ``ConnectionLost`` then."""
        introduced = self._reply(self._channel.receive(), self._hello)
        while introduced:
            frame = self._channel.receive(timeout=idle)
            if frame.header.get("op") == "write":
                self._write(frame)
            else:
                self._reply(frame, self._dispatch)

    def _reply(self, frame: Frame, answer: Callable[[Fields], Mapping[str, Any]]) -> bool:
        """Whether the answer was not an error."""
        if frame.nbytes:
            raise FrameRefused("a request has no payload")
        try:
            header = answer(frame.fields())
        except (ConnectionLost, FrameRefused):
            raise
        except DurableError as error:
            self._channel.send(refusal(error))
            return False
        self._channel.send(header)
        return True

    def _dispatch(self, request: Fields) -> Mapping[str, Any]:
        op = request.text("op")
        if op not in self._answers:
            raise UsageError(f"this agent does not know the request {op!r}")
        return self._answers[op](request)

    def _hello(self, request: Fields) -> Mapping[str, Any]:
        if request.text("op") != "hello":
            raise UsageError("the first request of a connection is hello")
        run = self._store.run(request.text("run"))
        generation = request.count("generation")
        run.admit(generation)
        self._run, self._generation = run, generation
        return {"highest": run.highest}

    # --- reading ---------------------------------------------------------------------------

    def _size(self, request: Fields) -> Mapping[str, Any]:
        with self._run.opened(request.object_key("key")) as kept:
            return kept.seal.header()

    def _get(self, request: Fields) -> Mapping[str, Any]:
        """The whole object if it has at most ``limit`` bytes, else only its seal."""
        limit = request.count("limit")
        with self._run.opened(request.object_key("key")) as kept:
            size = kept.seal.size
            return self._send_blocks(kept, span(size, 0, size) if size <= limit else range(0))

    def _read(self, request: Fields) -> Mapping[str, Any]:
        """The blocks that hold a range, if the object has all of it, else only its seal."""
        begin, nbytes = request.count("begin"), request.count("nbytes")
        with self._run.opened(request.object_key("key")) as kept:
            return self._send_blocks(kept, span(kept.seal.size, begin, nbytes))

    def _send_blocks(self, kept: Kept, indices: range) -> Mapping[str, Any]:
        """The seal, the blocks with their tags, and a frame that says the end."""
        tags = kept.tags(indices.start, len(indices))
        self._channel.send(kept.seal.header())
        buffer = memoryview(bytearray(min(BLOCK, kept.seal.size) if indices else 0))
        for at, index in enumerate(indices):
            block = buffer[: block_bytes(kept.seal.size, index)]
            kept.block(index * BLOCK, block)
            self._pace(len(block))
            tag = tags[at * TAG_BYTES : (at + 1) * TAG_BYTES]
            self._channel.send({"index": index, "tag": tag.hex()}, block)
        return {"blocks": len(indices)}

    def _list(self, request: Fields) -> Mapping[str, Any]:
        keys = list(self._run.list(request.text("prefix")))
        for begin in range(0, len(keys), _KEYS_PER_FRAME):
            self._channel.send({"more": True}, canonical.dumps(keys[begin : begin + _KEYS_PER_FRAME]))
        return {"more": False}

    def _room(self, _: Fields) -> Mapping[str, Any]:
        return {"capacity": self._store.room.capacity, "used": self._store.room.used}

    # --- writing ---------------------------------------------------------------------------

    def _write(self, frame: Frame) -> None:
        """Blocks and an end follow the request without waiting: after an early no, they are skipped."""
        incoming = _Incoming(self._channel, self._pace)
        try:
            request = frame.fields()
            stored = self._run.write(
                request.object_key("key"),
                incoming.parts(),
                self._generation,
                replace=request.flag("replace"),
                expected=stored_bytes(request.count("size")),
            )
            header: Mapping[str, Any] = {"stored": stored}
        except (ConnectionLost, FrameRefused):
            raise
        except DurableError as error:
            header = refusal(error)
        self._channel.send(header)
        incoming.skip()

    def _delete(self, request: Fields) -> Mapping[str, Any]:
        self._run.delete(request.object_key("key"), self._generation)
        return {}

    def _forget(self, _: Fields) -> Mapping[str, Any]:
        return {"freed": self._run.forget(self._generation)}

    def _residue(self, request: Fields) -> Mapping[str, Any]:
        return {"removed": self._run.collect_residue(request.count("limit"))}


class _Incoming:
    """An object on its way here: frames with a block each, and one that ends it with tags and seal."""

    def __init__(self, channel: Channel, pace: Callable[[int], None]) -> None:
        self._channel = channel
        self._pace = pace
        self._ended = False

    def parts(self) -> Iterator[Buffer]:
        """The bytes of the file that will hold the object. A part is overwritten by the next."""
        buffer = memoryview(bytearray(BLOCK))
        size = 0
        while True:
            frame = self._channel.receive()
            if self._is_end(frame):
                tags = self._channel.payload_bytes(frame)
                yield tags
                yield _seal_of(frame.fields(), size, tags).end()
                return
            if size % BLOCK or not frame.nbytes:
                raise FormatError("frame", "a block after a short one")
            block = buffer[: frame.nbytes]
            self._channel.payload(frame, block)
            self._pace(len(block))
            size += len(block)
            yield block

    def skip(self) -> None:
        """Read on to the end, so that the next request can follow. A client that ends instead is gone."""
        buffer = memoryview(bytearray(0 if self._ended else BLOCK))
        while not self._ended:
            frame = self._channel.receive()
            self._is_end(frame)
            self._channel.payload(frame, buffer[: frame.nbytes])

    def _is_end(self, frame: Frame) -> bool:
        op = frame.header.get("op")
        if op not in ("block", "end"):
            raise FrameRefused("neither a block nor the end of an object")
        self._ended = op == "end"
        return self._ended


def _seal_of(end: Fields, size: int, tags: bytes) -> Seal:
    seal = Seal.of(end)
    if seal.size != size or len(tags) != TAG_BYTES * blocks_of(size):
        raise FormatError("frame", f"{size} bytes came, and the end speaks of {seal.size}")
    return seal
