"""A session judges the numbers that it is given: events, records, marks, the end, and the way back."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from session_helpers import start, state_at

from durable_core import DurableSession, Integrity, Retention, events
from durable_core.commit import trust
from durable_core.engine.inspect import open_run
from durable_core.errors import NumericFault, UsageError
from durable_core.session import Run
from durable_core.session.integrity import READ_EVERY

STOP = Integrity(on_numeric="stop")


def note(run: Run, step: int, loss: float = 1.0, **more: Any) -> None:
    """One boundary of a run whose parameters nobody compares, saved and committed."""
    run.note_metrics(step, loss=loss, **more)
    run.boundary(step)
    run.integrity.examine(step, lambda: ())
    run.save(state_at(step), {}, step=step, wait=True)


def opened(root: Path, **settings: Any) -> tuple[Run, list[events.Event]]:
    run = start(root, takeover=True, **settings)
    seen: list[events.Event] = []
    run.board.listeners.append(seen.append)
    return run, seen


def known_good(root: Path) -> list[int]:
    return [info.step for info in open_run(root).state.checkpoints.values() if info.known_good]


def failures(root: Path) -> list[dict[str, Any]]:
    return [dict(line.payload) for line in open_run(root).state.failures]


def test_what_is_found_is_an_event_and_a_record_and_training_goes_on(tmp_path: Path) -> None:
    run, seen = opened(tmp_path)
    for step in range(1, 9):
        note(run, step, loss=math.nan if step == 5 else 1.0)
    run.close()
    (event,) = (event for event in seen if isinstance(event, events.NumericFaultFound))
    assert (event.step, event.onset, event.failure, event.action) == (5, 4, "F12", "continue")
    (line,) = failures(tmp_path)
    assert (line["class"], line["signature"], line["step"]) == ("F12", "non-finite:loss", 4)
    evidence = line["evidence"]
    assert (evidence["detector"], evidence["found"], evidence["values"]) == ("non-finite", 5, {"loss": "nan"})


def test_by_policy_it_ends_the_process_and_nothing_more_is_saved(tmp_path: Path) -> None:
    run, _ = opened(tmp_path, integrity=STOP)
    for step in range(1, 5):
        note(run, step)
    with pytest.raises(NumericFault, match="before step 4") as caught:
        note(run, 5, loss=math.inf)
    assert (caught.value.failure, caught.value.onset, caught.value.found) == ("F12", 4, 5)
    assert caught.value.exit_code == 77
    with pytest.raises(NumericFault):
        run.save(state_at(5), {}, step=5, wait=True)
    run.close()
    assert failures(tmp_path)[0]["evidence"]["action"] == "stop"
    assert open_run(tmp_path).state.head_step == 4


def test_the_launcher_has_the_last_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DURABLE_ON_NUMERIC", "stop")
    run, _ = opened(tmp_path)
    with pytest.raises(NumericFault):
        note(run, 1, loss=math.nan)
    run.close()


def test_the_next_start_goes_back_before_the_onset_and_stays_on_that_history(tmp_path: Path) -> None:
    run, _ = opened(tmp_path, integrity=STOP, retention=Retention(keep_last=50))
    for step in range(1, 8):
        note(run, step)
    assert known_good(tmp_path) == [0, 1, 2, 3, 4], "three steps after it are judged for each"
    with pytest.raises(NumericFault):
        note(run, 8, loss=math.nan)
    run.close()
    back, _ = opened(tmp_path, integrity=STOP, retention=Retention(keep_last=50))
    assert back.restored_from is not None and back.restored_from[1] == 4, "known good, and before step 7"
    back.close()
    again, _ = opened(tmp_path, integrity=STOP)  # it died before it committed anything
    assert again.restored_from == back.restored_from
    note(again, 5)
    again.close()
    last, _ = opened(tmp_path)
    assert last.restored_from is not None and last.restored_from[1] == 5
    assert last.restored_from[0] == 8, "not c5, which was gone back from"
    last.close()


def test_a_launcher_names_the_onset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = opened(tmp_path)
    for step in range(1, 4):
        note(run, step, loss=None)
    run.close()
    monkeypatch.setenv("DURABLE_RESTART_REASON", "F13")
    monkeypatch.setenv("DURABLE_RESTART_ONSET", "2")
    back, _ = opened(tmp_path)
    assert back.restored_from is not None and back.restored_from[1] == 1
    (warning,) = back.warnings
    assert "no checkpoint before step 2 is known good" in warning
    back.close()
    monkeypatch.setenv("DURABLE_RESTART_REASON", "F1")
    other, _ = opened(tmp_path)
    assert other.restored_from is not None and other.restored_from[1] == 1, (
        "the head is where it went back to"
    )
    other.close()


def test_a_mark_says_who_judged_what(tmp_path: Path) -> None:
    run, seen = opened(tmp_path)
    for step in range(1, 5):
        note(run, step)
    run.close()
    info = next(i for i in open_run(tmp_path).state.checkpoints.values() if i.step == 1)
    assert info.known_good and info.evidence["judged_through"] == 4
    judges = {each["name"]: each for each in info.evidence["detectors"]}
    assert set(judges) == {"non-finite", "spike:loss", "spike:grad_norm"}
    assert judges["spike:loss"] == {"name": "spike:loss", "version": 1, "period": 1, "window": 3}
    marked = [event.step for event in seen if isinstance(event, events.KnownGoodMarked)]
    assert marked == [0, 1]


def test_nothing_is_known_good_that_nobody_judged(tmp_path: Path) -> None:
    run, _ = opened(tmp_path)
    for step in range(1, 8):
        note(run, step, loss=None)
    run.close()
    assert known_good(tmp_path) == []


def test_steps_without_an_update_vindicate_nothing(tmp_path: Path) -> None:
    run, _ = opened(tmp_path)
    for step in range(1, 8):
        note(run, step, updated=False)
    run.close()
    assert known_good(tmp_path) == []


def test_while_trouble_stands_nothing_becomes_known_good(tmp_path: Path) -> None:
    run, _ = opened(tmp_path, retention=Retention(keep_last=50))
    for step in range(1, 12):
        note(run, step, loss=math.nan if 5 <= step <= 7 else 1.0)
    run.close()
    assert known_good(tmp_path) == [0, 1, 7, 8], "steps 8 to 11 speak for them again"


def test_retention_is_as_long_as_the_slowest_detector(tmp_path: Path) -> None:
    """SDC-06, with one that looks every 20 steps where three checkpoints are kept."""
    settings = Integrity(recompute_every=20)
    run, _ = opened(tmp_path, integrity=settings)
    for step in range(1, 46):
        if run.integrity.recomputes(step):
            run.integrity.recomputed(step, "same", "same")
        note(run, step)
        info = next(i for i in run._active().committer.writer.view.state.checkpoints.values() if i.usable)
        assert info.step <= step - step % 20, "every onset is after the last check that passed"
    run.close()
    assert known_good(tmp_path)[-1] == 40 and 20 in known_good(tmp_path)


def test_a_step_that_was_to_be_computed_twice_and_was_not_is_told(tmp_path: Path) -> None:
    run, _ = opened(tmp_path, integrity=Integrity(recompute_every=2))
    note(run, 1)
    with pytest.raises(UsageError, match="step 2 was computed once"):
        note(run, 2)
    run.close()


def test_a_finding_that_could_not_be_written_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = opened(tmp_path)
    note(run, 1)
    marker = run._active().committer._marker
    told = []

    def unreachable(view: Any) -> Any:
        told.append(view)
        monkeypatch.undo()
        from durable_core.errors import TierUnavailable

        raise TierUnavailable("no answer")

    monkeypatch.setattr(marker, "tell", unreachable)
    run.note_metrics(2, loss=math.nan)
    run.flush()
    assert told and failures(tmp_path) == []
    run.save(state_at(2), {}, step=2, wait=True)
    run.close()
    assert failures(tmp_path)[0]["signature"] == "non-finite:loss"


def test_numbers_on_a_device_are_read_together_and_before_anything_is_saved(tmp_path: Path) -> None:
    run, seen = opened(tmp_path, integrity=STOP)
    for step in range(1, READ_EVERY):
        run.note_metrics(step, unread={"loss": torch.tensor(math.nan if step == 3 else 1.0)})
        run.integrity.examine(step, lambda: ())
    assert not seen
    with pytest.raises(NumericFault) as caught:
        run.save(state_at(READ_EVERY - 1), {}, step=READ_EVERY - 1)
    assert (caught.value.onset, caught.value.found) == (2, 3)
    run.close()


def test_numbers_on_a_device_are_judged_in_the_order_of_their_steps(tmp_path: Path) -> None:
    run, seen = opened(tmp_path)
    for step in range(1, READ_EVERY + 1):
        loss = torch.tensor(math.nan if step in (3, 4, 9) else 1.0)
        run.note_metrics(step, unread={"loss": loss, "grad_norm": torch.ones(1)})
        loss.fill_(1.0)  # as static buffers of captured graphs are
    assert [event.step for event in seen if isinstance(event, events.NumericFaultFound)] == [3, 9]
    run.close()


def test_a_restart_is_warmed_up_by_the_rows_of_the_checkpoint(tmp_path: Path) -> None:
    run, _ = opened(tmp_path)
    for step in range(1, 41):
        run.note_metrics(step, loss=1 + 0.01 * (step % 3))
        run.boundary(step)
    run.save(state_at(40), {}, step=40, wait=True)
    run.close()
    again, seen = opened(tmp_path)
    for step in range(41, 44):
        again.note_metrics(step, loss=9.0)
    assert [event.onset for event in seen if isinstance(event, events.NumericFaultFound)] == [40]
    again.close()


# --- a real loop -----------------------------------------------------------------------------


def train(root: Path, last: int, *, poison: int | None = None, **settings: Any) -> list[float]:
    """A regression by hand; at ``poison`` the loss is not a number. Returns the losses by step."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    state = {"model": model, "optimizer": optimizer}
    with DurableSession.open(
        root, state=state, every_n_steps=1, backlog="delay", takeover=True, **settings
    ) as run:

        def gradients() -> torch.Tensor:
            loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            return loss

        while run.steps < last:
            batch = torch.randn(8, 4)
            loss = run.recompute(gradients)
            optimizer.step()
            losses.append(loss.item())
            run.step(loss=math.nan if run.steps + 1 == poison else losses[-1])
    return losses


def test_a_poisoned_run_goes_back_and_ends_as_one_that_never_was(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = train(tmp_path / "control", 14)
        with pytest.raises(NumericFault) as caught:
            train(tmp_path / "run", 14, poison=9, integrity=STOP)
        resumed = train(tmp_path / "run", 14, integrity=STOP)
    assert caught.value.onset == 8
    assert 14 - len(resumed) < 8
    assert resumed == expected[-len(resumed) :]


def test_a_step_computed_twice_leaves_everything_as_one_does(tmp_path: Path) -> None:
    """Dropout draws from the streams, and they are where they would have been."""
    expected = train(tmp_path / "once", 6)
    assert train(tmp_path / "twice", 6, integrity=Integrity(recompute_every=2)) == expected


def test_the_step_of_a_raised_fault_is_no_success(tmp_path: Path) -> None:
    with pytest.raises(NumericFault), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(tmp_path, 5, poison=5, integrity=STOP)
    state = open_run(tmp_path).state
    assert state.terminal is None and trust.stopped_for(state) == 4
    assert state.head_step == 4


def test_a_warning_names_the_detector_and_the_onset(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"loss is nan \(F12, found by non-finite\); nothing from step 2 on"):
        train(tmp_path, 4, poison=3)


def test_with_every_detector_off_nothing_is_judged(tmp_path: Path) -> None:
    run, seen = opened(tmp_path, integrity=Integrity(non_finite=False, spikes=None))
    for step in range(1, 6):
        note(run, step, loss=math.nan)
    assert run.integrity.window == 0 and run.integrity.vindicated() is None
    run.close()
    assert not any(isinstance(event, events.NumericFaultFound) for event in seen)
    assert known_good(tmp_path) == []
