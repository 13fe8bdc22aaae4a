"""An agent that has the secret and lies: each lie is found out by a typed error, and nothing is returned."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from peer_agents import BIG, KEY, RUN, client, serving, shared_memory

from durable_core.errors import CorruptError, DigestMismatchError, FormatError, InDoubt, TierUnavailable
from durable_core.format import canonical
from durable_core.format.fields import Fields
from durable_core.tier.peer import agent as agents
from durable_core.tier.peer.agent import Agent
from durable_core.tier.peer.client import PeerTier
from durable_core.tier.peer.frames import Frame
from durable_core.tier.peer.seals import BLOCK, TAG_BYTES, block_bytes
from durable_core.tier.peer.service import Service, _Incoming
from durable_core.tier.peer.store import Kept

OTHER = "snapshots/g000001-s000000000000/dp0-0123abcd.slot"
STALE = bytes(reversed(BIG))

READS: dict[str, Callable[[PeerTier], object]] = {
    "get": lambda tier: tier.get(KEY),
    "read_into all": lambda tier: tier.read_into(KEY, 0, memoryview(bytearray(len(BIG)))),
    "read_into some": lambda tier: tier.read_into(KEY, BLOCK + 7, memoryview(bytearray(BLOCK))),
}


class Liar(Service):
    """Sends what ``lie`` makes of each block; ``lie(index, block, tag)`` -> the same, as sent."""

    lie: ClassVar[Callable[[int, bytes, bytes], tuple[int, bytes, bytes] | None]]

    def _send_blocks(self, kept: Kept, indices: range) -> Mapping[str, Any]:
        tags = kept.tags(indices.start, len(indices))
        self._channel.send(kept.seal.header())
        for at, index in enumerate(indices):
            block = bytearray(block_bytes(kept.seal.size, index))
            kept.block(index * BLOCK, memoryview(block))
            told = type(self).lie(index, bytes(block), tags[at * TAG_BYTES :][:TAG_BYTES])
            if told is not None:
                self._channel.send({"index": told[0], "tag": told[2].hex()}, told[1])
        return {"blocks": len(indices)}


LIES: dict[str, Callable[[int, bytes, bytes], tuple[int, bytes, bytes] | None]] = {
    "zeros": lambda index, block, tag: (index, bytes(len(block)), tag),
    "zeros in the last block": lambda index, block, tag: (
        (index, block if len(block) == BLOCK else bytes(len(block)), tag)
    ),
    "one bit": lambda index, block, tag: (index, bytes([block[0] ^ 1]) + block[1:], tag),
    "other bytes": lambda index, block, tag: (index, STALE[: len(block)], tag),
    "truncated": lambda index, block, tag: (index, block[:-1], tag),
    "empty": lambda index, block, tag: (index, b"", tag),
    "missing": lambda index, block, tag: None,
    "oversized": lambda index, block, tag: (index, (block + b"+")[:BLOCK], tag),  # the last: a frame's limit
    "another index": lambda index, block, tag: (index + 1, block, tag),
    "another tag": lambda index, block, tag: (index, block, bytes(TAG_BYTES)),
    "no tag": lambda index, block, tag: (index, block, b""),
}


@pytest.fixture
def lying(monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    monkeypatch.setattr(agents, "Service", Liar)
    with serving() as agent:
        yield agent


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("read", READS)
def test_a_lie_about_bytes_is_found_out(
    lying: Agent, monkeypatch: pytest.MonkeyPatch, lie: str, read: str
) -> None:
    tier = client(lying)
    tier.write_object(KEY, [BIG])
    monkeypatch.setattr(Liar, "lie", staticmethod(LIES[lie]), raising=False)
    with pytest.raises((CorruptError, TierUnavailable)):
        READS[read](tier)
    monkeypatch.setattr(Liar, "lie", staticmethod(lambda *told: told))
    assert tier.get(KEY) == BIG  # stepped around: the tier is as usable as before


class Shifty(Service):
    """Answers with the seal and the bytes of another object."""

    wanted: ClassVar[str] = OTHER

    def _get(self, request: Fields) -> Mapping[str, Any]:
        request.object_key("key")
        return super()._get(Fields({"key": self.wanted, "limit": request.count("limit")}, key="frame"))

    def _size(self, request: Fields) -> Mapping[str, Any]:
        return super()._size(Fields({"key": self.wanted}, key="frame"))


def test_another_object_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "Service", Shifty)
    with serving() as agent:
        tier = client(agent)
        for key, body in ((KEY, BIG), (OTHER, STALE)):
            tier.write_object(key, [body])
        for read in (lambda: tier.get(KEY), lambda: tier.size(KEY)):
            with pytest.raises(DigestMismatchError, match=KEY):
                read()


@pytest.mark.parametrize("change", [{"size": 5}, {"size": 2**50}, {"nonce": "0" * 64}, {"seal": "0" * 64}])
def test_a_lie_about_the_size_is_found_out_before_anything_is_allocated(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    class Boaster(Service):
        def _send_blocks(self, kept: Kept, indices: range) -> Mapping[str, Any]:
            send = self._channel.send
            monkeypatch.setattr(
                self._channel, "send", lambda header, *rest: send({**header, **change}, *rest)
            )
            return super()._send_blocks(kept, indices)

        def _size(self, request: Fields) -> Mapping[str, Any]:
            return {**super()._size(request), **change}

    monkeypatch.setattr(agents, "Service", Boaster)
    with serving() as agent:
        tier = client(agent)
        tier.put_if_absent(KEY, b"0123456789")
        for read in (
            lambda: tier.get(KEY, limit=2**60),
            lambda: tier.size(KEY),
            lambda: tier.read_into(KEY, 0, memoryview(bytearray(5))),
        ):
            with pytest.raises(DigestMismatchError):
                read()


def test_blocks_of_two_writes_of_one_key_cannot_be_mixed() -> None:
    with shared_memory() as directory, serving(directory) as agent:
        tier, path = client(agent), directory / "runs" / RUN / KEY
        tier.put(KEY, BIG)
        first = path.read_bytes()
        tier.put(KEY, STALE)
        second = path.read_bytes()
        tags = slice(len(BIG), len(BIG) + TAG_BYTES)
        mixed = bytearray(second)
        mixed[:BLOCK], mixed[tags] = first[:BLOCK], first[tags]  # a block with the tag it had
        path.write_bytes(mixed)
        with pytest.raises(DigestMismatchError):
            tier.get(KEY)
        path.write_bytes(second)
        assert tier.get(KEY) == STALE


@pytest.mark.parametrize("at", [0, BLOCK + 5, len(BIG) - 1, len(BIG) + 3, len(BIG) + 48 + 3, -20, -1])
def test_a_bit_that_rots_in_the_memory_of_the_peer_is_found_out(at: int) -> None:
    """Anywhere in the file: bytes, tags, size, nonce, seal, mark."""
    with shared_memory() as directory, serving(directory) as agent:
        tier, path = client(agent), directory / "runs" / RUN / KEY
        tier.write_object(KEY, [BIG])
        damaged = bytearray(path.read_bytes())
        damaged[at] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(CorruptError) as caught:
            tier.get(KEY)
        assert caught.value.key == KEY


@pytest.mark.parametrize("keep", [0, 1, 79, 80, 1000, len(BIG), -1])
def test_a_file_cut_short_is_found_out(keep: int) -> None:
    with shared_memory() as directory, serving(directory) as agent:
        tier = client(agent)
        tier.write_object(KEY, [BIG])
        path = directory / "runs" / RUN / KEY
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(CorruptError):
            tier.get(KEY)
        with pytest.raises(CorruptError):
            tier.size(KEY)


@pytest.mark.parametrize("page", [[1], ["UPPER"], ["elsewhere/x"], {"a": 1}, ["../x"]])
def test_a_listing_of_what_is_no_key_under_the_prefix_is_refused(
    monkeypatch: pytest.MonkeyPatch, page: object
) -> None:
    def lists(self: Service, request: Fields) -> Mapping[str, Any]:
        self._channel.send({"more": True}, canonical.dumps(page))
        return {"more": False}

    monkeypatch.setattr(Service, "_list", lists)
    with serving() as agent, pytest.raises(FormatError):
        list(client(agent).list("a/"))


def test_an_answer_with_bytes_where_none_belong_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(self: Service, frame: Frame, *_: object) -> None:
        self._channel.send({"highest": 1} if frame.header["op"] == "hello" else {"stored": True}, b"surplus")

    monkeypatch.setattr(Service, "_reply", answers)
    with serving() as agent:
        for call in (lambda tier: tier.size(KEY), lambda tier: tier.delete(KEY), lambda tier: tier.get(KEY)):
            with pytest.raises((CorruptError, TierUnavailable, InDoubt)):
                call(client(agent))


# --- what is in doubt, and what is not -----------------------------------------------------


def test_a_write_whose_answer_is_lost_is_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(self: Service, frame: Frame) -> None:
        _Incoming(self._channel, lambda _: None).skip()
        self._channel.stream.close()

    monkeypatch.setattr(Service, "_write", dies)
    with serving() as agent:
        tier = client(agent)
        for call in (
            lambda: tier.put_if_absent(KEY, b"x"),
            lambda: tier.put(KEY, b"x"),
            lambda: tier.write_object(KEY, [b"x"]),
        ):
            with pytest.raises(InDoubt, match=KEY):
                call()


def test_a_write_that_is_cut_off_before_its_end_is_not_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(self: Service, frame: Frame) -> None:
        self._channel.receive()
        self._channel.stream.close()

    monkeypatch.setattr(Service, "_write", dies)
    with serving() as agent, pytest.raises(TierUnavailable):
        client(agent).write_object(KEY, [os.urandom(BLOCK)] * 64)


def test_a_delete_whose_answer_is_lost_is_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Service, "_delete", lambda self, _: self._channel.stream.close() or {})
    with serving() as agent, pytest.raises(InDoubt):
        client(agent).delete(KEY)


def test_nobody_there_is_unavailable(tmp_path: Path) -> None:
    with serving() as agent:
        address = agent.address
    tier = client(address)
    for call in (lambda: tier.get(KEY), lambda: tier.put(KEY, b"x"), lambda: tier.list("")):
        with pytest.raises(TierUnavailable, match="agent running"):
            call()


def test_an_agent_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Service, "_size", lambda self, _: self._channel.receive() and {})
    with serving() as agent, pytest.raises(TierUnavailable, match=r"within 0\.2 s"):
        client(agent, timeout=0.2).size(KEY)
