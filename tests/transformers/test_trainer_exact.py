"""Every way in which a plain Trainer loses a run after SIGKILL: with the callback it is the same run."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainer_subject import Case, References, check_same


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("workers", [0, 2])
def test_killed_at_a_step_it_is_the_same_run(
    references: References, tmp_path: Path, workers: int, accumulate: int
) -> None:
    case = Case(workers=workers, accumulate=accumulate)
    check_same(references, case, tmp_path, [("batch", 15)])
