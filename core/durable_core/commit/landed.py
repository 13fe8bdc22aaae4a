"""L3. A save that is tried again: whether it has landed after all, its acknowledgement being lost."""

from __future__ import annotations

from durable_core.commit.effects import Program
from durable_core.commit.journal import View, replay, settle
from durable_core.commit.request import SaveOutcome, SaveRequest


def landed(view: View, request: SaveRequest) -> Program[SaveOutcome | None]:
    """The commit of an earlier attempt at this very save, or ``None`` when none has arrived.

    Within a generation steps only rise, so a head of its own at this step can be nothing else. Raises
    ``AppendInDoubt`` when that still cannot be told, and the tier's errors.
    """
    view = yield from settle(view)
    view = yield from replay(view)
    state = view.state
    info = None if state.head is None else state.checkpoints[state.head]
    if info is None or (info.generation, info.step) != (request.token.generation, request.step):
        return None
    return SaveOutcome.of(info, view)
