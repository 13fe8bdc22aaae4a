"""A short data campaign in the suite: one kill schedule a pipeline, and one training killed for real."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torture.data_lives import History, refer, suffer
from tests.torture.data_runs import Tally, harass
from tests.torture.pipelines import NAMED, PIPELINES, Pipeline


@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda pipeline: pipeline.name)
@pytest.mark.filterwarnings("ignore")
def test_every_batch_of_every_life_is_the_uninterrupted_runs(pipeline: Pipeline) -> None:
    history = suffer(pipeline, refer(pipeline), seed=1)
    assert not history.faults
    assert history.lives > 1 and history.undone


@pytest.mark.filterwarnings("ignore")
def test_another_seed_or_a_lost_batch_would_be_noticed() -> None:
    pipeline = NAMED["mixture-quota"]
    reference = refer(pipeline)
    reference.contents.insert(3, reference.contents.pop(4))
    assert suffer(pipeline, reference, seed=1).faults
    reference = refer(pipeline)
    reference.ids[-1] = reference.ids[0]
    found: History = suffer(pipeline, reference, seed=1)
    assert found.faults == ["the committed ledger is not that of the uninterrupted run"]


def test_a_packed_mixture_is_killed_for_real(tmp_path: Path) -> None:
    tally = Tally()
    harass(NAMED["packed-mixture"], tmp_path, kills=2, seed=1, tally=tally)
    assert not tally.faults
    assert tally.kills.total() == 2 and tally.samples == 18 * 12
