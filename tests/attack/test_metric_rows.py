"""Whatever a loop reports as its loss, saving and the heartbeat go on."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from attack_runs import start, state_at

from durable_core import errors
from durable_core.engine import heartbeat
from durable_core.session import Run, Settings
from durable_core.tier.posix import PosixTier


@pytest.mark.parametrize("loss", [math.nan, math.inf, torch.tensor(0.5), np.float32(0.5), np.float64(0.5), 1])
def test_a_loss_of_any_kind_is_saved_and_beaten(tmp_path: Path, loss: float) -> None:
    run = start(tmp_path)
    run.note_metrics(1, loss=loss)
    assert run._heartbeat is not None
    run._heartbeat.beat()  # on the background thread an error would have ended the heartbeat
    assert run.save(state_at(1), {}, step=1, wait=True)
    owner = heartbeat.read(PosixTier(tmp_path))
    assert owner is not None and len(owner.rows) == 1
    hint = (tmp_path / "hints/owner.json").read_bytes()
    run.close()
    (tmp_path / "hints/owner.json").write_bytes(hint)
    again = Run.open(tmp_path, settings=Settings(takeover=True))
    (row,) = again.load().metrics
    assert math.isnan(row["loss"]) if math.isnan(float(loss)) else row["loss"] == float(loss)
    again.confirm()
    again.note_metrics(1, loss=loss)
    assert again.replayed == 1
    again.close()


@pytest.mark.parametrize("loss", ["low", torch.ones(2), object()])
def test_what_is_no_number_is_refused_by_name(tmp_path: Path, loss: object) -> None:
    run = start(tmp_path)
    with pytest.raises(errors.UsageError, match="grad_norm is not a number"):
        run.note_metrics(1, grad_norm=loss)  # type: ignore[arg-type]
    run.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": [{"step": 1, "loss": 0.5, "throughput": 3}]},  # of another version
        {"rows": [7]},
        {"rows": [{"loss": 0.5}]},
        {"rows": [{"step": 1, "loss": {"$unknown": 1}}]},
        {"rows": None},
        {"time": "yesterday", "host": "elsewhere"},
        {"pid": "x"},
    ],
    ids=repr,
)
def test_a_hint_of_any_form_never_keeps_a_run_from_starting(tmp_path: Path, changes: dict) -> None:  # type: ignore[type-arg]
    run = start(tmp_path)
    path = tmp_path / "hints/owner.json"
    hint = json.loads(path.read_bytes())
    run.close()
    path.write_text(json.dumps({**hint, "pid": 4194304, "started": 1, **changes}))
    start(tmp_path).close()


def test_a_root_that_cannot_be_read_at_the_end_does_not_undo_a_clean_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(tmp_path)

    def unreadable(*_: object, **__: object) -> bytes:
        raise errors.TierUnavailable("I/O error")

    monkeypatch.setattr(PosixTier, "get", unreadable)
    run.close()
