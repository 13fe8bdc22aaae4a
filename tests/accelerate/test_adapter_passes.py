"""Which epoch a pass is, and which loader trains: decisions, as tables."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from accelerate_durable.choosing import place_of, remainder
from accelerate_durable.passes import BEYOND, TOLD, Loop, Pass, check_not_beyond, decide
from durable_core.errors import UnsupportedError, UsageError


def loop() -> Loop:
    project = SimpleNamespace(iteration=0)
    return Loop(SimpleNamespace(step=0, project_configuration=project))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("epoch", "under_way", "training", "ended", "verdict"),
    [
        (0, 0, False, False, Pass.TRAINS),
        (0, 2, False, False, Pass.OVER),
        (1, 2, False, False, Pass.OVER),
        (2, 2, False, False, Pass.TRAINS),
        (5, 2, False, False, Pass.TRAINS),  # the script begins further on: the run goes on where it stands
        (0, 2, True, False, Pass.TRAINS),  # from the first pass that trained on the data counts
        (2, 2, False, True, Pass.ENDED),
        (2, 2, True, True, Pass.ENDED),
    ],
)
def test_what_a_pass_does(epoch: int, under_way: int, training: bool, ended: bool, verdict: Pass) -> None:
    assert decide(epoch=epoch, under_way=under_way, training=training, ended=ended) is verdict


def verdicts(mine: Loop, under_way: int, passes: int, told: list[int] | None = None) -> list[Pass]:
    """Of a process whose data stands at the beginning of epoch ``under_way``."""
    found = []
    for number in range(passes):
        if told is not None:
            mine.tell(told[number])
        epoch = mine.next_epoch()
        verdict = decide(epoch=epoch, under_way=under_way, training=mine.training, ended=False)
        mine.begin(verdict, under_way)  # in an epoch that the data counts
        found.append(verdict)
        under_way += verdict is Pass.TRAINS
    return found


def test_passes_are_counted_from_the_first_epoch() -> None:
    assert verdicts(loop(), 2, 4) == [Pass.OVER, Pass.OVER, Pass.TRAINS, Pass.TRAINS]


def test_a_checkpoint_that_was_asked_for_says_where_the_script_begins() -> None:
    mine = loop()
    mine.first = 2
    assert verdicts(mine, 2, 2) == [Pass.TRAINS, Pass.TRAINS]


def test_set_epoch_says_where_the_script_is() -> None:
    assert verdicts(loop(), 2, 2, told=[2, 3]) == [Pass.TRAINS, Pass.TRAINS]


@pytest.mark.parametrize("first_name", [0, 1, 7])
def test_epochs_may_have_other_names_in_the_script(first_name: int) -> None:
    """``for epoch in range(1, n + 1): loader.set_epoch(epoch)``: the same name is the same epoch later."""
    names = [first_name + k for k in range(5)]
    one = loop()
    assert verdicts(one, 0, 3, names) == [Pass.TRAINS] * 3
    restarted = loop()
    restarted.load_state_dict(one.state_dict())
    assert verdicts(restarted, 3, 5, names) == [Pass.OVER] * 3 + [Pass.TRAINS] * 2
    assert restarted.epoch == 4


def test_the_loop_puts_back_what_accelerate_counts() -> None:
    one = loop()
    one._accelerator.step, one._accelerator.project_configuration.iteration, one.origin = 3, 2, "/there"
    other: Any = loop()
    other.load_state_dict(one.state_dict())
    assert (other._accelerator.step, other._accelerator.project_configuration.iteration) == (3, 2)
    assert other.state_dict() == one.state_dict()


def test_a_script_that_asks_for_ever_is_told_early_and_stopped() -> None:
    said = [check_not_beyond(empty, "the run has ended at step 7") for empty in range(-2, BEYOND + 1)]
    assert [empty for empty, sentence in enumerate(said, -2) if sentence] == [TOLD]
    assert "register_for_checkpointing" in said[TOLD + 2] and "max_steps" in said[TOLD + 2]
    with pytest.raises(UsageError, match="ended at step 7") as caught:
        check_not_beyond(BEYOND + 1, "the run has ended at step 7")
    assert "register_for_checkpointing" in caught.value.hint and "max_steps" in caught.value.hint


@pytest.mark.parametrize(
    ("shuffling", "given", "place"),
    [
        ((), None, None),
        ((False,), None, 0),
        ((False, True), None, 1),
        ((False, False), None, 0),
        ((True, True), 1, 1),
        ((True, False), 1, 1),
    ],
)
def test_which_loader_trains(shuffling: tuple[bool, ...], given: int | None, place: int | None) -> None:
    assert place_of(shuffling, given) == place


def test_two_that_shuffle_need_the_option() -> None:
    with pytest.raises(UnsupportedError, match="0, 2") as caught:
        place_of((True, False, True), None)
    assert "train_loader=0" in caught.value.hint


def test_the_option_names_a_loader_that_exists() -> None:
    with pytest.raises(UsageError, match="train_loader=2"):
        place_of((True, False), 2)


@pytest.mark.parametrize(
    ("dropped", "even", "replicas", "what"),
    [
        (True, True, 2, "drop"),
        (True, False, 1, "drop"),
        (False, True, 1, "short"),
        (False, True, 2, "wrap"),
        (False, False, 2, "short"),
    ],
)
def test_the_remainder_is_accelerates(dropped: bool, even: bool, replicas: int, what: str) -> None:
    assert remainder(dropped=dropped, even=even, replicas=replicas) == what
