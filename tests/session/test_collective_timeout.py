"""How long collectives wait is told by the launcher, and used where a script asks for it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from durable_core.errors import UsageError
from durable_core.session.world import collective_timeout


def test_it_is_what_the_environment_says() -> None:
    assert collective_timeout({}) is None
    assert collective_timeout({"DURABLE_COLLECTIVE_TIMEOUT_S": ""}) is None
    assert collective_timeout({"DURABLE_COLLECTIVE_TIMEOUT_S": "2.5"}) == timedelta(seconds=2.5)


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "inf", "1e300"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="DURABLE_COLLECTIVE_TIMEOUT_S"):
        collective_timeout({"DURABLE_COLLECTIVE_TIMEOUT_S": text})


@pytest.mark.parametrize("text", ["", "7"])
def test_torch_takes_it_as_it_is(tmp_path: Path, text: str) -> None:
    timeout = collective_timeout({"DURABLE_COLLECTIVE_TIMEOUT_S": text})
    where = f"file://{tmp_path}/store"
    dist.init_process_group("gloo", init_method=where, rank=0, world_size=1, timeout=timeout)
    try:
        dist.barrier()
    finally:
        dist.destroy_process_group()
