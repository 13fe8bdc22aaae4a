"""Accelerate's own tests of its checkpoints, with our ``Accelerator`` in place of theirs.

The source distribution of the installed Accelerate is fetched with pip and unpacked into a temporary
directory; its tests run as they are. Every ``Accelerator`` that they make gets a root of its own. Prints a
JSON document; exits 1 when a test failed that ``EXPECTED`` does not explain, or passed though it is in there.

    python tools/upstream.py [--sdist FILE] [--keep DIR] [-k EXPRESSION]
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import importlib.metadata
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[1]
REPORT, ROOTS = "UPSTREAM_REPORT", "UPSTREAM_ROOTS"  # told to the process that runs the tests

#: What is run: a file of the source distribution, and which of its tests are about checkpoints.
TESTS = {
    "tests/test_state_checkpointing.py": "",
    "tests/test_accelerator.py": "save or load or hook or are_referenced or pickle",
}

#: Tests that cannot pass, and why that is meant so. ``fnmatch`` patterns of their names.
EXPECTED: dict[str, str] = {}

#: What is not run at all, and why.
LEFT_OUT = {
    "src/accelerate/test_utils/scripts/external_deps/test_checkpointing.py": "downloads bert-base-cased and "
    "glue/mrpc at run time; tests/accelerate/test_like_upstream.py does the same with a small model",
}


@dataclass
class Outcome:
    """``failed``: what ``EXPECTED`` does not explain. ``exceptions``: test -> why it is meant to fail."""

    version: str
    run: int = 0
    passed: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    exceptions: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=lambda: dict(LEFT_OUT))
    not_needed: list[str] = field(default_factory=list)  # of EXPECTED: nothing of that name failed

    @classmethod
    def of(cls, version: str, reports: Mapping[str, list[str]], expected: Mapping[str, str]) -> Outcome:
        """``reports``: test -> what became of it (``passed``, ``failed``, ``skipped``) and the reason."""
        outcome, needed = cls(version), set()
        for test, (what, detail) in sorted(reports.items()):
            if what == "skipped":
                outcome.skipped[test] = detail
                continue
            outcome.run += 1
            if what == "passed":
                outcome.passed += 1
                continue
            pattern = next((each for each in expected if fnmatch.fnmatchcase(test, each)), None)
            if pattern is None:
                outcome.failed[test] = detail
            else:
                outcome.exceptions[test] = expected[pattern]
                needed.add(pattern)
        outcome.not_needed = sorted(set(expected) - needed)
        return outcome

    @property
    def good(self) -> bool:
        return self.run > 0 and not self.failed and not self.not_needed

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "good": self.good}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sdist", type=Path, help="use this one instead of fetching it")
    parser.add_argument("--keep", type=Path, help="work in this directory and leave everything there")
    parser.add_argument(
        "-k", default="", help="only tests that match this pytest expression, of the chosen ones"
    )
    asked = parser.parse_args(arguments)
    version = importlib.metadata.version("accelerate")
    with _place(asked.keep) as place:
        source = unpack(asked.sdist or fetch(version, place), place)
        paths = [str(HOME / "tools"), *helpers(place)]
        reports: dict[str, list[str]] = {}
        for file, chosen in TESTS.items():
            expression = " and ".join(f"({each})" for each in (chosen, asked.k) if each)
            reports |= run(source / file, expression, place, paths)
    outcome = Outcome.of(version, reports, {} if asked.k else EXPECTED)
    sys.stdout.write(json.dumps(outcome.to_json(), indent=1) + "\n")
    return 0 if outcome.good else 1


@contextlib.contextmanager
def _place(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="upstream-") as made:
        yield Path(made)


def fetch(version: str, place: Path) -> Path:
    """The source distribution. Raises ``CalledProcessError`` when pip cannot get it."""
    _pip(
        "download",
        "--no-deps",
        "--no-binary",
        "accelerate",
        f"accelerate=={version}",
        "-d",
        str(place / "sdist"),
    )
    return next((place / "sdist").glob("*.tar.gz"))


def unpack(sdist: Path, place: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(place / "source", filter="data")
    return next((place / "source").iterdir())


def helpers(place: Path) -> list[str]:
    """Where to find what the tests import and this project does not need."""
    if importlib.util.find_spec("parameterized") is not None:
        return []
    _pip("install", "--no-deps", "--target", str(place / "helpers"), "parameterized")
    return [str(place / "helpers")]


def _pip(*arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments],
        check=True, stdout=sys.stderr,
    )  # fmt: skip


def run(file: Path, expression: str, place: Path, paths: list[str]) -> dict[str, list[str]]:
    """What became of each test in ``file``, by its name."""
    report = place / f"{file.stem}.json"
    report.unlink(missing_ok=True)
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
        "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true",
        REPORT: str(report), ROOTS: str(place / "roots"),
    }  # fmt: skip
    command = [sys.executable, "-m", "pytest", "-p", "upstream", "-p", "no:cacheprovider", "-q", "--tb=short"]
    command += ["--timeout=300", "--rootdir", str(place), "-k", expression, str(file)]
    subprocess.run(command, check=False, cwd=place, env=environ, stdout=sys.stderr)
    if not report.exists():
        return {file.stem: ["failed", "pytest did not come to its end: see what it printed"]}
    found: dict[str, list[str]] = json.loads(report.read_text())
    return found


# --- within pytest: this file is a plugin ---------------------------------------------------------------

_reports: dict[str, list[str]] = {}


def pytest_configure(config: Any) -> None:
    """Ours in place of theirs, each with a root of its own, before any test is imported."""
    if ROOTS not in os.environ:
        return
    import accelerate
    import accelerate.test_utils

    from accelerate_durable import Accelerator as Ours
    from accelerate_durable import swap

    numbers = itertools.count()

    class Accelerator(Ours):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            root = Path(os.environ[ROOTS]) / f"{os.getpid()}-{next(numbers)}"
            super().__init__(*args, durable=root, **kwargs)

    Accelerator.__qualname__, globals()["Accelerator"] = "Accelerator", Accelerator  # where pickle looks
    others = [module for name, module in sys.modules.items() if not name.startswith("accelerate_durable")]
    swap.replace(accelerate.Accelerator, Accelerator, others)


def pytest_runtest_logreport(report: Any) -> None:
    test = report.nodeid.rpartition("::")[2]
    owner = report.nodeid.split("::")[-2]
    if report.when == "call" or report.outcome != "passed":
        last = str(report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr or "")
        _reports[f"{owner}::{test}"] = [report.outcome, last.strip().splitlines()[-1][:300] if last else ""]


def pytest_sessionfinish(session: Any) -> None:
    if REPORT in os.environ:
        Path(os.environ[REPORT]).write_text(json.dumps(_reports))


if __name__ == "__main__":
    sys.exit(main())
