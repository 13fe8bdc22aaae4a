"""Real gloo ranks that stand still, and what faulthandler says of them: is the right one named?"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from durable_core.engine.beats import Beat, Phase
from durable_core.engine.launched import DUMP_SIGNAL
from durable_core.launch.liveness import culprit

SCRIPT = """
import faulthandler, os, sys, threading, time
import torch, torch.distributed as dist
rank, where, mode, here = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
sys.path.insert(0, here)
from durable_core.engine.launched import DUMP_SIGNAL
threading.Thread(target=threading.Event().wait, daemon=True).start()  # some other thread, as there always is
dist.init_process_group("gloo", init_method=f"file://{where}/store", rank=rank, world_size=2)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
out = open(f"{where}/{rank}.txt", "w")
faulthandler.register(DUMP_SIGNAL, file=out, all_threads=True)

def fetch():
    time.sleep(600)

def step():
    if rank == 1:
        fetch()
    if mode == "all_reduce":
        dist.all_reduce(torch.ones(3))
    elif mode == "barrier":
        dist.barrier()
    else:
        model(torch.ones(1, 4)).sum().backward()

open(f"{where}/{rank}.ready", "w").close()
step()
"""
DEADLINE_S = 120.0


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def until(condition: object, what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"{what} did not come about in {DEADLINE_S} s"
        time.sleep(0.02)


@pytest.mark.parametrize("mode", ["all_reduce", "backward", "barrier"])
def test_the_rank_that_sleeps_in_training_code_is_named(
    mode: str, tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    here = str(Path(__file__).resolve().parents[2] / "core")
    for rank in (0, 1):
        started.append(subprocess.Popen([sys.executable, "-c", SCRIPT, str(rank), str(tmp_path), mode, here]))
    until(lambda: all((tmp_path / f"{rank}.ready").exists() for rank in (0, 1)), "both ranks in their step")
    beats = {rank: Beat(started[rank].pid, Phase.STEP, 1, 5, 1, -1, 9.0, 9.0) for rank in (0, 1)}
    found = []

    def named() -> bool:
        """Each look dumps anew: the ranks may not yet have come to where they stay."""
        for process in started:
            assert process.poll() is None, "a rank has ended"
            process.send_signal(DUMP_SIGNAL)
        stacks = {rank: (tmp_path / f"{rank}.txt").read_text() for rank in (0, 1)}
        found.append(culprit(beats, stacks))
        return found[-1].rank is not None

    until(named, "a culprit")
    assert found[-1].rank == 1, found[-1]
    assert found[-1].frames[-1].endswith(":fetch")
    assert "rank 0 waits in" in found[-1].reason
