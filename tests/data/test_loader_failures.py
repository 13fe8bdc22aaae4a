"""What goes wrong in a worker is raised in the training process as it was raised there."""

from __future__ import annotations

import copy
import inspect
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from data_samples import Plain, listed, train
from torch.utils.data import IterableDataset

from durable_core import errors
from durable_core.data import DurableLoader
from durable_core.errors import (
    CorruptError,
    DurableError,
    RecordError,
    SpecMismatchError,
)

WORDS: dict[str, Any] = {
    "message": "said",
    "key": "a/b",
    "reason": "because",
    "hint": "do so",
    "path": "x.y",
    "why": "so",
    "failure": "F12",
    "signature": "loss not finite",
}
NUMBERS: dict[str, Any] = {
    "ordinal": 3, "id": 7, "size": 9, "batch": 4, "fields": ("seed", "order"), "onset": 5, "found": 6,
    "suspects": ("dp1",),
}  # fmt: skip
CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, DurableError)]


def an_error(kind: type[DurableError]) -> DurableError:
    """With something for whatever its constructor takes."""
    given = {**WORDS, **NUMBERS, "where": "tier", "source": "web"}
    names = inspect.signature(kind).parameters
    return kind(**{name: given[name] for name in names})


def parts(error: BaseException) -> tuple[Any, ...]:
    return type(error), str(error), error.args, attributes(error)


def attributes(error: BaseException) -> dict[str, Any]:
    """Those it was made with."""
    return {name: value for name, value in vars(error).items() if name != "__notes__"}


@pytest.mark.parametrize("again", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_survives_pickling_and_copying(
    kind: type[DurableError], again: Callable[[DurableError], DurableError]
) -> None:
    error = an_error(kind)
    assert len(vars(error)) >= 2 and parts(again(error)) == parts(error)


class Own(CorruptError):
    """A user's own, with something of its own."""

    def __init__(self, key: str, extra: Any) -> None:
        super().__init__(key, "own")
        self.extra = extra


RAISED: dict[str, Callable[[], DurableError]] = {
    "record": lambda: RecordError("part-1", 12, "no JSON", hint="mend it"),
    "spec": lambda: SpecMismatchError("differs", fields=("tokenizer",)),
    "own": lambda: Own("part-1", (1, 2)),
}


class Failing(Plain):
    def __init__(self, size: int, make: Callable[[], Exception]) -> None:
        super().__init__(size)
        self.make = make

    def __getitem__(self, index: int) -> int:
        if index == 9:
            raise self.make()
        return super().__getitem__(index)


class FailingStream(IterableDataset[int]):
    """Items 0 to 8, then an error; ``where`` it is raised instead."""

    dataset_id = "sha256:stream"

    def __init__(self, make: Callable[[], Exception], where: str = "item") -> None:
        self.make, self.where, self.at = make, where, 0

    def __iter__(self) -> Iterator[int]:
        if self.where == "iter":
            raise self.make()
        while True:
            if self.at == 9:
                raise self.make()
            self.at += 1
            yield self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if self.where == "load":
            raise self.make()
        self.at = state["at"]


def raised(loader: DurableLoader) -> tuple[int, BaseException]:
    """Batches handed over before the error, and the error; nothing follows it."""
    batches = iter(loader)
    for count in range(100):
        try:
            next(batches)
        except (DurableError, ValueError) as error:
            with pytest.raises(errors.OrderError, match="must not be skipped over"):
                next(batches)
            return count, error
    raise AssertionError("nothing was raised")


def made(dataset: Any, workers: int, **more: Any) -> DurableLoader:
    return DurableLoader(dataset, 4, seed=5, num_workers=workers, collate_fn=listed, **more)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", RAISED)
def test_an_error_of_a_map_is_itself(name: str, workers: int) -> None:
    count, error = raised(made(Failing(20, RAISED[name]), workers, shuffle=False))
    assert count == 2 and parts(error) == parts(RAISED[name]())
    if workers:
        assert "in DataLoader worker 0" in str(error.__cause__)
        assert "raise self.make()" in str(error.__cause__)  # where it was


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize(("name", "drop_last"), [("record", True), ("own", False)])
def test_an_error_of_a_stream_is_itself_and_no_end(name: str, workers: int, drop_last: bool) -> None:
    count, error = raised(made(FailingStream(RAISED[name]), workers, drop_last=drop_last))
    assert count == 2 * max(workers, 1) and parts(error) == parts(RAISED[name]())


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_an_error_at_the_beginning_of_a_stream_is_itself(workers: int) -> None:
    count, error = raised(made(FailingStream(RAISED["record"], "iter"), workers))
    assert count == 0 and parts(error) == parts(RAISED["record"]())


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_state_that_a_stream_refuses_is_its_error(workers: int) -> None:
    first = made(FailingStream(RAISED["spec"]), workers)
    train(first, 1)
    again = made(FailingStream(RAISED["spec"], "load"), workers)
    again.load_state_dict(first.state_dict())
    batches = iter(again)
    with pytest.raises(SpecMismatchError, match="differs") as caught:
        for _ in range(3):
            next(batches)
    assert caught.value.fields == ("tokenizer",)


def collate_refuses(samples: Any) -> Any:
    raise RecordError("part-1", 3, "shape [2] among [3]")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", [Plain(20), FailingStream(RAISED["spec"])], ids=["map", "stream"])
def test_an_error_of_collating_is_itself(dataset: Any, workers: int) -> None:
    loader = DurableLoader(dataset, 4, seed=5, num_workers=workers, collate_fn=collate_refuses)
    _, error = raised(loader)
    assert isinstance(error, RecordError) and error.ordinal == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_what_cannot_travel_stays_behind_and_nothing_hangs(workers: int) -> None:
    _, error = raised(made(Failing(20, lambda: Own("part-1", threading.Lock())), workers))
    assert isinstance(error, Own) and error.key == "part-1"
    assert hasattr(error, "extra") == (workers == 0)


def test_an_error_whose_class_nobody_finds_is_of_the_nearest_that_can_be_found() -> None:
    class Local(RecordError):
        pass

    _, error = raised(made(Failing(20, lambda: Local("part-1", 3, "no JSON")), 2))
    assert type(error) is RecordError and attributes(error) == vars(Local("part-1", 3, "no JSON"))


def test_errors_of_others_come_as_torch_has_them() -> None:
    _, error = raised(made(Failing(20, lambda: ValueError("theirs")), 2))
    assert type(error) is ValueError and "theirs" in str(error) and "raise self.make()" in str(error)
