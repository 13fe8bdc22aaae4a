"""Who maintains and who reads: simulated processes that train nothing."""

from __future__ import annotations

from collections.abc import Mapping

from durable_core.commit import ending
from durable_core.commit.claim import choose_restore_point, maintain
from durable_core.commit.effects import Program, Wait
from durable_core.commit.journal import AppendInDoubt, View, replay
from durable_core.commit.retention import Retention
from durable_core.errors import FencedError, NoUsableCheckpoint, TierError
from durable_core.format.record import Kind
from durable_core.testing.sim.reading import Broken
from durable_core.testing.sim.scripts import TRANSIENT, Host, read


class Controller:
    """Maintains the run under epochs of its own, clumsily, as an operator might."""

    role = "controller"

    def __init__(self, host: Host, launch: str, rounds: int) -> None:
        self.host, self.launch, self.rounds = host, launch, rounds
        self.staged: Mapping[str, bytes] = {}
        self.view = host.subject.view
        self.epoch: int | None = None

    def run(self) -> Program[str]:
        for _ in range(self.rounds):
            yield Wait(self.host.chance.random() * 0.5)
            try:
                yield from self._act()
            except AppendInDoubt as error:
                self.view = error.view
            except (FencedError, *TRANSIENT):
                self.epoch = None
        return "finished"

    def _act(self) -> Program[None]:
        chance, subject = self.host.chance, self.host.subject
        self.view = yield from replay(self.view)
        if not self.view.state.checkpoints:
            return
        c = chance.randrange(len(self.view.state.checkpoints))
        action = chance.randrange(6)
        if chance.random() < 0.01:
            self.view = yield from ending.cancel(
                self.view, launch_id=self.launch, principal="operator", reason="enough"
            )
        if action == 0:
            policy = Retention(keep_last=chance.randint(1, 2))
            done = yield from subject.retire(self.view, policy, launch_id=self.launch, epoch=self.epoch)
            self.view, self.epoch = done.view, done.epoch
        elif action <= 2:
            swept = yield from subject.sweep(self.view, budget=chance.choice((2, 100)))
            self.view = swept.view
        elif action == 3:
            self.view = yield from maintain(self.view, Kind.CHECKPOINT_RETIRED, {"c": c}, self.launch)
        elif action == 4:
            kinds = (Kind.CHECKPOINT_PINNED, Kind.CHECKPOINT_UNPINNED, Kind.CHECKPOINT_KNOWN_GOOD)
            self.view = yield from maintain(self.view, chance.choice(kinds), {"c": c}, self.launch)
        elif self._spare(c):
            payload = {"c": c, "reason": "scrub"}
            self.view = yield from maintain(self.view, Kind.CHECKPOINT_CORRUPT, payload, self.launch)

    def _spare(self, c: int) -> bool:
        """Calling a checkpoint corrupt leaves others of the lineage to restore from."""
        state = self.view.state
        usable = [other for other in state.lineage() if state.checkpoints[other].usable and other != c]
        return len(usable) >= 2


class Reader:
    """Somebody else who restores, again and again, beside the live run."""

    role = "reader"

    def __init__(self, host: Host, rounds: int) -> None:
        self.host, self.rounds = host, rounds
        self.staged: Mapping[str, bytes] = {}

    def run(self) -> Program[str]:
        view = self.host.subject.view
        for _ in range(self.rounds):
            yield Wait(self.host.chance.random() * 0.4)
            try:
                view = yield from replay(view)
                yield from self._read_newest(view)
            except (TierError, NoUsableCheckpoint):
                continue
        return "finished"

    def _read_newest(self, view: View) -> Program[None]:
        choice = choose_restore_point(view.state)
        if choice.c is None:
            return
        info = view.state.checkpoints[choice.c]
        try:
            model = yield from read(info)
        except Broken as error:
            now = yield from replay(view)
            if now.state.checkpoints[info.c].usable:
                self.host.complain(f"a reader finds c{info.c} broken: {error}")
            return
        if model.step != info.step:
            self.host.complain(f"a reader finds step {model.step} in c{info.c} of step {info.step}")


class Sweeper:
    """Collects what is dead until nothing is left."""

    role = "sweeper"

    def __init__(self, host: Host) -> None:
        self.host = host
        self.staged: Mapping[str, bytes] = {}

    def run(self) -> Program[str]:
        view = yield from replay(self.host.subject.view)
        for _ in range(200):
            if (yield from self.host.subject.sweep(view, budget=5)).complete:
                return "finished"
        return "there is no end to it"
