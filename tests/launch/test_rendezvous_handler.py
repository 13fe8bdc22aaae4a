"""The rendezvous handler: what holds for a group, told to all nodes alike, round after round."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from test_books import create
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
from torchrun_runs import free_port, until

from durable_core.clock import SystemClock
from durable_core.engine import inspect, words
from durable_core.engine.launched import Launched
from durable_core.errors import NodesMissing, Superseded, UsageError
from durable_core.launch.books import Books, record_name
from durable_core.launch.evidence import Lost
from durable_core.launch.rendezvous import Restart, RunRendezvous, pulse
from durable_core.launch.rendezvous.joining import Joining

CLOCK = SystemClock()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a round puts into the environment is gone after the test."""
    before = dict(os.environ)
    for name in ("SLURM_JOB_ID", "DURABLE_TAKEOVER", "DURABLE_ROOT", "DURABLE_LAUNCH_ID"):
        os.environ.pop(name, None)
    yield
    os.environ.clear()
    os.environ.update(before)


Make = Callable[..., RunRendezvous]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[RunRendezvous] = []

    def one(
        *, nodes: int = 1, port: int = 0, run_id: str = "none", size: int = 0, **config: Any
    ) -> RunRendezvous:
        parameters = RendezvousParameters(
            "durable", f"127.0.0.1:{port}", run_id, nodes, nodes, "127.0.0.1", **config
        )
        made.append(RunRendezvous(parameters, CLOCK, size=size))
        return made[-1]

    yield one
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda each: each.shutdown(), made))


def together(*handlers: RunRendezvous) -> list[RendezvousInfo]:
    """All join the next round; what each got, or the first error."""
    with ThreadPoolExecutor() as pool:
        asked: list[Future[RendezvousInfo]] = [pool.submit(each.next_rendezvous) for each in handlers]
        return [each.result(60) for each in asked]


def opens(handler: RunRendezvous, root: Path, roles: tuple[str, ...] = ("dp0", "dp1")) -> None:
    """As the first worker of this launch does."""
    words.write(handler.files.opened, words.Opened(str(root), "run", 1, record_name(handler.launch), roles))


def place(info: RendezvousInfo) -> tuple[str, int]:
    assert info.bootstrap_store_info is not None
    return info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port


def generations(root: Path) -> int:
    return inspect.open_run(root).state.generation


# --- one node --------------------------------------------------------------------------------


def test_every_round_has_a_store_of_its_own_with_nothing_in_it(make: Make) -> None:
    handler = make()
    first = place(handler.next_rendezvous())
    client = dist.TCPStore(*first, is_master=False)
    client.set("left", "by the dead")
    second = place(handler.next_rendezvous())
    assert second != first
    assert not dist.TCPStore(*second, is_master=False).check(["left"])
    with pytest.raises(dist.DistNetworkError):
        client.check(["left"])  # what is left of the dead group has no store any more


def test_the_first_round_claims_nothing_while_nobody_knows_the_run(make: Make) -> None:
    handler = make()
    handler.next_rendezvous()
    told = Launched.of()
    assert (told.generation, told.run_id) == (None, "")
    assert told.attempt == f"{handler.launch}/1"
    assert told.run_dir == handler.files.root


def test_the_run_that_a_worker_opened_is_claimed_for_the_next_group(tmp_path: Path, make: Make) -> None:
    create(tmp_path, ("dp0", "dp1", "dp2"))
    handler = make()
    handler.next_rendezvous()
    opens(handler, tmp_path, ("dp0", "dp1"))
    handler.next_rendezvous()
    assert handler.claimed is not None
    told = Launched.of()
    assert (told.generation, told.run_id) == (1, "run")
    assert told.attempt == f"{handler.launch}/2"
    state = inspect.open_run(tmp_path).state
    assert (state.generation, state.launch_id) == (1, record_name(handler.launch))
    assert state.members == ("dp0", "dp1"), "the roles of the last attempt"
    handler.next_rendezvous()
    assert Launched.of().generation == 2


def test_what_an_earlier_attempt_was_told_is_not_told_again(tmp_path: Path, make: Make) -> None:
    create(tmp_path)
    handler = make(root=str(tmp_path))
    handler.restart = Restart("F12", 7)
    handler.next_rendezvous()
    told = Launched.of()
    assert (told.generation, told.reason, told.onset) == (1, "F12", 7)
    books = handler.books()
    assert books is not None
    assert handler.claimed is not None
    books.end(handler.claimed.token, "over")
    handler.restart = Restart()
    handler.next_rendezvous()
    told = Launched.of()
    assert (told.generation, told.run_id, told.reason, told.onset) == (None, "", "", None)


def test_files_of_the_group_before_are_gone_and_the_opened_run_is_not(tmp_path: Path, make: Make) -> None:
    handler = make()
    handler.next_rendezvous()
    opens(handler, tmp_path)
    for path in (handler.files.beat(0), handler.files.words(0), handler.files.stacks(0)):
        path.write_text("old")
    handler.next_rendezvous()
    assert not any(
        p.exists() for p in (handler.files.beat(0), handler.files.words(0), handler.files.stacks(0))
    )
    assert words.read_opened(handler.files.opened) is not None


def test_a_store_that_cannot_be_used_leaves_the_claim_to_the_workers(tmp_path: Path, make: Make) -> None:
    root = tmp_path / "file"
    root.write_text("no directory")
    handler = make(root=str(root))
    handler.next_rendezvous()
    assert Launched.of().generation is None


def test_a_superseded_launch_is_told_so(tmp_path: Path, make: Make) -> None:
    create(tmp_path)
    handler = make(root=str(tmp_path), run_id="job")
    handler.next_rendezvous()
    Books(tmp_path, CLOCK, "other").claim(takeover=True)
    with pytest.raises(Superseded):
        handler.next_rendezvous()


def test_a_takeover_is_made_once_under_an_identity_of_its_own(tmp_path: Path, make: Make) -> None:
    create(tmp_path)
    Books(tmp_path, CLOCK, "job").claim()
    Books(tmp_path, CLOCK, "other").claim()
    os.environ["DURABLE_TAKEOVER"] = "1"
    handler = make(root=str(tmp_path), run_id="job")
    handler.next_rendezvous()
    assert handler.launch not in ("job", "other")
    assert Launched.of().generation == 3
    assert "DURABLE_TAKEOVER" not in os.environ, (
        "the workers have the generation, and need not take over again"
    )
    Books(tmp_path, CLOCK, "third").claim(takeover=True)
    with pytest.raises(Superseded):
        handler.next_rendezvous()


@pytest.mark.parametrize(
    ("run_id", "environ", "launch"),
    [
        ("job7", {}, "job7"),
        ("job7", {"DURABLE_LAUNCH_ID": "mine"}, "mine"),
        ("none", {"SLURM_JOB_ID": "42"}, "42"),
    ],
)
def test_a_supervisor_gives_a_launch_its_identity(
    make: Make, run_id: str, environ: dict[str, str], launch: str
) -> None:
    os.environ.update(environ)
    handler = make(run_id=run_id)
    handler.next_rendezvous()
    assert handler.launch == launch


def test_long_identities_stay_different(make: Make) -> None:
    long = [make(run_id="x" * 300 + end) for end in ("a", "b", "a")]
    for handler in long:
        handler.next_rendezvous()
    assert long[0].launch == long[2].launch != long[1].launch
    assert len(record_name(long[0].launch)) <= 128, "as long as a record allows"


def test_a_meeting_that_never_succeeds_ends_at_the_deadline(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise dist.DistNetworkError("no route")

    handler = make(join_timeout=1)
    monkeypatch.setattr("durable_core.launch.rendezvous.handler.TCPStore", fails)
    with pytest.raises(NodesMissing, match="no route"):
        handler.next_rendezvous()


def test_two_launches_of_one_node_without_an_endpoint_do_not_meet() -> None:
    def parameters() -> RendezvousParameters:
        return RendezvousParameters("durable", "", "none", 1, 1)

    one, other = (Joining(parameters(), CLOCK, name) for name in ("a", "b"))
    assert one.parameters.endpoint == "localhost:0"
    infos = [each.next(CLOCK.monotonic() + 30) for each in (one, other)]
    assert [(info.rank, info.world_size) for info in infos] == [(0, 1), (0, 1)]
    with pytest.raises(UsageError, match="place to meet"):
        Joining(RendezvousParameters("durable", "", "none", 2, 2), CLOCK, "c")


# --- two nodes -------------------------------------------------------------------------------


def pair(make: Make, **config: Any) -> tuple[RunRendezvous, RunRendezvous]:
    port = free_port()
    return make(nodes=2, port=port, **config), make(nodes=2, port=port, **config)


def test_all_nodes_hold_the_same_and_one_generation_is_claimed(tmp_path: Path, make: Make) -> None:
    create(tmp_path)
    handlers = pair(make, root=str(tmp_path))
    infos = together(*handlers)
    assert sorted(info.rank for info in infos) == [0, 1]
    assert place(infos[0]) == place(infos[1])
    assert handlers[0].terms == handlers[1].terms
    assert [each.claimed is None for each in handlers].count(False) == 1, "node 0 alone claims"
    assert generations(tmp_path) == 1


def test_a_refusal_reaches_every_node_as_what_it_is(tmp_path: Path, make: Make) -> None:
    create(tmp_path)
    Books(tmp_path, CLOCK, "job").claim()
    Books(tmp_path, CLOCK, "other").claim()
    handlers = pair(make, root=str(tmp_path), run_id="job")
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(each.next_rendezvous) for each in handlers]
        errors = [each.exception(60) for each in asked]
    assert [type(error) for error in errors] == [Superseded, Superseded]
    assert sum("node 0" in str(error) for error in errors) == 1


def test_every_node_learns_which_run_was_opened(tmp_path: Path, make: Make) -> None:
    create(tmp_path)
    handlers = pair(make)
    ranks = [info.rank for info in together(*handlers)]
    first, second = handlers[ranks.index(0)], handlers[ranks.index(1)]
    opens(first, tmp_path)
    assert (first.num_nodes_waiting(), second.num_nodes_waiting()) == (0, 0)
    books = second.books()
    assert books is not None
    assert books.root == str(tmp_path)


def test_an_agent_that_was_relaunched_learns_from_the_one_that_stayed(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(tmp_path)
    port = free_port()
    staying, dying = make(nodes=2, port=port), make(nodes=2, port=port)
    together(staying, dying)
    opens(staying, tmp_path)
    opens(dying, tmp_path)  # whichever is node 0
    launch = staying.launch
    monkeypatch.setattr(pulse, "LOST_S", 0.2)
    dying._unmirror()
    assert staying.lost() == (Lost(""),), "on the same host"
    dying._joining.drop()  # its signs of life end, and nothing else is said
    new = make(nodes=2, port=port)
    assert new.launch == ""
    with ThreadPoolExecutor() as pool:
        joining = pool.submit(new.next_rendezvous)
        until(staying.num_nodes_waiting, 60, "somebody waits")
        staying.next_rendezvous()
        joining.result(60)
    assert new.terms == staying.terms
    for each in (staying, new):
        each.num_nodes_waiting()
    assert words.read_opened(new.files.opened) == words.read_opened(staying.files.opened) is not None
    assert (new.launch, new.attempt) == (launch, 2)
    assert new.terms is not None
    assert new.terms.generation == 1


def test_a_rendezvous_that_one_node_closed_is_over_for_the_other(make: Make) -> None:
    first, second = pair(make)
    together(first, second)
    watching = threading.Event()

    def watch() -> None:
        while not watching.wait(0.05):
            second.num_nodes_waiting()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        begun = CLOCK.monotonic()
        assert first.shutdown()
        assert CLOCK.monotonic() - begun < 2.5, "it waits until the other has seen it, and no longer"
    finally:
        watching.set()
        thread.join()
    with pytest.raises(RendezvousClosedError):
        second.next_rendezvous()


def test_nodes_that_do_not_come_are_counted_in_the_error(make: Make) -> None:
    handler = make(nodes=2, port=free_port(), join_timeout=3)
    with pytest.raises(NodesMissing, match=r"2 nodes are needed and 1 \(127.0.0.1:\d+\) came"):
        handler.next_rendezvous()


def test_the_host_of_the_rendezvous_may_be_lost_and_come_back(make: Make) -> None:
    port = free_port()
    host = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    handler = make(nodes=1, port=port, is_host=False)
    handler.next_rendezvous()
    del host
    until(handler.num_nodes_waiting, 60, "the host is missed")
    assert handler.num_nodes_waiting() == 1, "until all have met again"
    with ThreadPoolExecutor() as pool:
        again = pool.submit(handler.next_rendezvous)
        CLOCK.sleep(0.3)
        host = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
        again.result(60)
    assert handler.attempt == 2
    assert handler.num_nodes_waiting() == 0
    assert handler.shutdown()
    del host


# --- another backend -------------------------------------------------------------------------


def test_another_backend_is_asked_for_by_its_name(make: Make) -> None:
    seen: list[RendezvousParameters] = []

    class Fake(C10dRendezvousBackend):
        name = "fake-etcd"

    def fake(parameters: RendezvousParameters) -> RendezvousHandler:
        seen.append(parameters)
        store = dist.HashStore()
        return create_handler(store, Fake(store, parameters.run_id), parameters)

    rendezvous_handler_registry.register("fake-etcd", fake)
    handler = make(inner="fake-etcd", root="", protocol="https")
    info = handler.next_rendezvous()
    assert (seen[0].backend, seen[0].config["protocol"]) == ("fake-etcd", "https")
    assert not {"root", "inner"} & set(seen[0].config)
    assert place(info)[1] > 0
    assert handler.attempt == 1
