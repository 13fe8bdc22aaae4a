"""A fork, killed between its records: it can be begun again, and never starts over unasked."""

from __future__ import annotations

from pathlib import Path

import pytest
from attack_runs import start, state_at

from durable_core import errors
from durable_core.session import Run, Settings
from durable_core.spec import ModelSpec, RunSpec

FORK = Settings(resume="fork")


def test_a_fork_from_outside_killed_before_its_first_commit_begins_again(tmp_path: Path) -> None:
    """Its generation had started from nothing, and nothing could follow it: the run was lost."""
    start(tmp_path).close()
    Run.open(tmp_path, settings=FORK, external="other.ckpt").close()  # killed here, in effect
    again = start(tmp_path, resume="fork", external="other.ckpt")
    assert again.fresh
    again.close()
    later = Run.open(tmp_path, settings=FORK, external="other.ckpt")
    assert later.restored_from == (1, 0)
    later.close()


def test_without_its_origin_such_a_fork_does_not_start_from_nothing(tmp_path: Path) -> None:
    start(tmp_path).close()
    Run.open(tmp_path, settings=FORK, external="other.ckpt").close()
    for settings in (Settings(), FORK):
        with pytest.raises(errors.UsageError, match=r"forked from other\.ckpt"):
            Run.open(tmp_path, settings=settings)


def test_a_run_that_never_committed_can_be_forked(tmp_path: Path) -> None:
    """The first start dies (out of memory, say), the script is changed, and the way out named must be one."""
    Run.open(tmp_path, spec=RunSpec(model=ModelSpec(cls="A"))).close()
    with pytest.raises(errors.SpecMismatchError, match="fork"):
        Run.open(tmp_path, spec=RunSpec(model=ModelSpec(cls="B")))
    fork = start(tmp_path, resume="fork", spec=RunSpec(model=ModelSpec(cls="B")))
    assert fork.fresh
    fork.save(state_at(1), {}, step=1, wait=True)
    fork.close()
    again = Run.open(tmp_path, spec=RunSpec(model=ModelSpec(cls="B")))
    assert again.restored_from == (1, 1)
    again.close()
