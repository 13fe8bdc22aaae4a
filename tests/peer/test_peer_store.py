"""What an agent keeps and how much; many clients at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from peer_agents import BIG, KEY, OTHER_RUN, RUN, client, serving, shared_memory, until

from durable_core.errors import TierFull, UsageError
from durable_core.tier.peer.agent import Agent, Pace
from durable_core.tier.peer.client import blocks_from
from durable_core.tier.peer.connections import parse_address
from durable_core.tier.peer.seals import BLOCK, stored_bytes
from durable_core.tier.peer.store import pages


def test_what_does_not_fit_is_refused_and_leaves_room_as_it_was() -> None:
    with serving(capacity_bytes=4 * BLOCK) as agent:
        tier = client(agent)
        tier.write_object(KEY, [BIG])
        used = pages(stored_bytes(len(BIG)))
        assert tier.room() == (used, 4 * BLOCK)
        with pytest.raises(TierFull, match="capacity"):
            tier.write_object("a/second", [BIG])
        for write in (tier.put_if_absent, tier.put):
            with pytest.raises(TierFull):
                write("a/second", BIG)
        until(lambda: agent.store.room.used == used)
        assert list(tier.list("")) == [KEY]
        tier.delete(KEY)
        tier.delete(KEY)
        assert tier.room()[0] == 0
        assert tier.write_object("a/second", [BIG]) == len(BIG)


def test_a_claim_that_cannot_fit_is_refused_before_its_bytes_come() -> None:
    with serving(capacity_bytes=BLOCK) as agent:
        tier = client(agent)
        with pytest.raises(TierFull):
            tier._write(KEY, [b"small"], replace=False, expected=2**50)
        assert tier.put_if_absent(KEY, b"small") is True


def test_a_full_peer_stops_a_large_write_early() -> None:
    produced = 0

    def parts() -> Iterator[bytes]:
        nonlocal produced
        for _ in range(2000):
            produced += 1
            yield bytes(BLOCK)

    with serving(capacity_bytes=BLOCK) as agent:
        with pytest.raises(TierFull):
            client(agent).write_object(KEY, parts())
        assert produced < 2000
        until(lambda: agent.store.room.used == 0)


def test_room_is_counted_again_after_a_restart_and_residue_is_gone() -> None:
    with shared_memory() as directory:
        with serving(directory) as agent:
            client(agent).write_object(KEY, [BIG])
            client(agent, run_id=OTHER_RUN).put("hints/x", b"1")
            used = agent.store.room.used
        residue = directory / "runs" / RUN / "tmp" / "1-2-dead"
        residue.write_bytes(b"of an agent that was killed")
        with serving(directory) as agent:
            assert agent.store.room.used == used > 0
            assert not residue.exists()
            assert client(agent).get(KEY) == BIG
            assert agent.store.forget_all() == used
            assert agent.store.room.used == 0


def test_replacing_counts_once() -> None:
    with serving() as agent:
        tier = client(agent)
        for size in (1, 100_000, 5, 0, 70_000):
            tier.put("hints/x", bytes(size))
            assert agent.store.room.used == pages(stored_bytes(size))
        tier.replace_object("hints/x", [BIG, BIG])
        assert agent.store.room.used == pages(stored_bytes(2 * len(BIG)))
        assert tier.get("hints/x") == BIG + BIG


def test_many_clients_at_once_get_what_they_put() -> None:
    def one(index: int) -> None:
        tier = client(agent)
        body = bytes([index]) * (BLOCK + index * 1000)
        for round_ in range(5):
            key = f"objects/{index}-{round_}"
            tier.write_object(key, [body[:777], body[777:]])
            assert tier.get(key) == body
            tier.delete(key)
        tier.close()

    with serving() as agent:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(one, range(8)))
        assert agent.store.room.used == 0
        until(lambda: not agent._threads)  # a connection that has ended leaves nothing behind


def test_a_reader_keeps_what_is_deleted_under_it() -> None:
    with serving() as agent:
        tier = client(agent)
        tier.write_object(KEY, [BIG])
        seen: list[int] = []

        def look(part: memoryview) -> None:
            if not seen:
                tier.delete(KEY)
            seen.append(len(part))

        out = bytearray(len(BIG) - 10)
        tier.stream_into(KEY, 10, memoryview(out), look)
        assert out == BIG[10:] and sum(seen) == len(out)


def test_a_forked_child_has_connections_of_its_own() -> None:
    with serving() as agent:
        tier = client(agent)
        tier.put("hints/x", b"parent")  # leaves a connection open
        child = os.fork()
        if child == 0:
            os._exit(0 if tier.get("hints/x") == b"parent" else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert tier.get("hints/x") == b"parent"


def test_two_agents_cannot_serve_one_directory() -> None:
    refused = pytest.raises(UsageError, match="another agent")
    with shared_memory() as directory, serving(directory), refused, serving(directory):
        pass


def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for name in ("open", "link"):
        with pytest.raises(UsageError, match="only this user"), serving(tmp_path / name):
            pass
    with pytest.raises(UsageError):
        Agent(tmp_path / "real", secret=None, capacity_bytes=0)  # type: ignore[arg-type]


def test_parts_become_blocks_without_losing_a_byte() -> None:
    for sizes in ([], [0], [1], [BLOCK], [BLOCK + 1], [7, BLOCK, BLOCK - 7], [5] * 100, [3 * BLOCK + 1, 2]):
        parts = [os.urandom(size) for size in sizes]
        blocks = [bytes(block) for block in blocks_from(parts)]
        assert b"".join(blocks) == b"".join(parts)
        assert all(len(block) == BLOCK for block in blocks[:-1]) and all(blocks)


def test_the_pace_makes_whoever_is_ahead_wait() -> None:
    class Clock:
        at = 100.0

        def now(self) -> float:
            return self.at

        def monotonic(self) -> float:
            return self.at

        def sleep(self, seconds: float) -> None:
            self.at += seconds

        def new_id(self) -> str:
            return ""

    clock = Clock()
    pace = Pace(1000, clock)
    for _ in range(5):
        pace(500)
    assert clock.at == 102.0  # the first passes at once
    Pace(0, clock)(10**9)
    assert clock.at == 102.0


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "host:0", "host:65536", "host:x", "host:²"])
def test_a_bad_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError):
        parse_address(address)


def test_addresses() -> None:
    assert parse_address("localhost:80") == ("localhost", 80)
    assert parse_address("[::1]:80") == ("::1", 80)
