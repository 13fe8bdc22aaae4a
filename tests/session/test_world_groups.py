"""What the members of a world tell each other goes through gloo, whatever the default group is."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import warnings
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from durable_core.session.world import World
from tests import lives


def member(rank: int, store: str, backend: str, found: Any) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    default, gather = dist.get_backend, dist.all_gather
    dist.get_backend = lambda *group: backend if not group else default(*group)
    groups = []
    dist.all_gather = lambda *args, group=None: (groups.append(group), gather(*args, group=group))
    world = World.torch_distributed()
    told = (world.all_gather(rank), world.broadcast({"of": rank}), world.greatest((rank, -rank)))
    own = groups[0] is not None and default(groups[0]) == "gloo"
    found.put((rank, told, own))
    dist.destroy_process_group()


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_members_talk_through_gloo(tmp_path: Path, backend: str) -> None:
    forks = multiprocessing.get_context("fork")
    found = forks.SimpleQueue()
    members = [
        forks.Process(target=member, args=(rank, str(tmp_path / "store"), backend, found)) for rank in (0, 1)
    ]
    try:
        for each in members:
            each.start()
        for each in members:
            each.join(120)
        assert [each.exitcode for each in members] == [0, 0]
    finally:
        for each in members:
            each.kill()
    results = sorted(found.get() for _ in members)
    told = ([0, 1], {"of": 0}, (1, 0))
    assert results == [(rank, told, backend != "gloo") for rank in (0, 1)]


GROUPS, LONG = 40, "x" * 5000


def ends_with_its_model(rank: int, store: Path, context: Any) -> None:
    """Over and over: the members exchange something, and the model, the group's last owner, is freed."""
    signal.alarm(60)
    warnings.simplefilter("error")  # what torch gives up is not used
    sys.setswitchinterval(1000)  # a thread of gloo gets the interpreter's lock where this one lets it go
    for number in range(GROUPS):
        dist.init_process_group("gloo", init_method=f"file://{store}{number}", rank=rank, world_size=2)
        world, model = World.torch_distributed(), DistributedDataParallel(torch.nn.Linear(2, 2))
        with context():
            assert world.broadcast({"rank": rank, "long": LONG}) == {"rank": 0, "long": LONG}
            assert world.all_gather([rank, LONG[: rank * 7]]) == [[0, ""], [1, LONG[:7]]]
        dist.destroy_process_group()
        del model


@pytest.mark.parametrize("context", [nullcontext, torch.inference_mode], ids=lambda each: each.__name__)
def test_a_group_may_end_right_after_an_exchange(tmp_path: Path, context: Any) -> None:
    """Gloo's thread frees no tensor of it, or the thread and the destructor wait for each other."""
    members = [
        lives.start(tmp_path, partial(ends_with_its_model, rank, tmp_path / "store", context))
        for rank in (0, 1)
    ]
    assert lives.all_ended(members) == [0, 0], (tmp_path / "output").read_text()
