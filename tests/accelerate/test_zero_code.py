"""A script that knows nothing of ours under ``python -m accelerate_durable``: it is run as python runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import accelerate
import pytest
from zero_code_runs import SMALL, run, script, trained

from accelerate_durable import swap
from accelerate_durable.__main__ import split
from durable_core.engine.inspect import open_run
from tests.launch.torchrun_runs import cleaned
from tests.torture.accelerate_kills import campaign


def succeeded(root: Path) -> bool:
    over = open_run(root).state.terminal
    return over is not None and over.outcome == "succeeded"


# --- as python runs it ------------------------------------------------------------------------------

SEEN = """
import sys
print([sys.argv, sys.path[0], __name__, __file__, sys.modules["__main__"].__dict__ is globals()])
from accelerate import Accelerator
print(Accelerator.__module__)
"""


def test_a_script_finds_what_python_would_give_it_and_our_accelerator(tmp_path: Path) -> None:
    path = script(tmp_path, SEEN)
    code, told = run(tmp_path, path, "--log", "-m", "x")
    assert code == 0
    assert str([[path, "--log", "-m", "x"], str(tmp_path), "__main__", path, True]) in told
    assert "accelerate_durable.swap" in told


def test_a_module_is_run_by_its_name(tmp_path: Path) -> None:
    script(tmp_path, SEEN, "some_module.py")
    code, told = run(tmp_path, "-m", "some_module", "a")
    assert code == 0
    assert f"[['{tmp_path / 'some_module.py'}', 'a'], '{tmp_path}', '__main__'" in told


def test_a_script_that_trains_nothing_with_accelerate_is_told_so(tmp_path: Path) -> None:
    code, told = run(tmp_path, script(tmp_path, "print('hello')"))
    assert code == 0
    assert "nothing was made durable" in told


@pytest.mark.parametrize(
    ("text", "status"), [("sys.exit(0)", 0), ("sys.exit(3)", 3), ("sys.exit()", 0), ("sys.exit('no')", 1)]
)
def test_the_exit_code_is_the_scripts(tmp_path: Path, text: str, status: int) -> None:
    assert run(tmp_path, script(tmp_path, f"import sys\n{text}"))[0] == status


def test_a_traceback_begins_in_the_script(tmp_path: Path) -> None:
    path = script(tmp_path, "def wrong():\n    return {}['x']\nwrong()\n")
    code, told = run(tmp_path, path)
    assert code == 1
    trace = told[told.index("Traceback") :].splitlines()
    assert trace[1].strip() == f'File "{path}", line 3, in <module>'
    assert trace[-1] == "KeyError: 'x'"
    assert sum("File " in line for line in trace) == 2


#: After what has been trained, as the script's own last lines.
TAIL = """
import runpy, sys
from pathlib import Path
sys.argv = ["x", "--log", "log", "--weights", "weights", "--samples", "12", "--epochs", "1"]
sys.path.insert(0, {scripts!r})
import never_checkpoints
end = never_checkpoints.Accelerator.end_training
never_checkpoints.Accelerator.end_training = lambda self: None
never_checkpoints.main()
{last}
"""


@pytest.mark.parametrize(
    ("last", "status", "over"),
    [
        ("", 0, True),
        ("sys.exit(0)", 0, True),
        ("sys.exit(4)", 4, False),
        ("raise ValueError('late')", 1, False),
    ],
)
def test_the_run_is_over_when_the_script_ends_well(
    tmp_path: Path, last: str, status: int, over: bool
) -> None:
    scripts = str(Path(__file__).with_name("scripts"))
    path = script(tmp_path, TAIL.format(scripts=scripts, last=last))
    code, told = run(tmp_path, "--root", str(tmp_path / "run"), path)
    assert code == status, told
    assert succeeded(tmp_path / "run") is over


def test_workers_that_are_spawned_find_what_the_script_defines(tmp_path: Path) -> None:
    text = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset

class Squares(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.tensor([float(i * i)])

def main():
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loader = DataLoader(Squares(), batch_size=4, num_workers=1, multiprocessing_context="spawn")
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    seen = []
    for x in loader:
        accelerator.backward(model(x).sum())
        optimizer.step()
        optimizer.zero_grad()
        seen += x.flatten().tolist()
    print("seen", seen)

if __name__ == "__main__":
    main()
"""
    code, told = run(tmp_path, "--root", str(tmp_path / "run"), script(tmp_path, text))
    assert code == 0, told
    assert "seen [0.0, 1.0, 4.0, 9.0, 16.0, 25.0, 36.0, 49.0]" in told


# --- the swap -----------------------------------------------------------------------------------------


def test_every_name_that_is_theirs_becomes_ours() -> None:
    class Theirs: ...

    class Ours: ...

    module = ModuleType("some")
    vars(module).update(A=Theirs, B=Theirs, C=[Theirs])
    swap.replace(Theirs, Ours, [module, object(), None])
    assert module.A is Ours
    assert module.B is Ours
    assert module.C[0] is Theirs


def test_a_trainer_of_transformers_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "transformers").mkdir()
    script(tmp_path / "transformers", "", "__init__.py")
    script(
        tmp_path / "transformers",
        "from accelerate import Accelerator\n\nclass Trainer:\n    def __init__(self):\n"
        "        self.accelerator = Accelerator(cpu=True)\n",
        "trainer.py",
    )
    path = script(tmp_path, "from transformers.trainer import Trainer\nTrainer()\n")
    code, told = run(tmp_path, "--root", "run", path)
    assert code == 2
    assert "Traceback" not in told
    assert "DurableTrainerCallback" in told


def test_the_swap_imports_no_transformers(tmp_path: Path) -> None:
    """In a process of its own: what others have imported here is in a fork as well."""
    path = script(tmp_path, "import sys\nprint('transformers' in sys.modules)\n")
    command = [sys.executable, "-m", "accelerate_durable", "--root", str(tmp_path / "run"), path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["False"]


def test_ours_is_theirs_for_whoever_asks(tmp_path: Path) -> None:
    assert issubclass(swap.Accelerator, accelerate.Accelerator)


# --- the command line -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "own", "of_script"),
    [
        (["a.py", "--root", "x"], [], ["a.py", "--root", "x"]),
        (["--root", "x", "a.py"], ["--root", "x"], ["a.py"]),
        (["--root=x", "-m", "a", "-m"], ["--root=x", "-m"], ["a", "-m"]),
        (["--", "a.py", "--", "b"], [], ["a.py", "--", "b"]),
        (["--durable", "f", "--", "a.py"], ["--durable", "f"], ["a.py"]),
        (["--root"], ["--root"], []),
        ([], [], []),
    ],
)
def test_what_comes_from_the_script_on_is_the_scripts(given: Any, own: Any, of_script: Any) -> None:
    assert split(given) == (own, of_script)


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "durable.yaml").write_text("root: of-the-file\nevery_n_steps: 7\nmax_steps: 9\n")
    text = """
from accelerate_durable.options import DurableOptions
found = DurableOptions.gather()
print([found.root, found.every_n_steps, found.max_steps])
"""
    code, told = run(
        tmp_path, "--durable", "durable.yaml", "--root", "of-the-flag", script(tmp_path, text),
        environ={"ACCELERATE_DURABLE_ROOT": "of-the-environment", "ACCELERATE_DURABLE_EVERY_N_STEPS": "8"},
    )  # fmt: skip
    assert code == 0
    assert "['of-the-flag', 8, 9]" in told


# --- killed ---------------------------------------------------------------------------------------------


def test_a_job_whose_processes_are_killed_is_the_same_run(tmp_path: Path) -> None:
    with cleaned(tmp_path):
        found = campaign(
            tmp_path, "accelerate", "never", kills=2, seed=3, stretch=20, arguments=("--samples", "120")
        )
    assert found["kills"] == 2
    assert found["weights_equal"]
    assert (found["repeated"], found["skipped"]) == (0, 0)


def test_a_run_that_has_ended_is_not_trained_again(tmp_path: Path) -> None:
    assert trained(tmp_path, *SMALL)[0] == 0
    before = open_run(tmp_path / "run").view.next_seq
    assert trained(tmp_path, *SMALL)[0] == 0
    assert open_run(tmp_path / "run").view.next_seq == before
