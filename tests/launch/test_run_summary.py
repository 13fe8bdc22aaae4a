"""The post-run manifest: what it says, and that it is there once, whoever is killed in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from durable_core.clock import SystemClock
from durable_core.commit import ending
from durable_core.commit.claim import claim_generation
from durable_core.commit.journal import replay
from durable_core.commit.state import CheckpointInfo, Checkpoints, Failure, Life, RunState, Terminal
from durable_core.commit.vector import Vector
from durable_core.engine.inspect import open_tier
from durable_core.engine.performer import Performer
from durable_core.errors import DigestMismatchError
from durable_core.format import layout
from durable_core.launch import ending as closing
from durable_core.tier.posix import PosixTier
from durable_core.types import CheckpointState, Token
from tests.launch.launching import new_run

CLOCK = SystemClock()


class Dies(Exception):
    """Stands for SIGKILL."""


@pytest.fixture
def tier(tmp_path: Path) -> PosixTier:
    tier = PosixTier(new_run(tmp_path / "root"))
    performer = Performer(tier, CLOCK)
    claimed = performer.run(claim_generation(performer.run(replay()), launch_id="L", members=("dp0",)))
    performer.run(ending.succeed(claimed.view, Token(1, "L"), c=None, target=None))
    return tier


class Killed:
    """A tier behind which the process is killed at one write: before it, or after."""

    def __init__(self, tier: PosixTier, at: int, after: bool) -> None:
        self._tier, self._left, self._after = tier, at, after

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._left -= 1
        if not self._left and not self._after:
            raise Dies
        done = self._tier.put_if_absent(key, data)
        if not self._left:
            raise Dies
        return bool(done)

    def __getattr__(self, name: str) -> object:
        return getattr(self._tier, name)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3])  # the object, the controller's epoch, the record
def test_killed_at_any_write_the_next_one_completes_it(tier: PosixTier, at: int, after: bool) -> None:
    with pytest.raises(Dies):
        closing.complete(Killed(tier, at, after), CLOCK, "A")  # type: ignore[arg-type]
    made = closing.complete(tier, CLOCK, "B")
    assert made is not None and closing.complete(tier, CLOCK, "C") == made
    reader = open_tier(tier)
    kinds = [entry.record.kind.value for entry in reader.entries() if not entry.void]
    assert kinds.count("run.summarized") == 1
    assert closing.read(reader)["outcome"] == "succeeded"  # type: ignore[index]


def test_what_was_changed_since_is_not_believed(tier: PosixTier) -> None:
    made = closing.complete(tier, CLOCK, "A")
    assert made is not None
    tier.put(made.key, b'{"outcome":"failed"}')
    with pytest.raises(DigestMismatchError):
        closing.read(open_tier(tier))


def ended(**changes: object) -> RunState:
    rows = (
        CheckpointInfo(0, 0, 1, None, "0" * 8, CheckpointState.RETIRED, bytes_written=5, seq=2, time=110.0),
        CheckpointInfo(1, 9, 1, 0, "1" * 8, CheckpointState.COMMITTED, bytes_written=7, seq=3, time=130.0),
        CheckpointInfo(2, 12, 2, 1, "2" * 8, CheckpointState.ABORTED, time=999.0),
    )
    checkpoints = Checkpoints()
    for row in rows:
        checkpoints = checkpoints.added(row)
    failure = Failure(
        4, 1, "f" * 32, {"class": "F1", "signature": "s", "step": 9, "evidence": {"long": 1}}, 140.0
    )
    lives = (Life(1, 100.0, members=("dp0", "dp1")), Life(2, 200.0, 12, True, ("dp0", "dp1")))
    state = {
        "run_id": "r", "generation": 2, "checkpoints": checkpoints, "head": 1,
        "failures": Vector().append(failure), "lives": Vector().append(lives[0]).append(lives[1]),
        "terminal": Terminal("succeeded", 9, 1, {"c": 1, "target": None}),
    }  # fmt: skip
    return RunState(**{**state, **changes})  # type: ignore[arg-type]


def test_it_counts_devices_from_each_claim_to_its_last_sign() -> None:
    assert closing.device_seconds(ended(), 250.0) == 2 * (140 - 100) + 2 * (250 - 200)


def test_it_counts_no_device_while_nobody_trained() -> None:
    late = Terminal("cancelled", 9, None, {"principal": "operator", "reason": ""})
    assert closing.device_seconds(ended(terminal=late), 9e6) == 2 * (140 - 100)
    extended = ended(
        lives=Vector().append(Life(1, 100.0, None, True, ("dp0",))).append(Life(2, 200.0, 12, True))
    )
    assert closing.device_seconds(extended, 9e6) == 140 - 100, "not until the end of what it was extended to"


def test_it_says_what_is_left_and_what_went_wrong() -> None:
    found = closing.document(ended(), closing.Times(90.0, 250.0), {"c": 1}, {"audited": False})
    assert [each["c"] for each in found["retained"]] == [1]
    assert (found["cost"]["wall_s"], found["cost"]["up_s"]) == (160.0, 40.0 + 50.0)
    assert found["cost"]["bytes_written"] == 12
    assert found["incidents"] == [
        {"seq": 4, "generation": 1, "time": 140.0, "class": "F1", "signature": "s", "step": 9}
    ]
    assert found["generations"][1]["drained_at"] == 12


def test_its_key_is_its_digest() -> None:
    assert layout.summary_key("sha256:" + "a" * 64) == f"summaries/{'a' * 64}.json"
    assert not layout.key_fault(layout.summary_key("sha256:" + "a" * 64))
