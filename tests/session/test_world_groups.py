"""What the members of a world tell each other goes through gloo, whatever the default group is."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from durable_core.session.world import World


def member(rank: int, store: str, backend: str, found: Any) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    default, gather = dist.get_backend, dist.all_gather_object
    dist.get_backend = lambda *group: backend if not group else default(*group)
    groups = []
    dist.all_gather_object = lambda *args, group=None: (groups.append(group), gather(*args, group=group))
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
