"""Any trainer, killed anywhere: the ledger of the accepted history is that of a run never killed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from data_samples import Drawing, listed
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_core.data import DurableLoader
from durable_core.format.ledger import Row

EPOCHS = 3


@dataclass(frozen=True)
class Trainer:
    """How a framework behaves: batches an epoch it wants, batches a step, batches fetched ahead,
    whether it asks for the end of an epoch, and whether it says that it leaves one."""

    limit: int
    accumulate: int
    ahead: int
    sees_end: bool
    declares: bool

    def run(self, loader: DurableLoader, step: int, kill_at: int) -> tuple[int, bool]:
        """Train until ``kill_at`` batches were taken in this life, or to the end: (step, ended)."""
        taken = 0
        while loader.cursor.epoch < EPOCHS:
            done = loader.cursor.batch
            iterator, queue, pending = iter(loader), [], 0
            wanted = min(self.limit, len(loader))
            if done >= wanted:
                loader.end_epoch()
                continue
            while done < wanted:
                while len(queue) <= self.ahead and (batch := next(iterator, None)) is not None:
                    queue.append(batch)
                if taken == kill_at:
                    return step, False
                queue.pop(0)
                taken, done, pending = taken + 1, done + 1, pending + 1
                if pending == self.accumulate or done == wanted:
                    step += 1
                    loader.acknowledge(pending, step=step)
                    pending = 0
            if self.sees_end and self.limit >= len(loader):
                assert next(iterator, None) is None
            if self.declares:
                loader.end_epoch()
            elif wanted < len(loader):
                if taken == kill_at:
                    return step, False  # between epochs, undeclared: the restart finds the limit reached
                loader.end_epoch() if loader.cursor.epoch == EPOCHS - 1 else None
        return step, True


def make() -> DurableLoader:
    return DurableLoader(Drawing(11), 2, seed=3, collate_fn=listed)


def trained(rows: tuple[Row, ...]) -> list[Any]:
    return [(row.epoch, row.batch, row.ids.tolist()) for row in rows if not row.abandoned]


@given(
    trainer=st.builds(
        Trainer,
        limit=st.integers(1, 7),
        accumulate=st.integers(1, 3),
        ahead=st.integers(0, 2),
        sees_end=st.booleans(),
        declares=st.booleans(),
    ),
    kills=st.lists(st.integers(0, 9), max_size=5),
)
@settings(max_examples=80, deadline=None)
def test_every_batch_exactly_once(trainer: Trainer, kills: list[int]) -> None:
    reference = make()
    steps, ended = trainer.run(reference, 0, -1)
    assert ended and len(trained(reference.rows_since(0))) == EPOCHS * min(trainer.limit, len(reference))

    state, step, rows = json.dumps(make().state_dict()), 0, ()
    for kill_at in [*kills, -1]:
        loader = make()
        loader.load_state_dict(json.loads(state))
        step, ended = trainer.run(loader, step, kill_at)
        # everything acknowledged was saved with it; what was only taken is lost with the process
        state, rows = json.dumps(loader.state_dict()), rows + loader.drain_rows()
        if ended:
            break
    assert ended and step == steps
    assert trained(rows) == trained(reference.rows_since(0))
    assert loader.cursor == reference.cursor
