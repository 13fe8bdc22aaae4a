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
from durable_core.launch.liveness import Culprit, culprit

SCRIPT = """
import faulthandler, sys, threading
import torch, torch.distributed as dist
rank, where, here, *modes = int(sys.argv[1]), *sys.argv[2:]
sys.path.insert(0, here)
from durable_core.engine.launched import DUMP_SIGNAL
threading.Thread(target=threading.Event().wait, daemon=True).start()  # some other thread, as there always is
dist.init_process_group("gloo", init_method=f"file://{where}/store", rank=rank, world_size=2)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))

def fetch():
    sys.stdin.readline()

def step(mode):
    if rank == 1:
        fetch()
    if mode == "all_reduce":
        dist.all_reduce(torch.ones(3))
    elif mode == "barrier":
        dist.barrier()
    else:
        model(torch.ones(1, 4)).sum().backward()

for mode in modes:
    out = open(f"{where}/{mode}.{rank}", "w")
    faulthandler.register(DUMP_SIGNAL, file=out, all_threads=True)
    open(f"{where}/{mode}.{rank}.ready", "w").close()
    step(mode)
"""
MODES = ("all_reduce", "backward", "barrier")
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


def test_the_rank_that_sleeps_in_training_code_is_named(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    here = str(Path(__file__).resolve().parents[2] / "core")
    for rank in (0, 1):
        command = [sys.executable, "-c", SCRIPT, str(rank), str(tmp_path), here, *MODES]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE))
    beats = {rank: Beat(started[rank].pid, Phase.STEP, 1, 5, 1, -1, 9.0, 9.0) for rank in (0, 1)}
    for mode in MODES:
        found = named(mode, tmp_path, started, beats)
        assert found.rank == 1, found
        assert found.frames[-1].endswith(":fetch")
        assert "rank 0 waits in" in found.reason
        stdin = started[1].stdin
        assert stdin is not None
        stdin.write(b"\n")
        stdin.flush()
    assert [process.wait(DEADLINE_S) for process in started] == [0, 0]


def named(
    mode: str, where: Path, ranks: list[subprocess.Popen[bytes]], beats: dict[int, Beat | None]
) -> Culprit:
    """Who is to blame while both stand still in ``mode``. Each look dumps anew: they may not yet have come
    to where they stay."""
    until(lambda: all((where / f"{mode}.{rank}.ready").exists() for rank in (0, 1)), f"both are in {mode}")
    found: list[Culprit] = []

    def look() -> bool:
        for process in ranks:
            assert process.poll() is None, "a rank has ended"
            process.send_signal(DUMP_SIGNAL)
        found.append(culprit(beats, {rank: (where / f"{mode}.{rank}").read_text() for rank in (0, 1)}))
        return found[-1].rank is not None

    until(look, "a culprit")
    return found[-1]
