"""L3. What numeric findings say of checkpoints, and which are known good: pure decisions.

A checkpoint with the right checksums may hold wrong values: nothing of it says so but these records. A
finding has an onset, the first step that is not trusted. What lies at or after it is *tainted* as long as it
is on the lineage: for silent corruption (F13) with everything that was trained from it, for non-finite values
and spikes (F12) up to the step where they were found, since what follows is judged again. A *known-good* mark
says which detectors have judged the steps after a checkpoint and found nothing; a finding revokes it.
"""

from __future__ import annotations

from collections.abc import Iterator

from durable_core.commit.state import CheckpointInfo, Failure, RunState

#: Failure classes that are found in numbers.
NUMERIC = frozenset({"F12", "F13"})


def left_out(state: RunState) -> frozenset[int]:
    """The checkpoints in quarantine: those that a record's ``name`` is a key of. A later one may lift it."""
    names: dict[str, bool] = {}
    for line in state.quarantines:
        if line.get("unit") == "checkpoint":
            names[str(line.get("name", ""))] = not line.get("lifted")
    out = tuple(name for name, stands in names.items() if stands)
    if not out:
        return frozenset()
    committed = (info for info in state.checkpoints.values() if info.manifest)
    homes = {info.manifest.rpartition("/")[0] + "/": info.c for info in committed}
    return frozenset(c for home, c in homes.items() if any(name.startswith(home) for name in out))


def findings(state: RunState) -> Iterator[tuple[Failure, int]]:
    """The numeric failures that name their onset, and it; oldest first."""
    for failure in state.failures:
        onset = failure.payload["step"]
        if failure.payload["class"] in NUMERIC and onset is not None:
            yield failure, onset


def is_known(state: RunState, failure_class: str, signature: str, onset: int) -> bool:
    """The current generation has told of this already: the same signature, and an onset not later than this
    one that had not been found before it."""
    return any(
        failure.generation == state.generation
        and (failure.payload["class"], failure.payload["signature"]) == (failure_class, signature)
        and begun <= onset <= _found(failure, begun) + 1
        for failure, begun in findings(state)
    )


def tainted(state: RunState) -> dict[int, Failure]:
    """The checkpoints of the head's lineage that a finding speaks against, each with the first one that
    does."""
    rows = [state.checkpoints[c] for c in state.lineage()]
    taint: dict[int, Failure] = {}
    for failure, onset in findings(state):
        known = [info for info in rows if info.generation <= failure.generation]
        lasting = failure.payload["class"] == "F13"
        until = None if lasting else _found(failure, onset)
        suspects = [info for info in known if info.step >= onset and (until is None or info.step <= until)]
        if lasting and suspects:  # later generations have started from the last of them
            suspects += rows[len(known) :]
        for info in suspects:
            taint.setdefault(info.c, failure)
    return taint


def due(state: RunState, vindicated: int) -> CheckpointInfo | None:
    """The checkpoint to mark now: the newest of the lineage up to step ``vindicated``, unless it is
    marked."""
    taint = tainted(state)
    for c in reversed(state.lineage()):
        info = state.checkpoints[c]
        if info.usable and info.step <= vindicated and c not in taint:
            return None if info.known_good else info
    return None


def revocable(state: RunState) -> dict[int, Failure]:
    """The marks that a finding speaks against."""
    return {c: failure for c, failure in tainted(state).items() if state.checkpoints[c].known_good}


def stopped_for(state: RunState) -> int | None:
    """The onset that the current generation has ended itself for; ``None``: it has not. Whoever comes next
    goes back behind it, with a launcher or without."""
    onsets = [
        onset
        for failure, onset in findings(state)
        if failure.generation == state.generation and _evidence(failure).get("action") == "stop"
    ]
    return min(onsets, default=None)


def _found(failure: Failure, onset: int) -> int:
    found = _evidence(failure).get("found")
    return found if isinstance(found, int) else onset


def _evidence(failure: Failure) -> dict[str, object]:
    """What ``session.marking`` wrote; others write what they like."""
    evidence = failure.payload["evidence"]
    return evidence if isinstance(evidence, dict) else {}
