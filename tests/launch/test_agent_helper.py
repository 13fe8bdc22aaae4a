"""The controller beside the agent: started again when it dies, and not when another has its office."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from controller_world import FakeClock

from durable_core.launch.agent.house import Helper
from tests.launch.launching import gone, until


@pytest.mark.parametrize(("status", "again"), [(1, True), (0, True), (76, False)])
def test_a_helper_that_ended_is_started_again_unless_it_was_fenced(
    tmp_path: Path, status: int, again: bool
) -> None:
    clock, starts = FakeClock(), tmp_path / "starts"
    said: list[str] = []
    code = f"import sys; open({str(starts)!r}, 'a').write('x'); sys.exit({status})"
    helper = Helper(lambda: (sys.executable, "-S", "-c", code), clock, said.append)

    def started() -> int:
        return len(starts.read_text()) if starts.exists() else 0

    def over() -> bool:
        return all(gone(pid) for pid in helper.pids)

    helper.want(True)
    helper.tend()
    for _ in range(3):
        until(lambda: started() > 0 and over())
        clock.sleep(Helper.AGAIN_S)
        helper.tend()
    until(over)
    assert started() == (4 if again else 1)
    assert len(said) == (3 if again else 1)
    helper.want(True)  # the next attempt
    helper.tend()
    until(over)
    assert started() == (4 if again else 2)
    helper.want(False)
