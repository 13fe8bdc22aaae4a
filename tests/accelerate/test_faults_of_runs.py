"""What runs must not do: end as finished when they are not, go on as another's, count what was looked at."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import training_parts
from accelerate_lives import at_line, lines, sound, watch_sessions
from adapter_parts import as_in_a_new_process, forget_accelerate, shuffled, step, training
from torch import nn
from zero_code_runs import Interpreter, script

from accelerate_durable import Accelerator, DurableOptions
from accelerate_durable.__main__ import main
from accelerate_durable.counting import begins_anew, behind, left_within
from accelerate_durable.durable import _read
from accelerate_durable.leaving import cut_short
from accelerate_durable.passes import EpochIsOver
from accelerate_durable.residue import Residue
from durable_core.detect.policy import Integrity
from durable_core.engine.inspect import open_run
from durable_core.errors import NumericFault, UnsupportedError, UsageError
from tests.lives import check_stretches, life

#: Three epochs of five batches, of which a mode says in which style; each batch is a line of the log.
SCRIPT = """
import os, sys, torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from training_parts import Notes, digest

class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 20
    def __getitem__(self, i): return torch.tensor(i), torch.full((3,), float(i)) / 20 + torch.rand(3)

notes = Notes(sys.argv[1])
accelerator = Accelerator(cpu=True)
set_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.3), torch.nn.Linear(4, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
loaders = [torch.utils.data.DataLoader(Numbers(), 4, shuffle=s) for s in (True, False)]
model, optimizer, loader, other = accelerator.prepare(net, optimizer, *loaders)

def step(batch):
    ids, x = batch
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    notes.write("batch", ids=ids.tolist(), weights=digest(*net.parameters()))

def train():
    for epoch in range(3):
        for number, batch in enumerate(loader):
            step(batch)
            fails(epoch, number)

def fails(epoch, number): pass

{body}
notes.write("end", weights=digest(*net.parameters()))
"""


@pytest.fixture(autouse=True)
def nothing_goes_on() -> Iterator[None]:
    yield
    forget_accelerate()


def lives(home: Path, body: str, kill: Any = None, environ: Sequence[str] = ()) -> tuple[int, list[Any], str]:
    """One life of the script with that body: exit code, the lines of it, what it said."""
    home.mkdir(exist_ok=True)
    number = len(list(home.glob("log*")))
    path = script(home, SCRIPT.format(body=body))
    before = (home / "output").read_text() if (home / "output").exists() else ""

    def action() -> None:
        os.chdir(home)
        os.environ.update(dict.fromkeys(environ, "1"))
        os.environ.update(ACCELERATE_DURABLE_EVERY_N_STEPS="2", ACCELERATE_DURABLE_BACKLOG="delay")
        os.environ.update(ACCELERATE_DURABLE_ROOT=str(home / "run"))
        training_parts.strike = None if kill is None else at_line(*kill)
        watch_sessions()
        with Interpreter():
            main([path, str(home / f"log{number}.0")])

    code = life(home, action)
    return code, lines(home, f"log{number}"), (home / "output").read_text().removeprefix(before)


def is_the_same_run(home: Path, body: str, kill: Any) -> str:
    """Killed there and started again. What the restart said."""
    whole = lives(home / "whole", body)
    assert whole[0] == 0, whole[2]
    first = lives(home / "killed", body, kill)
    assert first[0] == -9, first[2]
    second = lives(home / "killed", body)
    assert second[0] == 0, second[2]
    check_stretches(whole[1], [first[1], second[1]])
    sound(home / "killed")
    return second[2]


def succeeded(root: Path) -> bool:
    over = open_run(root).state.terminal
    return over is not None and over.outcome == "succeeded"


# --- what runs before training goes on ---------------------------------------------------------------

EVALUATED_FIRST = """
model.eval()
for _, x in other:
    with torch.no_grad(): model(x), torch.rand(1)
model.train()
train()
"""


def test_what_is_evaluated_before_training_goes_on_is_undone(tmp_path: Path) -> None:
    is_the_same_run(tmp_path, EVALUATED_FIRST, ("batch", 3))


# --- ended, and not finished ---------------------------------------------------------------------------

ENDED_AT_LAST = """
def fails(epoch, number):
    if (epoch, number) == (1, 2) and "FAILS" in os.environ: raise RuntimeError("out of memory")
try: train()
finally: accelerator.end_training()
"""
LEAVES = """
def fails(epoch, number):
    if (epoch, number) == (1, 2) and "FAILS" in os.environ: sys.exit(0)
train()
"""


@pytest.mark.parametrize(
    ("body", "code", "told"),
    [
        (ENDED_AT_LAST, 1, "RuntimeError was under way, and run"),
        (ENDED_AT_LAST.replace('raise RuntimeError("out of memory")', "sys.exit(0)"), 0, "middle of a pass"),
        (LEAVES, 0, "middle of a pass"),
    ],
    ids=["an error", "sys.exit in a try", "sys.exit"],
)
def test_a_run_that_was_cut_short_is_not_finished(tmp_path: Path, body: str, code: int, told: str) -> None:
    whole = lives(tmp_path / "whole", body)
    assert whole[0] == 0
    first = lives(tmp_path / "cut", body, environ=["FAILS"])
    assert first[0] == code
    assert told in first[2]
    assert "is not marked as finished" in first[2]
    assert not succeeded(tmp_path / "cut" / "run")
    second = lives(tmp_path / "cut", body)
    assert second[0] == 0, second[2]
    check_stretches(whole[1], [first[1], second[1]])
    assert succeeded(tmp_path / "cut" / "run")


def test_a_drained_run_leaves_with_its_exit_code_through_a_finally(tmp_path: Path) -> None:
    def terminate() -> None:
        os.kill(os.getpid(), 15)

    code, _, told = lives(tmp_path / "run", ENDED_AT_LAST, ("batch", 8, terminate))
    assert code == 75, told
    assert lives(tmp_path / "run", ENDED_AT_LAST)[0] == 0


@pytest.mark.parametrize(
    ("error", "within", "short"),
    [
        (None, True, False),
        (StopIteration(), True, False),
        (SystemExit(), False, False),
        (SystemExit(0), True, True),
        (SystemExit(3), False, True),
        (KeyboardInterrupt(), False, True),
    ],
    ids=["nothing", "StopIteration", "exit", "exit within", "exit 3", "interrupt"],
)
def test_what_cuts_a_training_short(error: BaseException | None, within: bool, short: bool) -> None:
    assert bool(cut_short(error, within=within)) is short


# --- a second training in one process -------------------------------------------------------------------


def an_epoch(accelerator: Any, batches: int = 99) -> Any:
    model, optimizer, loader = training(accelerator, shuffled())
    for _, batch in zip(range(batches), loader, strict=False):
        step(accelerator, model, optimizer, batch)
    return model, optimizer, loader


@pytest.mark.parametrize("freed", [True, False], ids=["free_memory", "another accelerator"])
def test_a_second_training_does_not_go_on_with_the_first(tmp_path: Path, freed: bool) -> None:
    first = Accelerator(cpu=True, durable=tmp_path / "run")
    objects = an_epoch(first)
    second = first
    if freed:
        first.free_memory(*objects)
    else:
        second = Accelerator(cpu=True, durable=tmp_path / "run")
    with pytest.raises(UsageError, match="this process has trained the run at") as caught:
        an_epoch(second)
    assert "a root of its own" in caught.value.hint
    third = Accelerator(cpu=True, durable=tmp_path / "another")
    an_epoch(third)
    third.end_training()
    assert third.durable.steps == 6


def test_a_second_one_goes_on_when_it_says_so(tmp_path: Path) -> None:
    first = Accelerator(cpu=True, durable=tmp_path / "run", project_dir=str(tmp_path))
    objects = an_epoch(first)
    first.save_state(tmp_path / "saved")
    first.free_memory(*objects)
    model, optimizer, loader = training(first, shuffled())
    first.load_state(tmp_path / "saved")
    for batch in loader:
        step(first, model, optimizer, batch)
    first.end_training()
    assert first.durable.steps == 12


def test_a_cell_that_was_interrupted_and_is_run_again_goes_on(tmp_path: Path) -> None:
    an_epoch(Accelerator(cpu=True, durable=tmp_path / "run"), batches=3)
    again = Accelerator(cpu=True, durable=tmp_path / "run")
    with pytest.warns(UserWarning, match="goes on with it. Another training needs a root"):
        an_epoch(again)
    again.end_training()


# --- passes that train nothing ----------------------------------------------------------------------------

LOOKS = "next(iter(loader))\ntrain()"
LOOKS_EACH_TIME = LOOKS.replace(
    "\n",
    """
def train():
    for _ in range(3):
        model(next(iter(loader))[1])
        for batch in loader: step(batch)
""",
)


@pytest.mark.parametrize("body", [LOOKS, LOOKS_EACH_TIME], ids=["once", "each time"])
@pytest.mark.parametrize("number", [3, 8, 11])
def test_a_look_at_the_first_batch_is_no_epoch(tmp_path: Path, body: str, number: int) -> None:
    assert "its count has begun anew" not in is_the_same_run(tmp_path, body, ("batch", number))


@pytest.mark.parametrize("graded", [True, False])
def test_a_pass_that_is_only_read_is_told_once(tmp_path: Path, graded: bool) -> None:
    accelerator = Accelerator(cpu=True, durable=tmp_path / "run")
    loader = training(accelerator, shuffled())[2]
    with warnings.catch_warnings(record=True) as caught, torch.set_grad_enabled(graded):
        warnings.simplefilter("always")
        for _ in range(2):
            assert len(list(loader)) == 6
    assert sum("under torch.no_grad()" in str(each.message) for each in caught) == graded
    accelerator.durable.reset()


NEXT = """
batches = iter(loader)
for _ in range(15):
    try:
        batch = next(batches)
    except StopIteration:
        batches = iter(loader)
        batch = next(batches)
    step(batch)
"""


ENDLESS = """
def endless():
    while True: yield from loader
for _, batch in zip(range(2), endless()): step(batch)
"""


def test_next_that_meets_epochs_that_are_over_is_told_the_way_out(tmp_path: Path) -> None:
    assert lives(tmp_path / "run", NEXT, ("batch", 13))[0] == -9
    code, _, told = lives(tmp_path / "run", NEXT)
    assert code == 2, told
    assert "Traceback" not in told
    assert "`while True: yield from loader`" in told
    code, found, told = lives(tmp_path / "run", ENDLESS)
    assert code == 0, told
    assert found[0]["what"] == "batch"


COUNTS = """
def train():
    done = 0
    for epoch in range(9):
        for batch in loader:
            step(batch)
            done += 1
            if done == 12: return
train()
"""


def test_a_script_that_counts_its_steps_is_told_at_a_restart_and_at_its_end(tmp_path: Path) -> None:
    assert lives(tmp_path / "run", COUNTS, ("batch", 7))[0] == -9
    code, found, told = lives(tmp_path / "run", COUNTS)
    assert code == 0, told
    assert len(found) == 12 + 1
    assert "goes on after step 6; the script's own variables begin anew" in told
    assert "bodies of epochs that are over" in told
    assert "after 12 steps of this process and 18 of the run" in told
    assert "ACCELERATE_DURABLE_MAX_STEPS" in told


@pytest.mark.parametrize(
    ("step", "restored", "tells"), [(18, 6, True), (12, 0, False), (6, 6, False), (0, 0, False)]
)
def test_an_end_within_an_epoch_is_told_where_a_restart_has_trained(
    step: int, restored: int, tells: bool
) -> None:
    assert bool(left_within(step, restored)) is tells


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("registered", [False, True])
def test_what_a_restart_cannot_know_is_told(registered: bool, over: bool) -> None:
    told = begins_anew(7, registered=registered, over=over)
    assert ("variables begin anew" in told) is not registered
    assert ("bodies of epochs" in told) is over
    assert bool(told) is (over or not registered)
    assert begins_anew(0, registered=registered, over=over) == ""


def test_a_directory_older_than_where_the_run_goes_on_is_told() -> None:
    assert "of step 27, and the run goes on after step 39" in behind("out/step_24", 27, 39)
    assert "12 short" in behind("out/step_24", 27, 39)
    assert behind("out/step_24", 39, 39) == ""


def test_next_says_why_there_is_no_batch(tmp_path: Path) -> None:
    """Not a bare StopIteration, which says nothing; to a loop it is the end of a pass all the same."""
    accelerator = Accelerator(cpu=True, durable=tmp_path / "run")
    an_epoch(accelerator)
    accelerator.save_state(tmp_path / "saved")
    accelerator.durable.reset()
    as_in_a_new_process(tmp_path / "run")
    again = Accelerator(cpu=True, durable=tmp_path / "run")
    model, optimizer, loader = training(again, shuffled())
    with pytest.raises(EpochIsOver, match="trained before this restart") as caught:
        next(iter(loader))
    assert "loader.set_epoch(epoch)" in caught.value.hint and isinstance(caught.value, StopIteration)
    batches = iter(loader)
    for batch in batches:
        step(again, model, optimizer, batch)
    with pytest.raises(StopIteration) as ended:
        next(batches)
    assert ended.type is StopIteration  # of a pass that had batches
    again.end_training()
    with pytest.raises(EpochIsOver, match="the run has ended"):
        as_in_a_new_process(tmp_path / "run")
        next(iter(training(Accelerator(cpu=True, durable=tmp_path / "run"), shuffled())[2]))


# --- gradients that outlive a step --------------------------------------------------------------------------

#: Each update is made of all gradients up to it.
KEPT = """
optimizer.zero_grad = lambda *_: None
train()
"""


def test_gradients_that_are_kept_over_updates_are_part_of_the_run(tmp_path: Path) -> None:
    is_the_same_run(tmp_path, KEPT, ("batch", 8))


def saved(*, before: bool, after: bool, to_none: bool = True) -> list[bool]:
    """Whether gradients are in the checkpoints of the first steps of a script that clears them ``before`` it
    computes, or ``after`` it has stepped."""
    net, found = nn.Linear(2, 1), []
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    residue = Residue([optimizer])
    residue.watch()
    for _ in range(3):
        if before:
            optimizer.zero_grad(set_to_none=to_none)
        residue.computing()
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        if after:
            optimizer.zero_grad(set_to_none=to_none)
        residue.boundary()
        found.append(len(residue.state_dict()) > 1)
    return found


def test_only_gradients_that_are_used_again_are_saved() -> None:
    assert saved(before=False, after=True) == [False] * 3
    assert saved(before=True, after=False) == [True, False, False]  # at first it is not known
    assert saved(before=False, after=False) == [True] * 3
    assert saved(before=True, after=False, to_none=False) == [True] * 3  # zeros are something else than none


def left_over(*parameters: nn.Parameter) -> Residue:
    """After a step, the gradients still there."""
    residue = Residue([torch.optim.SGD(parameters, 0.1)])
    handles = residue.watch()
    (optimizer,) = residue._optimizers
    optimizer.step()
    residue.boundary()
    for handle in handles:
        handle.remove()
    return residue


def test_one_gradient_that_is_kept_among_others_is_seen() -> None:
    dropped, kept = (nn.Parameter(torch.ones(1)) for _ in range(2))
    dropped.grad = kept.grad = torch.ones(1)
    residue = left_over(dropped, kept)
    dropped.grad = None
    assert residue.computing() == ""
    residue.boundary()
    assert "0.1" in residue.state_dict()


def test_gradients_that_are_kept_from_some_step_on_are_told() -> None:
    parameter = nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    residue = left_over(parameter)
    residue.load_state_dict({"kept": {"0": False}})
    parameter.grad = torch.ones(1)
    residue.boundary()
    residue._stepped = {0}
    residue.boundary()
    assert "are kept now" in residue.computing()


@pytest.mark.parametrize("coalesced", [False, True])
def test_a_sparse_gradient_and_one_of_a_graph_are_stored(coalesced: bool) -> None:
    first, second = (nn.Parameter(torch.ones(3, 2)) for _ in range(2))
    rows, values = torch.tensor([[2, 0, 2]]), torch.rand(3, 2)
    gradient = torch.sparse_coo_tensor(rows, values, (3, 2), check_invariants=True)
    first.grad = gradient.coalesce() if coalesced else gradient
    second.grad = second * 2
    residue = left_over(first, second)
    stored = residue.state_dict()
    assert not stored["0.1"].requires_grad
    wanted, first.grad = first.grad, None
    residue.load_state_dict(stored)
    assert first.grad is not None
    assert first.grad.is_coalesced() is coalesced
    assert torch.equal(first.grad._indices(), wanted._indices())
    assert torch.equal(first.grad._values(), wanted._values())


# --- numbers on a device ------------------------------------------------------------------------------------


def test_a_loss_on_a_device_is_judged_without_waiting_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _read(there := torch.empty((), device="meta")) == {"unread": {"loss": there}}
    assert _read(torch.tensor(2.0)) == {"loss": 2.0} and _read(None) == {}
    monkeypatch.setattr(
        "accelerate_durable.durable._read", lambda _: {"unread": {"loss": torch.tensor(float("nan"))}}
    )
    options = DurableOptions(root=tmp_path / "run", integrity=Integrity(on_numeric="stop"), every_n_steps=3)
    accelerator = Accelerator(cpu=True, durable=options)
    with pytest.raises(NumericFault) as caught:
        an_epoch(accelerator)
    assert (caught.value.onset, accelerator.durable.steps) == (1, 3)  # before it was saved
    accelerator.durable.reset()


def test_one_iterator_at_a_time_is_told_what_to_do(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, durable=tmp_path / "run")
    loader = training(accelerator, shuffled())[2]
    first, second = iter(loader), iter(loader)
    next(first), next(second)
    with pytest.raises(UsageError, match="a newer iterator") as caught:
        next(first)
    assert "one pass at a time" in caught.value.hint
    accelerator.durable.reset()


# --- what is in no checkpoint, and what has ended -----------------------------------------------------------


class Holder:
    """Registered: a head that no model has."""

    def __init__(self) -> None:
        self.head = nn.Linear(1, 1)

    def state_dict(self) -> Any:
        return self.head.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.head.load_state_dict(state)


@pytest.mark.parametrize("case", ["registered", "not trained", "trained", "trained by a closure"])
def test_a_parameter_that_is_in_no_model(tmp_path: Path, case: str) -> None:
    accelerator = Accelerator(cpu=True, durable=tmp_path / "run")
    model, holder = nn.Linear(3, 1), Holder()
    optimizer = torch.optim.SGD([*model.parameters(), *holder.head.parameters()], 0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, shuffled())
    if case == "registered":
        accelerator.register_for_checkpointing(holder)

    def compute() -> torch.Tensor:
        out = model(batch[1])
        loss: torch.Tensor = (out if case == "not trained" else holder.head(out)).sum()
        accelerator.backward(loss)
        return loss

    batch = next(iter(loader))
    wanted = pytest.raises(UnsupportedError, match=r"optimizer 0 .* of shape \(1, 1\) .* no model")
    with wanted if case.startswith("trained") else contextlib.nullcontext():
        if case == "trained by a closure":
            optimizer.step(compute)
        else:
            compute()
            optimizer.step()
    accelerator.durable.reset()


def test_a_step_of_an_accelerator_that_has_no_run(tmp_path: Path) -> None:
    first = Accelerator(cpu=True, durable=tmp_path / "run")
    second = Accelerator(cpu=True, durable=tmp_path / "run")
    model, optimizer, loader = training(first, shuffled())
    other = nn.Linear(3, 1)
    other, optimizer_of_it = second.prepare(other, torch.optim.SGD(other.parameters(), 0.01))
    batch = next(iter(loader))
    step(first, model, optimizer, batch)
    with pytest.raises(UnsupportedError, match="whose accelerator has no run"):
        step(second, other, optimizer_of_it, batch)
    first.durable.reset()


def test_a_run_that_has_ended_says_that_nothing_is_trained(tmp_path: Path) -> None:
    first = Accelerator(cpu=True, durable=tmp_path / "run")
    an_epoch(first)
    first.end_training()
    as_in_a_new_process(tmp_path / "run")
    again = Accelerator(cpu=True, durable=tmp_path / "run")
    loader = training(again, shuffled())[2]
    with pytest.warns(UserWarning, match="has ended at step 6, and nothing is trained"):
        assert not list(loader)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not list(loader)
