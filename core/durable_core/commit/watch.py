"""L3. The journal as one writer follows it while it waits for the others."""

from __future__ import annotations

from collections.abc import Callable

from durable_core.commit.effects import Program
from durable_core.commit.fence import token_error
from durable_core.commit.journal import View, replay
from durable_core.errors import CommitAborted
from durable_core.types import CheckpointState, Token


class Watch:
    """Looks for the end of one save. A writer that fails says so in the journal, so that the others
    hear of it at once and not at their deadlines. ``view`` is the newest seen; ``given_up`` is that of the
    request."""

    def __init__(self, view: View, token: Token, c: int, given_up: Callable[[], str] = str) -> None:
        self.view = view
        self.token = token
        self.c = c
        self.given_up = given_up

    def look(self) -> Program[bool | None]:
        """``True`` when the checkpoint is committed, ``None`` while it is open.

        Raises ``CommitAborted`` when it was aborted, or the reason why ``token`` may not write any more. A
        commit before that counts, whatever came after it.
        """
        self.view = yield from replay(self.view)
        info = self.view.state.checkpoints.get(self.c)
        if info is not None and info.was_committed:
            return True
        if info is not None and info.state is not CheckpointState.ALLOCATED:
            raise CommitAborted(f"c{self.c} was {info.state.value}: {info.note}")
        error = token_error(self.view.state, self.token)
        if error is not None:
            raise error
        if why := self.given_up():
            raise CommitAborted(why)
        return None
