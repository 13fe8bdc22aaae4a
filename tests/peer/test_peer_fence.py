"""Generations: who may write, who may not any more, and that nobody gets past it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from peer_agents import KEY, OTHER_RUN, RUN, channel, client, serving, shared_memory

from durable_core.errors import Fenced, TierUnavailable, UsageError
from durable_core.tier.peer.client import PeerTier

WRITES: dict[str, Callable[[PeerTier], object]] = {
    "put_if_absent": lambda tier: tier.put_if_absent("a/new", b"x"),
    "put": lambda tier: tier.put("hints/owner.json", b"x"),
    "write_object": lambda tier: tier.write_object("a/other", [b"x"] * 3),
    "delete": lambda tier: tier.delete(KEY),
    "forget": lambda tier: tier.forget(),
    "probe": lambda tier: tier.probe(),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_lower_generation_may_read_but_not_write(write: str) -> None:
    with serving() as agent:
        old, new = client(agent, generation=3), client(agent, generation=4)
        old.write_object(KEY, [b"of the old"])
        new.size(KEY)  # it has spoken, without a write
        with pytest.raises(Fenced, match="generation 3"):
            WRITES[write](old)
        assert old.get(KEY) == b"of the old" and list(old.list("")) == [KEY]
        WRITES[write](new)


def test_the_fence_outlives_the_agent_and_the_objects() -> None:
    with shared_memory() as directory:
        with serving(directory) as agent:
            client(agent, generation=7).write_object(KEY, [b"kept"])
        with serving(directory) as agent:
            old = client(agent, generation=6)
            with pytest.raises(Fenced, match="7 has been here"):
                old.put("hints/x", b"x")
            assert old.get(KEY) == b"kept"
            client(agent, generation=7).forget()
        with serving(directory) as agent, pytest.raises(Fenced):
            client(agent, generation=6).put("hints/x", b"x")


def test_a_newer_generation_stops_a_write_that_is_under_way() -> None:
    """The object is complete at the agent but for its end when the newer generation speaks."""
    with serving() as agent:
        old, new = client(agent, generation=1), client(agent, generation=2)

        def parts() -> Iterator[bytes]:
            yield b"x" * 3_000_000
            assert list(new.list("")) == []
            yield b"the end"

        with pytest.raises(Fenced):
            old.write_object(KEY, parts())
        assert list(new.list("")) == []
        assert new.write_object(KEY, [b"new"]) == 3


def test_runs_do_not_fence_nor_see_one_another() -> None:
    with serving() as agent:
        one, other = client(agent, generation=1), client(agent, generation=9, run_id=OTHER_RUN)
        other.put_if_absent(KEY, b"other")
        assert one.put_if_absent(KEY, b"one") is True
        assert (one.get(KEY), other.get(KEY)) == (b"one", b"other")
        assert other.forget() > 0
        assert list(other.list("")) == [] and one.get(KEY) == b"one"


def test_the_generation_of_a_connection_is_said_once() -> None:
    """A stale client cannot say another one later, whatever it has learnt."""
    with serving() as agent:
        stale = channel(agent.address)
        client(agent, generation=2).list("")
        stale.send({"op": "hello", "run": RUN, "generation": 2})
        assert stale.receive().header["error"] == "usage"
        stale.send({"op": "delete", "key": KEY, "generation": 2})
        assert stale.receive().header["error"] == "fenced"


def test_an_idle_connection_of_the_old_generation_is_refused_too() -> None:
    with serving() as agent:
        old = client(agent, generation=1)
        old.put("hints/x", b"1")  # its connection stays open
        client(agent, generation=2).list("")
        with pytest.raises(Fenced):
            old.put("hints/x", b"2")
        assert old.get("hints/x") == b"1"


def test_no_write_of_the_old_appears_after_the_new_has_looked() -> None:
    """Many writers of the old generation race with the newcomer: what it sees first is all there will be."""
    with serving() as agent:
        begun = threading.Barrier(5)

        def write(name: int) -> None:
            tier = client(agent, generation=1)
            begun.wait()
            for i in range(1000):
                try:
                    tier.put_if_absent(f"old/{name}-{i}", b"x")
                except Fenced:
                    return
            raise AssertionError("never fenced")

        threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        begun.wait()
        new = client(agent, generation=2)
        seen = sorted(new.list(""))
        for thread in threads:
            thread.join()
        assert sorted(new.list("")) == seen


def test_a_damaged_fence_refuses_the_run_and_no_other() -> None:
    with shared_memory() as directory:
        with serving(directory) as agent:
            client(agent, generation=7).put("hints/x", b"x")
        (directory / "fences" / RUN).write_bytes(b'{"generation":')
        with serving(directory) as agent:
            with pytest.raises(TierUnavailable, match=f"remove .*fences/{RUN}"):
                client(agent, generation=8).put("hints/x", b"y")
            client(agent, run_id=OTHER_RUN).put("hints/x", b"y")


@pytest.mark.parametrize("run_id", ["", "..", "a/b", "A", "tmp", "x" * 65])
def test_a_bad_run_id_is_refused_on_both_sides(run_id: str) -> None:
    with serving() as agent:
        with pytest.raises(UsageError):
            client(agent, run_id=run_id)
        bare = channel(agent.address, hello=False)
        bare.send({"op": "hello", "run": run_id, "generation": 1})
        assert bare.receive().header["error"] == "usage"
