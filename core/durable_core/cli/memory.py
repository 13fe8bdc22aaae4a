"""L6. Commands on copies in memory: ``snapshots``, ``gc --memory``, and ``secret`` for the peers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from durable_core.cli.output import FAILED, OK, Answer, Table, human_bytes
from durable_core.clock import SystemClock
from durable_core.commit.state import RunState
from durable_core.engine import heartbeat
from durable_core.engine.inspect import Reader, open_run
from durable_core.errors import DurableError, UsageError
from durable_core.format import layout
from durable_core.state.snapshots import SlotMemory, is_live, leftovers
from durable_core.tier.peer.client import PeerTier
from durable_core.tier.peer.secret import find_secret, write_secret


@dataclass(frozen=True)
class Row:
    """One sealed slot. ``bytes``: of its tensors; ``live``: a process owns it and may write into it."""

    run: str
    generation: int
    step: int
    role: str
    bytes: int
    live: bool
    file: str


def snapshots(root: str | None, directory: str) -> Answer:
    """What is sealed in this host's memory: for one run, or for every run of this user."""
    where = Path(directory)
    one = None if root is None else open_run(root).state.run_id
    runs = [each.run_id for each in leftovers(where)] if one is None else [one]
    rows: list[Row] = []
    refused: list[dict[str, str]] = []
    for run_id in runs:
        sealed, others = _survey(SlotMemory(run_id, directory=where))
        rows += sealed
        refused += [{"run": run_id, "file": name, "reason": others[name]} for name in sorted(others)]
    human: list[Table | str] = []
    if rows:
        human.append(
            Table(
                ("run", "gen", "step", "role", "bytes", "owner"),
                [
                    (r.run, r.generation, r.step, r.role, human_bytes(r.bytes), "lives" if r.live else "dead")
                    for r in rows
                ],
            )
        )
    else:
        human.append("no sealed snapshots in this host's memory")
    if refused:
        lines = [(each["run"], each["file"], each["reason"]) for each in refused]
        human.append(Table(("run", "file", "is no snapshot because"), lines))
    return Answer({"snapshots": [asdict(row) for row in rows], "refused": refused}, human)


def list_leftovers(directory: str, *, force: bool) -> Answer:
    """Every run's slots; with ``force`` those of dead owners are removed, whatever run they are of."""
    where = Path(directory)
    runs = [each for each in leftovers(where) if each.nbytes]
    freed = {run.run_id: SlotMemory(run.run_id, directory=where).free() if force else 0 for run in runs}
    document = {"runs": [{**asdict(run), "freed": freed[run.run_id]} for run in runs]}
    if not runs:
        return Answer(document, ["nothing in this host's memory"])
    columns = ("run", "bytes", "owner", "freed")
    lines = [
        (
            run.run_id, human_bytes(run.nbytes), "lives" if run.live else "dead",
            human_bytes(freed[run.run_id]),
        )
        for run in runs
    ]  # fmt: skip
    hint = "" if force else "nothing was freed: name a ROOT, or free what dead processes left with --force"
    return Answer(document, [Table(columns, lines), *([hint] if hint else [])])


def free(root: str, directory: str, peers: Sequence[str], secret_file: str | None, *, force: bool) -> Answer:
    """Remove one run's slots of dead owners; ``peers`` (``host:port``) forget what they keep of it.

    Without ``force`` nothing is freed that the next start would go on from.
    """
    reader = open_run(root)
    state = reader.state
    memory = SlotMemory(state.run_id, directory=Path(directory))
    secret = find_secret(os.environ, secret_file) if peers else None
    tiers = [
        PeerTier(each, run_id=state.run_id, generation=state.generation, secret=secret)
        for each in peers
        if secret is not None
    ]
    if not force and (reason := _needed(reader, memory, tiers)):
        return Answer(
            {"run": state.run_id, "freed": 0, "peers": [], "refused": reason},
            [f"nothing was freed: {reason}", "free it all the same with --force"],
            FAILED,
        )
    freed = memory.free()
    human: list[Table | str] = [f"{human_bytes(freed)} freed on this host"]
    forgotten: list[dict[str, object]] = []
    for tier in tiers:
        problem, there = "", 0
        try:
            there = tier.forget()
        except DurableError as error:  # the other peers are asked all the same
            problem = str(error)
        finally:
            tier.close()
        forgotten.append({"peer": tier.location, "freed": there, "problem": problem or None})
        human.append(f"{tier.location}: {problem or human_bytes(there) + ' freed'}")
    document = {"run": state.run_id, "freed": freed, "peers": forgotten, "refused": None}
    return Answer(document, human, FAILED if any(each["problem"] for each in forgotten) else OK)


def secret(file: str) -> Answer:
    try:
        write_secret(file)
    except FileExistsError as error:
        raise UsageError(f"{file} is there already", hint="a secret is never overwritten") from error
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from error
    path = str(Path(file).absolute())
    return Answer({"file": path}, [f"DURABLE_PEER_SECRET_FILE={path}"])


def _survey(memory: SlotMemory) -> tuple[list[Row], dict[str, str]]:
    survey = memory.survey()
    rows = []
    for snapshot in survey.snapshots:
        with snapshot:
            try:
                live = is_live(snapshot.path)
            except FileNotFoundError:
                continue  # freed meanwhile
            seal = snapshot.seal
            rows.append(
                Row(
                    memory.run_id, seal.generation, seal.step, seal.role, seal.nbytes, live,
                    snapshot.path.name,
                )
            )  # fmt: skip
    return rows, survey.refused


def _needed(reader: Reader, memory: SlotMemory, peers: Sequence[PeerTier]) -> str:
    """Why these snapshots should be kept; ``""``: nothing would go on from them."""
    state = reader.state
    if state.terminal is not None:
        return ""
    rows, _ = _survey(memory)
    steps = [(row.generation, row.step) for row in rows if not row.live]
    for tier in peers:
        found = map(layout.parse_snapshot_key, tier.list(layout.SNAPSHOTS))
        steps += [(each.generation, each.step) for each in found if each is not None]
    newest = _adoptable(state, steps)
    if newest is not None:
        committed = (
            "nothing is committed" if state.head_step is None else f"the newest commit is {state.head_step}"
        )
        return f"step {newest} is only in memory ({committed}), and the next start may go on from it"
    owner = heartbeat.read(reader.tier) if peers else None
    if owner is not None:
        alive, why = owner.alive(SystemClock().now())
        if alive:  # this host's slots are protected by their locks, the peers' copies by nothing
            return f"the run is being trained ({why}), and its peers are to forget it"
    return ""


def _adoptable(state: RunState, steps: Iterable[tuple[int, int]]) -> int | None:
    """The newest step beyond the newest commit that the current generation sealed: the next one to start
    replaces that generation and adopts of no other (``commit.adopt``)."""
    head = -1 if state.head_step is None else state.head_step
    return max((s for generation, s in steps if generation >= state.generation and s > head), default=None)
