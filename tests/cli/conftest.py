"""One small real run, trained once and copied for every test that may touch it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cli_runs import Durable, Outcome, train

from durable_core.cli.app import run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("trained") / "run"
    train(root)
    return root


@pytest.fixture
def root(trained: Path, tmp_path: Path) -> Path:
    """A copy of the trained run, to be damaged at will."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def durable(capsys: pytest.CaptureFixture[str]) -> Durable:
    """The command line, in this process."""

    def call(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Outcome(code, captured.out, captured.err)

    return call
