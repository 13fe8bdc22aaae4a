"""What is shipped: the wheel's contents, the pins, and documents that say what is so."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.lives import as_script, life

ROOT = Path(__file__).parents[1]
PACKAGES = ("durable_core", "lightning_durable", "accelerate_durable")

if sys.version_info >= (3, 11):
    import tomllib
else:  # the layout is what matters here, and 3.10 has no reader for it
    pytest.skip("reads pyproject.toml with tomllib", allow_module_level=True)

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def name_of(requirement: str) -> str:
    return re.split(r"[<>=!~\[ ;]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def pins() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    return {name_of(line): line for line in lines}


def test_every_requirement_is_pinned() -> None:
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    wanted = [name_of(requirement) for group in groups for requirement in group]
    assert [name for name in wanted if name not in pins()] == []


def test_pins_are_exact_names_and_versions_from_the_index() -> None:
    assert [line for line in pins().values() if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []


def test_the_wheel_holds_the_three_packages_and_nothing_else(tmp_path: Path) -> None:
    done = python("-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT))
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == set(PACKAGES)
    for package in PACKAGES:
        assert f"{package}/__init__.py" in names
        assert f"{package}/py.typed" in names
    sources = {
        str(path.relative_to(base)) for base in (ROOT / "core", ROOT / "src") for path in base.rglob("*.py")
    }
    assert sources == {name for name in names if name.endswith(".py")}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_a_missing_framework_is_an_import_error_that_says_what_to_install() -> None:
    done = python("-c", "import sys; sys.modules['lightning'] = None; import lightning_durable")
    assert "ImportError" in done.stderr
    assert "pip install 'durable-training[lightning]'" in done.stderr


def test_version_license_and_changelog_agree() -> None:
    import durable_core

    assert durable_core.__version__ == PROJECT["version"]
    assert f"## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text()
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()


def test_the_readme_names_commands_that_exist() -> None:
    done = python("-m", "durable_core.cli", "--help")
    named = set(re.findall(r"`durable (\w+)", (ROOT / "README.md").read_text()))
    assert named
    assert [command for command in named if not re.search(rf"^\s*{command}\b", done.stdout, re.M)] == []


def test_the_plain_loop_of_the_readme_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    (loop,) = [block.replace("10_000", "100") for block in blocks if "DurableSession" in block]
    given = (
        "import torch\n"
        "from torch.utils.data import TensorDataset\n"
        "model = torch.nn.Linear(4, 1)\n"
        "opt = torch.optim.AdamW(model.parameters())\n"
        "class Rows(TensorDataset):\n"
        "    def __getitem__(self, index): return super().__getitem__(index)[0]\n"
        "dataset = Rows(torch.randn(96, 4))\n"
    )
    script, output = tmp_path / "loop.py", tmp_path / "output"
    script.write_text(f"import os; os.chdir({str(tmp_path)!r})\n{given}{loop}print('restored', run.restored)")
    for _ in range(2):  # the second start resumes
        assert life(tmp_path, as_script(script)) == 0, output.read_text()
    first, second = re.findall("restored (.*)", output.read_text())
    assert first == "None" != second


def test_make_targets_that_the_documents_name_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for document in ("README.md", "CONTRIBUTING.md", ".ci/run"):
        for target in re.findall(r"\bmake ([a-z-]+)", (ROOT / document).read_text()):
            assert re.search(rf"^{target}:", makefile, re.M), f"{document} names make {target}"
