"""One row for each way a group ends: what it is classified as, whose it is, and why."""

from __future__ import annotations

import signal

import pytest

from durable_core import errors
from durable_core.engine.uncaught import words_on
from durable_core.engine.words import Words
from durable_core.launch.classes import DRAINED, FENCED, PRECEDENCE, TABLE, F, Retry, Unit, first
from durable_core.launch.classify import (
    Evidence,
    Exit,
    Lost,
    Numeric,
    Origin,
    Stall,
    Unfit,
    Verdict,
    classify,
)

GLOO = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:40123"
)
WATCHDOG = (
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE) ran for 600001 ms"
)
IN_COLLECTIVE = ("train.py:step", "c10d_logger.py:wrapper", "distributed_c10d.py:all_reduce")


def said(error: BaseException, step: int | None = None) -> Words:
    """The words that a worker really leaves on ``error``."""
    found = words_on(error, step)
    assert found is not None
    return found


def one(words: Words | None = None, status: int = 1, step: int | None = 7, **more: object) -> Verdict:
    return classify(Evidence(exits=(Exit(1, status, "a", words, **more),), step=step))  # type: ignore[arg-type]


CHECKPOINT = "checkpoints/g000001-c00000003-0123abcd/manifest.json"

ERRORS = [
    (errors.UsageError("no such setting"), F.F16),
    (errors.SpecMismatchError("differs", fields=("seed",)), F.F16),
    (errors.PromiseError("cannot"), F.F16),
    (errors.UnknownVersionError("journal/0", "version 9"), F.F16),
    (errors.RunNotFoundError("none"), F.F16),
    (errors.Fenced("newer"), F.F14),
    (errors.Superseded("newer"), F.F14),
    (errors.RunBusy("live"), F.F14),
    (errors.TierUnavailable("EIO"), F.F10),
    (errors.TierFull("ENOSPC"), F.F10),
    (errors.RpoBreachedError("too much"), F.F10),
    (errors.StaleSnapshotError("changed"), F.F10),
    (errors.DigestMismatchError(CHECKPOINT, "differs"), F.F11),
    (errors.ObjectNotFoundError(CHECKPOINT), F.F11),
    (errors.NoUsableCheckpoint("none left"), F.F11),
    (errors.JournalBrokenError("journal/5", "chain"), F.F11),
    (errors.DigestMismatchError("shards/00017.tar", "differs"), F.F9),
    (errors.RecordError("shards/00017.tar", 3, "no JPEG"), F.F9),
    (errors.DataUnavailableError("shards/00017.tar", "404"), F.F9),
    (errors.NumericFault("nan", failure="F12", signature="x", onset=3, found=4), F.F12),
    (errors.NodesMissing("1 of 2"), F.F18),
    (errors.LostSlot("again"), F.F1),
    (MemoryError(), F.F8),
    (RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory"), F.F8),
    (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), F.F8),
    (ValueError("bad"), F.F1),
    (ModuleNotFoundError("No module named 'late'"), F.F1),
    (KeyboardInterrupt(), F.F1),
]


@pytest.mark.parametrize(
    ("error", "expected"), ERRORS, ids=[type(e).__name__ + str(i) for i, (e, _) in enumerate(ERRORS)]
)
def test_last_words_of_each_kind_are_classified(error: BaseException, expected: F) -> None:
    verdict = one(said(error))
    assert verdict.failure is expected, verdict
    told = str(error) if isinstance(error, errors.DurableError) and expected in (F.F14, F.F16) else None
    assert (told or type(error).__name__) in verdict.reason
    assert (verdict.culprit, verdict.place) == (1, "a")


def test_a_store_that_was_never_reached_is_a_mistake_and_one_that_was_is_an_outage() -> None:
    def at(error: errors.TierError, step: int | None, known: bool) -> F:
        return classify(Evidence((Exit(1, 1, "a", said(error)),), step=step, known=known)).failure

    denied, away = errors.TierDenied("no permission"), errors.TierUnavailable("no route")
    assert at(denied, None, True) is at(denied, None, False) is at(away, None, False) is F.F16
    assert at(denied, 3, True) is at(away, 3, True) is at(away, None, True) is F.F10


def test_of_a_refusal_the_operator_is_told_the_way_out_and_no_names_of_the_program() -> None:
    busy = errors.RunBusy("r is being trained", hint="wait, or start with --takeover")
    assert one(said(busy)).reason == "rank 1: r is being trained (wait, or start with --takeover)"


@pytest.mark.parametrize("error", [ModuleNotFoundError("x"), SyntaxError("x"), ImportError("x")])
def test_a_program_that_cannot_be_built_is_a_mistake_only_before_the_first_step(error: Exception) -> None:
    assert one(said(error), step=None).failure is F.F16
    assert one(said(error), step=0).failure is F.F1


@pytest.mark.parametrize(
    ("status", "expected", "origin"),
    [
        (-signal.SIGKILL, F.F1, Origin.OUTSIDE),
        (-signal.SIGTERM, F.F1, Origin.OUTSIDE),
        (-signal.SIGSEGV, F.F1, Origin.INSIDE),
        (-signal.SIGBUS, F.F1, Origin.INSIDE),
        (-signal.SIGABRT, F.F1, Origin.UNKNOWN),
        (-63, F.F1, Origin.INSIDE),
        (DRAINED, F.F4, Origin.OUTSIDE),
        (FENCED, F.F14, Origin.OUTSIDE),
        (77, F.F12, Origin.INSIDE),
        (0, F.F1, Origin.UNKNOWN),
        (1, F.F1, Origin.UNKNOWN),
        (2, F.F1, Origin.UNKNOWN),
    ],
)
def test_statuses_without_words(status: int, expected: F, origin: Origin) -> None:
    verdict = one(status=status)
    assert (verdict.failure, verdict.origin) == (expected, origin)
    assert verdict.reason.startswith("rank 1")


def test_what_the_kernel_killed_for_memory_ran_out_of_it() -> None:
    assert one(status=-signal.SIGKILL, oom=True).failure is F.F8
    assert one(status=-signal.SIGSEGV, oom=True).failure is F.F1


def test_a_refused_command_line_is_a_mistake_before_the_first_step() -> None:
    assert one(status=2, step=None).failure is F.F16


def test_ending_well_without_a_final_record_is_a_failure_of_its_own_signature() -> None:
    verdict = one(status=0)
    assert "exit 0 without a final record" in verdict.signature
    assert verdict.signature != one(status=1).signature
    done = classify(Evidence(exits=(Exit(0, 0), Exit(1, 0)), finished=True))
    assert "neither statuses nor facts" in done.reason


# --- whose it is -----------------------------------------------------------------------------


def test_survivors_are_never_the_cause() -> None:
    """Rank 2 was killed; the others found out by their collectives, or were stopped."""
    exits = (
        Exit(0, 1, "a", said(RuntimeError(GLOO)), at=1.0),
        Exit(1, -signal.SIGABRT, "a", at=0.9),
        Exit(2, -signal.SIGKILL, "b", at=1.1),
        Exit(3, -signal.SIGTERM, "b", stopped=True, at=0.5),
        Exit(4, -signal.SIGKILL, "b", stopped=True, at=0.5),
    )
    for order in (exits, exits[::-1]):
        verdict = classify(Evidence(exits=order, step=3))
        assert (verdict.failure, verdict.culprit, verdict.place) == (F.F1, 2, "b"), verdict


def test_an_echo_of_a_higher_class_is_still_an_echo() -> None:
    """A timeout (F5) precedes a crash (F1), but not when it only tells of one."""
    late = Words("RuntimeError", WATCHDOG, frames=IN_COLLECTIVE)
    verdict = classify(Evidence(exits=(Exit(0, 1, "a", late), Exit(1, -9, "b")), step=3))
    assert (verdict.failure, verdict.culprit, verdict.also) == (F.F1, 1, (F.F5,))


def test_an_error_in_unknown_words_is_not_preferred_to_a_kill() -> None:
    exits = (
        Exit(0, 1, "a", said(RuntimeError("gone, in words of another version"))),
        Exit(1, -9, "b", at=9.0),
    )
    assert classify(Evidence(exits=exits, step=3)).culprit == 1


def test_the_earliest_of_two_equal_ends() -> None:
    exits = (Exit(0, 1, "a", said(ValueError("x")), at=2.0), Exit(1, 1, "b", said(ValueError("y")), at=1.0))
    assert classify(Evidence(exits=exits, step=3)).culprit == 1


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (GLOO, F.F17),
        (WATCHDOG, F.F5),
        ("Connection refused [127.0.0.1]:4", F.F17),
        ("NCCL communicator was aborted", F.F17),
    ],
)
def test_nothing_but_echoes_names_nobody(message: str, expected: F) -> None:
    words = Words("RuntimeError", message, frames=IN_COLLECTIVE)
    verdict = classify(Evidence(exits=(Exit(0, 1, "a", words), Exit(1, 1, "b", words)), step=3))
    assert (verdict.failure, verdict.culprit, verdict.place) == (expected, None, "")
    assert "none of a cause" in verdict.reason


def test_a_connection_that_a_script_loses_elsewhere_is_its_own_error() -> None:
    words = Words(
        "ConnectionRefusedError",
        "[Errno 111] Connection refused",
        frames=("train.py:log", "socket.py:connect"),
    )
    verdict = one(words)
    assert (verdict.failure, verdict.culprit) == (F.F1, 1)


@pytest.mark.parametrize("kind", ["DistNetworkError", "DistStoreError", "DistBackendError"])
def test_torch_s_errors_of_peers_are_echoes(kind: str) -> None:
    exits = (Exit(0, 1, "a", Words(f"torch.distributed.{kind}", "recvBytes")), Exit(1, -11, "b"))
    assert classify(Evidence(exits=exits, step=3)).culprit == 1


def test_torch_s_real_errors_are_known_by_their_names() -> None:
    torch = pytest.importorskip("torch")
    assert one(said(torch.OutOfMemoryError("CUDA out of memory"))).failure is F.F8
    assert one(said(torch.distributed.DistNetworkError("x"))).origin is Origin.SECONDARY


# --- facts beside the ends -------------------------------------------------------------------

FACTS = [
    (Evidence(cancelled="operator"), F.F19),
    (Evidence(newer="launch-b"), F.F14),
    (Evidence(refused="generation 3 is not the current one"), F.F14),
    (Evidence(numeric=Numeric("non-finite loss", 9, 1, "a")), F.F12),
    (Evidence(numeric=Numeric("replica differs", 9, 1, "a", proof=True)), F.F13),
    (Evidence(notice="SIGTERM"), F.F4),
    (Evidence(lost=tuple(Lost(n, "rack1") for n in "abc")), F.F3),
    (Evidence(lost=(Lost("a", "rack1"), Lost("b", "rack1"), Lost("c", "rack2"))), F.F2),
    (Evidence(waited="rendezvous of 2 nodes"), F.F18),
    (Evidence(stall=Stall("STEP", 12.0, 3.0, 1, "a", ("train.py:step",))), F.F5),
    (Evidence(unfit=Unfit("a", "30 % slower")), F.F6),
    (Evidence(), F.F1),
]


@pytest.mark.parametrize(
    ("evidence", "expected"), FACTS, ids=[f"{f.value}-{i}" for i, (_, f) in enumerate(FACTS)]
)
def test_facts_classify_without_any_exit(evidence: Evidence, expected: F) -> None:
    verdict = classify(evidence)
    assert verdict.failure is expected
    assert verdict.reason and verdict.signature


def test_a_stall_is_the_cause_and_the_stopped_workers_are_not() -> None:
    exits = (Exit(0, -9, "a", stopped=True), Exit(1, -15, "b", stopped=True))
    verdict = classify(
        Evidence(exits=exits, step=5, stall=Stall("STEP", 12.0, 3.0, 1, "b", ("train.py:step",)))
    )
    assert (verdict.failure, verdict.culprit, verdict.place, verdict.step) == (F.F5, 1, "b", 5)
    assert "train.py:step" in verdict.reason and "12.0 s" in verdict.reason


def test_a_numeric_finding_is_placed_by_the_worker_that_ended_of_it() -> None:
    fault = errors.NumericFault("nan", failure="F12", signature="x", onset=3, found=4)
    exits = (Exit(0, 1, "a", said(RuntimeError(GLOO))), Exit(1, 77, "b", said(fault, 4)))
    verdict = classify(Evidence(exits=exits, step=4, numeric=Numeric("non-finite loss", 3)))
    assert (verdict.failure, verdict.step, verdict.culprit, verdict.place) == (F.F12, 3, 1, "b")


def test_how_long_it_took_to_be_seen() -> None:
    assert one(status=-9, quiet_s=0.3).detect_s == 0.3
    assert one(status=-9).detect_s is None
    assert classify(Evidence(stall=Stall("STEP", 12.0, 3.0))).detect_s == 12.0


def test_of_several_the_first_in_precedence_counts_and_the_others_are_told() -> None:
    verdict = classify(
        Evidence(exits=(Exit(0, -9, "a"),), cancelled="operator", newer="b", notice="SIGTERM", step=1)
    )
    assert verdict.failure is F.F19
    assert verdict.also == (F.F14, F.F4, F.F1)


def test_a_stopped_worker_s_words_of_objects_and_numbers_still_count() -> None:
    exits = (
        Exit(0, -9, "a"),
        Exit(1, 1, "a", said(errors.RecordError("s/1.tar", 3, "bad")), stopped=True),
        Exit(2, 1, "a", said(errors.UsageError("interrupted")), stopped=True),
    )
    verdict = classify(Evidence(exits=exits, step=1))
    assert (verdict.failure, verdict.object, verdict.also) == (F.F9, "s/1.tar", (F.F1,))


@pytest.mark.parametrize(
    "error", [errors.NoUsableCheckpoint("none left"), errors.JournalBrokenError("journal/5", "x")]
)
def test_where_nothing_is_left_to_restore_it_says_that_no_restart_helps(error: Exception) -> None:
    assert one(said(error)).hopeless
    assert not one(said(errors.DigestMismatchError(CHECKPOINT, "x"))).hopeless


# --- the table -------------------------------------------------------------------------------


def test_the_table_and_the_precedence_are_total() -> None:
    assert set(TABLE) == set(F) == set(PRECEDENCE)
    assert len(PRECEDENCE) == len(F)
    named = [F.F19, F.F14, F.F16, F.F7, F.F13, F.F12, F.F11, F.F9, F.F3, F.F2, F.F5, F.F8, F.F1]
    assert [f for f in PRECEDENCE if f in named] == named
    assert first([F.F1, F.F9, F.F12]) is F.F12


def test_what_is_planned_or_fenced_is_never_charged_and_what_is_not_retried_neither() -> None:
    assert not any(TABLE[f].charged for f in (F.F4, F.F6, F.F14, F.F19))
    assert not any(row.charged for row in TABLE.values() if row.retry is Retry.NONE)
    assert TABLE[F.F9].quarantine is Unit.DATA and TABLE[F.F16].exit_code == 2
