"""Two processes (gloo): the same promises, and nobody is left hanging."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from lightning_check import References, run_life, survives
from lightning_subject import Case, at_line, lines

from tests.lives import check_stretches

SAMPLES = 96


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(("workers", "victim"), [(0, 0), (0, 1), (2, 0)])
def test_sigkill_of_one_rank(workers: int, victim: int, references: References, tmp_path: Path) -> None:
    case = Case("Normed", workers=workers, samples=SAMPLES, epochs=2)
    codes = survives(references, tmp_path, case, [("batch", 18)], world=2, victim=victim)
    assert codes[0][victim] == -9
    ids = [[line["ids"] for line in ranks if line["what"] == "batch"] for ranks in references.of(case, 2)]
    epoch = [sample for rank in ids for batch in rank[:12] for sample in batch]
    assert sorted(epoch) == list(range(SAMPLES))


def test_more_than_two_ranks_add_up_gradients_in_the_same_order(
    references: References, tmp_path: Path
) -> None:
    """DDP lays its buckets out anew after a life's first step; the sums would round differently there."""
    survives(references, tmp_path, Case("Wide", samples=96, epochs=1, every=1), [("batch", 4)], world=3)


def test_killed_after_the_last_commit_every_rank_ends_with_its_own_buffers(
    references: References, tmp_path: Path
) -> None:
    """DDP gives every replica the first one's buffers when it wraps the module, after the restore; no step
    follows that would set them again."""
    case = Case("Normed", samples=SAMPLES, epochs=2)
    survives(references, tmp_path, case, [("epoch_end", 2)], world=2)


@pytest.mark.parametrize("victim", [0, 1])
def test_sigterm_to_one_rank_drains_all(victim: int, references: References, tmp_path: Path) -> None:
    """dd_term0, dd_term1. Lightning: exit code 0, or a hang that only SIGKILL ends."""
    case = Case("Normed", samples=SAMPLES, epochs=3, every=1000)
    first = run_life(case, tmp_path, "one-", 2, {victim: at_line("batch", 10, terminate, settled=False)})
    assert first == [75, 75]
    assert run_life(case, tmp_path, "two-", 2, {}) == [0, 0], (tmp_path / "output").read_text()[-3000:]
    for rank, expected in enumerate(references.of(case, 2)):
        lives = [lines(tmp_path, log=f"{name}{rank}") for name in ("one-", "two-")]
        check_stretches(expected, lives)
        assert sum(map(len, lives)) == len(expected)  # nothing was done twice


SCRIPT = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from lightning_check import at_line
from lightning_subject import Case, fit
from test_lightning_ddp import terminate
import os, torch
torch.set_num_threads(1)
rank = int(os.environ.get("LOCAL_RANK", "0"))
strike = at_line("batch", 10, terminate, settled=False) if rank == 1 else None
case = Case("Normed", samples={samples}, epochs=3, every=1000)
fit(case, Path(sys.argv[1]), strike, f"term{{rank}}", strategy="ddp", devices=2)
"""


@pytest.mark.parametrize("launcher", ["lightning", "torchrun"])
def test_a_script_under_a_launcher(launcher: str, references: References, tmp_path: Path) -> None:
    """Lightning's own launcher would kill rank 0 when rank 1 leaves with 75 before it."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(path=sys.path, samples=SAMPLES))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    start = [sys.executable, *(torchrun if launcher == "torchrun" else []), str(script), str(tmp_path)]
    environ = {name: value for name, value in os.environ.items() if name not in ("LOCAL_RANK", "NODE_RANK")}
    drained = subprocess.run(start, env=environ, capture_output=True, text=True, timeout=200)
    assert drained.returncode == (1 if launcher == "torchrun" else 75), drained.stderr[-3000:]
    if launcher == "torchrun":
        # Its own code says only that a worker failed; its report names both ranks, one of them twice.
        assert set(re.findall(r"exitcode +: (-?\d+)", drained.stderr)) == {"75"}, drained.stderr[-3000:]
    case = Case("Normed", samples=SAMPLES, epochs=3, every=1000)
    assert run_life(case, tmp_path, "last", 2, {}) == [0, 0], (tmp_path / "output").read_text()[-3000:]
    for rank, expected in enumerate(references.of(case, 2)):
        check_stretches(expected, [lines(tmp_path, log=f"{name}{rank}") for name in ("term", "last")])
