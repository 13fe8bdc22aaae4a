"""Storage that fails, and owners that come and go."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning_check import References
from lightning_subject import Case, at_line, fit, lines

from durable_core.errors import RunBusy, TierFull
from durable_core.tier.posix import PosixTier
from tests.lives import ended, life, start


def full_disk(fails: Callable[[int], bool]) -> None:
    """From now on in this process the ``n``-th shard (from 0) fails where ``fails(n)``."""
    real, count = PosixTier.write_object, [0]

    def write(self: PosixTier, key: str, parts: Any) -> int:
        if "shard-" in key:
            count[0] += 1
            if fails(count[0] - 1):
                raise TierFull("no space left on device")
        return real(self, key, parts)

    PosixTier.write_object = write  # type: ignore[method-assign]


def told(policy: str) -> Case:
    from durable_core.spec import CheckpointPolicy, RunSpec

    spec = RunSpec(seed=3, checkpoint=CheckpointPolicy(rpo_steps=12))
    return Case(every=5, durable={"on_rpo_breach": policy, "spec": spec})


@pytest.mark.parametrize("first", [0, 2])
def test_storage_that_stays_full_never_stops_training(
    first: int, references: References, tmp_path: Path
) -> None:
    """Also when not even the initial state could be stored. The end says what is durable."""

    def action() -> None:
        full_disk(lambda n: n >= first)
        fit(Case(every=5), tmp_path, log="one")

    assert life(tmp_path, action) == 0
    assert lines(tmp_path, log="one") == references.of(Case(every=5))[0]
    output = (tmp_path / "output").read_text()
    assert "the fit ended at step 48" in output and "no space left" in output
    assert ("the initial state could not be made durable" in output) == (first == 0)
    # space returns: the same script makes good what was not durable
    assert life(tmp_path, lambda: fit(Case(every=5), tmp_path, log="two")) == 0
    assert lines(tmp_path, log="two")[-1] == lines(tmp_path, log="one")[-1]


def test_a_breached_recovery_point_aborts_when_told_to(tmp_path: Path) -> None:
    def action() -> None:
        full_disk(lambda n: n >= 2)
        fit(told("abort"), tmp_path, log="one")

    assert life(tmp_path, action) == 1
    assert "RpoBreachedError" in (tmp_path / "output").read_text()
    assert 15 <= len(lines(tmp_path, "batch", log="one")) <= 20


def test_a_breached_recovery_point_pauses_when_told_to(references: References, tmp_path: Path) -> None:
    def action() -> None:
        full_disk(lambda n: 2 <= n < 5)
        fit(told("pause"), tmp_path, log="one")

    assert life(tmp_path, action) == 0, (tmp_path / "output").read_text()[-3000:]
    assert lines(tmp_path, log="one") == references.of(Case(every=5))[0]


def test_a_stopped_owner_that_wakes_up_is_fenced_and_exits_with_76(
    references: References, tmp_path: Path
) -> None:
    def stop() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    case = Case(every=2)
    old = start(tmp_path, lambda: fit(case, tmp_path, at_line("batch", 12, stop), "old"))
    os.waitpid(old, os.WUNTRACED)

    def refused() -> None:
        with pytest.raises(RunBusy):
            fit(case, tmp_path, log="refused")

    assert life(tmp_path, refused) == 0, (tmp_path / "output").read_text()[-3000:]
    taking = Case(every=2, durable={"takeover": True})
    assert life(tmp_path, lambda: fit(taking, tmp_path, log="new")) == 0
    os.kill(old, signal.SIGCONT)
    assert ended(old) == 76
    assert lines(tmp_path, log="new")[-1] == references.of(case)[0][-1]
    assert lines(tmp_path, "end", log="old") == []
    again = life(tmp_path, lambda: fit(case, tmp_path, log="again"))
    assert again == 0 and lines(tmp_path, log="again")[-1] == references.of(case)[0][-1]
