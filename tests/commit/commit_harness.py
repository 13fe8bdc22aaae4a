"""A store in a dictionary, and programs run over it step by step, with answers that can be spoilt."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from durable_core.commit import effects as fx
from durable_core.commit.claim import Claim, claim_generation, create_run
from durable_core.commit.journal import EMPTY, View
from durable_core.commit.request import Deadlines, LedgerRows, SaveRequest
from durable_core.errors import DurableError, InDoubt
from durable_core.format import digests
from durable_core.testing.sim import content
from durable_core.testing.sim.content import Model
from durable_core.types import ObjectInfo, Promise, Token

DIGEST = "sha256:" + "0" * 64


@dataclass
class Store:
    """``spoil`` is asked before every effect: it may raise what the effect is to fail with."""

    objects: dict[str, bytes] = field(default_factory=dict)
    clock: float = 0.0
    unchanged: float = 1.0
    ids: int = 0
    log: list[fx.Effect] = field(default_factory=list)
    spoil: Callable[[fx.Effect], None] = lambda effect: None

    def perform(self, effect: Any, staged: dict[str, bytes], role: str) -> Any:
        self.log.append(effect)
        self.spoil(effect)
        if isinstance(effect, fx.Get):
            return self.objects.get(effect.key)
        if isinstance(effect, fx.PutIfAbsent):
            return self.put(effect.key, effect.data)
        if isinstance(effect, fx.Size):
            data = self.objects.get(effect.key)
            return None if data is None else len(data)
        if isinstance(effect, fx.ListKeys):
            return tuple(key for key in self.objects if key.startswith(effect.prefix))
        if isinstance(effect, fx.Delete):
            self.objects.pop(effect.key, None)
        if isinstance(effect, fx.Confirm):
            return None
        if isinstance(effect, fx.Estimate):
            return self.unchanged
        if isinstance(effect, fx.Describe):
            return content.describe(staged)
        if isinstance(effect, fx.WriteShard):
            data, header, begins = content.pack(staged, role, effect.slices)
            self.objects[effect.key] = data
            info = ObjectInfo(effect.key, len(data), header, digests.xxh3(data[:header]))
            return fx.WrittenShard(info, begins)
        if isinstance(effect, (fx.Now, fx.WallTime)):
            return self.clock
        if isinstance(effect, fx.Wait):
            self.clock += effect.seconds
        if isinstance(effect, fx.NewId):
            self.ids += 1
            return hashlib.blake2b(str(self.ids).encode(), digest_size=16).hexdigest()
        return None

    def put(self, key: str, data: bytes) -> bool:
        if key in self.objects:
            return False
        self.objects[key] = data
        return True

    def steps(self, program: fx.Program[Any], staged: Any = None, role: str = "dp0") -> Iterator[Any]:
        """Run a program one effect at a time; the generator's value is the program's."""
        step: Callable[[], Any] = lambda: next(program)  # noqa: E731
        while True:
            try:
                effect = step()
            except StopIteration as done:
                return done.value
            yield effect
            try:
                answer = self.perform(effect, staged or {}, role)
            except DurableError as error:
                step = _throwing(program, error)
            else:
                step = _sending(program, answer)

    def run(self, program: fx.Program[Any], staged: Any = None, role: str = "dp0") -> Any:
        steps = self.steps(program, staged, role)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                return done.value

    def together(self, *programs: tuple[fx.Program[Any], dict[str, bytes], str]) -> list[Any]:
        """Run several programs in turn, one effect each; results, or the error each ended with."""
        running = {i: self.steps(*each) for i, each in enumerate(programs)}
        results: list[Any] = [None] * len(programs)
        while running:
            for i, steps in list(running.items()):
                try:
                    next(steps)
                except StopIteration as done:
                    results[i] = done.value
                    del running[i]
                except DurableError as error:
                    results[i] = error
                    del running[i]
        return results


def _sending(program: fx.Program[Any], answer: Any) -> Callable[[], Any]:
    return lambda: program.send(answer)


def _throwing(program: fx.Program[Any], error: DurableError) -> Callable[[], Any]:
    return lambda: program.throw(error)


def lost_ack(store: Store, nth: int, *, applied: bool, kind: type = fx.PutIfAbsent) -> None:
    """The ``nth`` put from now on (0 is the next) is answered by nothing."""
    left = [nth]

    def spoil(effect: fx.Effect) -> None:
        if type(effect) is not kind:
            return
        left[0] -= 1
        if left[0] == -1:
            if applied and isinstance(effect, fx.PutIfAbsent):
                store.put(effect.key, effect.data)
            raise InDoubt("no answer")

    store.spoil = spoil


def new_run(store: Store, launch: str = "L1") -> View:
    return store.run(
        create_run(
            EMPTY,
            launch_id=launch,
            run_id="run",
            spec={"cancel_authority": ["operator"], "target": 5},
            spec_digest=DIGEST,
            seed=7,
            promise=Promise.BITWISE,
        )
    )


def start(store: Store, launch: str = "L1", roles: tuple[str, ...] = ("dp0",), **how: Any) -> Claim:
    return store.run(claim_generation(EMPTY, launch_id=launch, members=roles, **how))


def request(
    token: Token, model: Model, role: str = "dp0", roles: tuple[str, ...] = ("dp0",), **changes: Any
) -> SaveRequest:
    trained = dict.fromkeys(range(1, model.step + 1), token.generation)
    values: dict[str, Any] = {
        "role": role,
        "roles": roles,
        "token": token,
        "run_id": "run",
        "step": model.step,
        "documents": content.documents_of(model, role),
        "cursor": {"step": model.step},
        "spec_digest": DIGEST,
        "promise": Promise.BITWISE,
        "ledger": lambda after: LedgerRows(content.rows_of(trained, after, model.step), model.step),
        "deadlines": Deadlines(1.0, 1.0, 1.0, 2.0),
    }
    return SaveRequest(**{**values, **changes})


def model_at(step: int, generation: int = 1) -> Model:
    model = Model()
    while model.step < step:
        model = model.trained(generation)
    return model
