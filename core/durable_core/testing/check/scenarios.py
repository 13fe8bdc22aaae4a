"""The small worlds: who runs beside whom."""

from __future__ import annotations

from durable_core.commit.journal import Draft
from durable_core.format.record import Kind
from durable_core.testing.check.actors import (
    DIGEST,
    adopter,
    allocator,
    backwards,
    canceller,
    continuing,
    controller,
    created,
    creator,
    extender,
    forker,
    guarded,
    impostor,
    late_committer,
    nothing,
    reconciler,
    says,
    starts_from,
    stubborn,
    summarizer,
    upgrader,
    worker,
)
from durable_core.testing.check.explorer import Scenario

_RETIRE, _PIN, _CORRUPT = Kind.CHECKPOINT_RETIRED, Kind.CHECKPOINT_PINNED, Kind.CHECKPOINT_CORRUPT
_GOOD = Kind.CHECKPOINT_KNOWN_GOOD
_FAILURE = {"class": "F1", "signature": "", "evidence": None, "step": None}
_CREATED = {"run_id": "other", "spec": {}, "spec_digest": DIGEST, "seed": 2, "promise": "bitwise"}
_LOWERED = {"from": "bitwise", "to": "coverage", "reason": ""}

SCENARIOS: tuple[Scenario, ...] = (
    Scenario("two first starts race", nothing, (creator("L1"), creator("L2"), worker("L1", 1)), 2),
    Scenario(
        "a writer, its replacement, and the writer restarted by a supervisor that does not know",
        created("L1", 1),
        (continuing("L1", 10, 20), worker("L2", 2), worker("L1", 1)),
        2,
    ),
    Scenario(
        "three launches in turn",
        created("L1", 1),
        (worker("L2", 1), worker("L3", 1), worker("L2", 1)),
        1,
    ),
    Scenario(
        "two saves under one token, and a restart",
        created("L1", 1),
        (continuing("L1", 10), continuing("L1", 20), worker("L1", 1)),
        1,
    ),
    Scenario(
        "reuse against retirement",
        created("L1", 2),
        (continuing("L1", 20, reuses=(0,)), controller("C1", (_RETIRE, 0)), worker("L1", 1)),
        1,
    ),
    Scenario(
        "what is retired is reused through the parent",
        created("L1", 1),
        (continuing("L1", 10, 20, reuses=(0,)), controller("C1", (_RETIRE, 0))),
        1,
    ),
    Scenario(
        "reuse against damage",
        created("L1", 2),
        (continuing("L1", 20, reuses=(1,)), controller("C1", (_CORRUPT, 1))),
        1,
    ),
    Scenario(
        "two controllers",
        created("L1", 3),
        (
            controller("C1", (_PIN, 0), (_RETIRE, 1)),
            controller("C2", (_RETIRE, 0), (_RETIRE, 2)),
            worker("L2", 1),
        ),
        1,
    ),
    Scenario(
        "corruption against a claim",
        created("L1", 2),
        (controller("C1", (_CORRUPT, 1), (_RETIRE, 0)), worker("L2", 1), continuing("L1", 20)),
        1,
    ),
    Scenario(
        "success, cancellation, extension and a late commit",
        created("L1", 1),
        (continuing("L1", 10, finish=True), canceller("O"), extender("L1"), continuing("L1", 15)),
        1,
    ),
    Scenario(
        "success against another save",
        created("L1", 1),
        (continuing("L1", 10, finish=True), continuing("L1", 12, finish=True), worker("L2", 1)),
        1,
    ),
    Scenario(
        "adoption against the writer that wakes up, and the next claim",
        created("L1", 1),
        (continuing("L1", 10), adopter("L2", 15), worker("L2", 1)),
        1,
    ),
    Scenario(
        "two adoptions race, and one comes late",
        created("L1", 1),
        (adopter("L3", 15), adopter("L2", 15, 5)),
        1,
    ),
    Scenario(
        "adoption in a fork",
        created("L1", 2),
        (forker(0, "L2", adopts=12), continuing("L1", 20)),
        1,
        explicit=True,
    ),
    Scenario("an impostor", created("L1", 1), (worker("L2", 1), impostor("L3"), impostor("L1")), 1),
    Scenario(
        "numbers taken twice, and late commits",
        created("L1", 1),
        (allocator("L1", 10), late_committer("L1"), allocator("L1", 11)),
        1,
    ),
    Scenario("a step behind the head", created("L1", 2), (backwards("L1"), continuing("L1", 20)), 1),
    Scenario(
        "creation decided once, and a controller too early",
        nothing,
        (creator("L1"), says(Kind.RUN_CREATED, _CREATED, "L2"), controller("C1")),
        1,
    ),
    Scenario(
        "claims decided once",
        created("L1", 2),
        (starts_from(1, "L2"), starts_from(1, "L3"), controller("C1", (_CORRUPT, 1)), continuing("L1", 20)),
        0,
        explicit=True,
    ),
    Scenario(
        "a cold start decided once",
        created("L1", 1, abandon=True),
        (starts_from(None, "L2"), continuing("L1", 0)),
        1,
        explicit=True,
    ),
    Scenario(
        "forks against retirement and each other",
        created("L1", 3),
        (forker(0, "L2"), forker(1, "L3", start=2), controller("C1", (_RETIRE, 0), (_RETIRE, 1))),
        0,
        explicit=True,
    ),
    Scenario(
        "epochs decided once",
        created("L1", 2),
        (
            stubborn(lambda view: Draft(Kind.CONTROLLER_CLAIMED, {}, 1, "C1", view.state.epoch + 1)),
            controller("C2", (_GOOD, 0), (_RETIRE, 0)),
            controller("C3", (_CORRUPT, 0), (_RETIRE, 1)),
        ),
        0,
    ),
    Scenario(
        "two that say where the run stands",
        created("L1", 1),
        (reconciler("L1", "suspect"), reconciler("L1", "fencing"), controller("C1", (_GOOD, 0))),
        0,
    ),
    Scenario(
        "summaries of an end, and of one that is none",
        created("L1", 1),
        (canceller("O"), summarizer("C1", 0), summarizer("C2")),
        1,
    ),
    Scenario(
        "retirement of what is not committed",
        created("L1", 1),
        (continuing("L1", 10), controller("C1", (_RETIRE, 1))),
        1,
    ),
    Scenario(
        "who may end, extend and lower what",
        created("L1", 1),
        (
            canceller("X", "nobody"),
            says(Kind.RUN_EXTENDED, {"target": 9}, "L1"),
            says(Kind.PROMISE_LOWERED, _LOWERED, "L1"),
            says(Kind.PROMISE_LOWERED, _LOWERED, "L1"),
        ),
        1,
    ),
    Scenario(
        "a report after the end and an extension",
        created("L1", 1),
        (continuing("L1", 10, finish=True), extender("L1"), says(Kind.FAILURE, _FAILURE, "L1")),
        1,
    ),
)

_LARGE = (
    "a writer",
    "three",
    "reuse",
    "two controllers",
    "corruption",
    "claims decided",
    "two first",
    "adoption against",
)
#: The same, the worlds of more than 20,000 states last.
SMALL_FIRST = tuple(sorted(SCENARIOS, key=lambda scenario: scenario.name.startswith(_LARGE)))

#: Not one of the above: it must be found wanting.
upgrading = Scenario("an upgraded token", created("L1", 1), (guarded(upgrader), worker("L2", 1)), 0)
