"""A worker that is killed goes on from this host's memory: at most one step is lost, in the same run."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from durable_core.engine.audit import audit
from durable_core.engine.inspect import open_run
from durable_core.state.snapshots import leftovers
from tests.lives import as_script, life

SCRIPT = Path(__file__).parent / "memory_writer.py"
STEPS = 9


def live(root: Path, memory: Path, *death: str, every: int = 1000) -> tuple[str, str]:
    """One life: (what it restored, the digest it ended with or ``"killed"``)."""
    memory.mkdir(exist_ok=True)
    output = root.parent / "output"
    output.unlink(missing_ok=True)
    code = life(root.parent, as_script(SCRIPT, root, memory, STEPS, every, *death))
    said = output.read_text()
    restored = re.search(r"restored (.*)", said)
    ended = re.search(r"digest (\w+)", said)
    assert restored, said
    if ended:
        assert code == 0, said
        return restored[1], ended[1]
    assert code == -signal.SIGKILL, said
    return restored[1], "killed"


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> str:
    base = tmp_path_factory.mktemp("truth")
    return live(base / "run", base / "memory")[1]


def check_history(root: Path, memory: Path) -> None:
    found = audit(open_run(root))
    assert found.sound, found.to_json()
    assert leftovers(memory) == []  # a run that has ended leaves nothing in memory


def test_the_run_goes_on_from_the_last_sealed_step(tmp_path: Path, truth: str) -> None:
    root, memory = tmp_path / "run", tmp_path / "memory"
    assert live(root, memory, "4")[0] == "None"
    assert live(root, memory, "8") == ("(1, 3)", "killed")  # steps 1 to 3 were in memory only
    assert live(root, memory) == ("(2, 7)", truth)
    state = open_run(root).state
    assert [info.adopted for info in state.checkpoints.values()] == [None, 1, 2, None]
    check_history(root, memory)


@pytest.mark.parametrize("point", ["K3", "K4", "K5"])
def test_a_death_while_a_snapshot_is_taken_costs_that_step(tmp_path: Path, truth: str, point: str) -> None:
    root, memory = tmp_path / "run", tmp_path / "memory"
    live(root, memory, f"5:{point}")
    restored, ended = live(root, memory)
    assert restored == ("(1, 5)" if point == "K5" else "(1, 4)")
    assert ended == truth
    check_history(root, memory)


@pytest.mark.parametrize("point", ["K1", "K6", "K8", "K12", "K13"])
def test_a_death_in_a_commit_loses_nothing_that_was_sealed(tmp_path: Path, truth: str, point: str) -> None:
    root, memory = tmp_path / "run", tmp_path / "memory"
    live(root, memory, f"6:{point}", every=3)
    restored, ended = live(root, memory, every=3)
    step = int(re.findall(r"\d+", restored)[1])
    assert step in (5, 6)  # the seal of step 6 races with its commit
    assert ended == truth
    check_history(root, memory)


def test_memory_that_was_lost_costs_what_was_not_committed(tmp_path: Path, truth: str) -> None:
    root, memory = tmp_path / "run", tmp_path / "memory"
    live(root, memory, "8", every=3)
    for slot in memory.rglob("*.slot"):
        slot.unlink()
    restored, ended = live(root, memory, every=3)
    assert restored == "(2, 6)"
    assert ended == truth


def test_a_flipped_bit_in_memory_is_found_and_the_step_before_taken(tmp_path: Path, truth: str) -> None:
    root, memory = tmp_path / "run", tmp_path / "memory"
    live(root, memory, "8")
    slots = sorted(memory.rglob("*.slot"), key=lambda path: path.stat().st_mtime_ns)
    data = bytearray(slots[-1].read_bytes())
    data[8192] ^= 1
    slots[-1].write_bytes(data)
    restored, ended = live(root, memory)
    assert restored == "(1, 6)", restored
    assert ended == truth
    check_history(root, memory)
