"""L6. ``durable scrub``: every stored byte read again, in each place; with ``--repair`` made whole again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from durable_core.cli.output import CORRUPT, FAILED, OK, Answer, Table
from durable_core.clock import SystemClock
from durable_core.commit.claim import mark_corrupt
from durable_core.commit.state import CheckpointInfo, RunState
from durable_core.engine import repair as engine
from durable_core.engine.copies import Fault, Place, parts
from durable_core.engine.inspect import Reader, open_run, open_tier
from durable_core.engine.performer import Performer
from durable_core.engine.transfer import Inventory
from durable_core.errors import CorruptError, ObjectNotFoundError, UsageError
from durable_core.format import layout
from durable_core.format.manifest import Manifest
from durable_core.session.goals import default_traits
from durable_core.tier.limit import RateLimit
from durable_core.tier.posix import PosixTier


@dataclass(frozen=True)
class Held:
    """The checkpoints whose bytes must be there. ``unread``: manifests that are damaged or gone."""

    home: str
    state: RunState
    infos: Mapping[int, CheckpointInfo]
    manifests: Mapping[int, Manifest]
    unread: Mapping[int, Fault]

    @classmethod
    def of(cls, reader: Reader) -> Held:
        """Raises the tier's errors: nothing is decided without a manifest that may well be whole."""
        infos = {info.c: info for info in reader.retained()}
        manifests: dict[int, Manifest] = {}
        unread: dict[int, Fault] = {}
        for c, info in infos.items():
            try:
                manifests[c] = reader.manifest(info)
            except (CorruptError, ObjectNotFoundError) as error:
                unread[c] = Fault.of(reader.home, info.manifest, error)
        return cls(reader.home, reader.state, infos, manifests, unread)

    def expects(self, fault: Fault) -> bool:
        """Whether it is a fault that something is not there: only where the journal says that it is.

        The root has all objects of a checkpoint of which the journal says so. A disk in front of it has those
        that were written while it stood there; of several writers each host's disk has that host's only.
        """
        if fault.kind != "missing":
            return True
        users = [
            c
            for c, manifest in self.manifests.items()
            if any(each.key == fault.object for each in manifest.objects)
        ]
        if fault.place == self.home:
            return any(fault.place in self.infos[c].tiers for c in users)
        key = layout.parse_checkpoint_key(fault.object)
        owner = None if key is None else self.state.checkpoints.get(key.name.c)
        alone = all(len(self.manifests[c].roles) == 1 for c in users)
        return owner is not None and fault.place in owner.tiers and alone


@dataclass(frozen=True)
class Mark:
    """A checkpoint that needs bytes of which no whole copy is left. ``unseen``: why it was not marked."""

    c: int
    objects: tuple[str, ...]
    unseen: str = ""


def scrub(root: str, *, disk: str | None, rate: int | None, repair: bool) -> Answer:
    clock = SystemClock()
    reader = open_run(root)
    places = _places(reader, disk)
    limit = None if rate is None else RateLimit(rate, clock)
    held = Held.of(reader)
    inventory = Inventory(held.manifests.values())
    found = list(engine.scrub(places, inventory, limit=limit))
    # Beside a live run: what was retired while it was read is no loss.
    held = Held.of(open_tier(reader.tier))
    inventory = Inventory(held.manifests.values())
    faults = [
        fault
        for scrubbed in found
        for fault in scrubbed.faults
        if fault.object in inventory.objects and held.expects(fault)
    ]
    repairs: tuple[engine.Repair, ...] = ()
    marks: list[Mark] = []
    if repair:
        repairs = engine.repair(faults, places, inventory, limit=limit)
        marks = _mark(reader, held, found, repairs, places)
    copies = {
        key: count for key, count in engine.lasting_copies(found, places, inventory).items() if count < 2
    }
    return _answer(places, found, [*held.unread.values(), *faults], repairs, marks, copies)


def _places(reader: Reader, disk: str | None) -> tuple[Place, ...]:
    """Fastest first."""
    home = Place(reader.home, reader.tier, default_traits(reader.home))
    if disk is None:
        return (home,)
    if home.name == "disk":
        raise UsageError(
            f"the run at {reader.tier.location} began without a disk in front of it", hint="leave out --disk"
        )
    if not Path(disk).is_dir():
        raise UsageError(f"--disk {disk}: no such directory")
    return Place("disk", PosixTier(Path(disk)), default_traits("disk")), home


def _mark(
    reader: Reader, held: Held, found: Sequence[engine.Scrubbed], repairs: Iterable[engine.Repair],
    places: Sequence[Place],
) -> list[Mark]:  # fmt: skip
    """Journal which checkpoints cannot be restored any more, from any place."""
    lost = {each.object for each in repairs if each.outcome is engine.Outcome.LOST}
    whole = {(extent.xxh3, extent.nbytes) for scrubbed in found for extent in scrubbed.whole}
    clock = SystemClock()
    performer, launch, view = Performer(reader.tier, clock), clock.new_id(), reader.view
    marks = []
    for c, info in held.infos.items():
        if not info.usable:
            continue
        manifest = held.manifests.get(c)
        gone = {held.unread[c].object} if manifest is None else _gone(manifest, lost, whole)
        if not gone:
            continue
        unseen = "" if manifest is None else _unseen(info, manifest, places)
        marks.append(Mark(c, tuple(sorted(gone)), unseen))
        if not unseen:
            reason = f"scrub: no whole copy is left of {', '.join(sorted(gone)[:3])}"
            view = performer.run(
                mark_corrupt(view, c, launch_id=launch, reason=reason, objects=tuple(sorted(gone)))
            )
    return marks


def _gone(manifest: Manifest, lost: set[str], whole: set[tuple[str, int]]) -> set[str]:
    """The lost objects that hold bytes which the checkpoint needs and nothing else has."""
    return {
        same[0].extent.object
        for entry in manifest.tensors.values()
        for piece in entry.slices
        for same in parts(piece)
        if same[0].extent.object in lost
        and not any((each.extent.xxh3, each.extent.nbytes) in whole for each in same)
    }


def _unseen(info: CheckpointInfo, manifest: Manifest, places: Sequence[Place]) -> str:
    """Why nobody can say here that it is lost: copies may be where this command did not look."""
    names = {place.name for place in places}
    if absent := sorted(set(info.tiers) - names):
        return f"not marked: tier {', '.join(absent)} was not read (--disk)"
    if len(places) > 1 and len(manifest.roles) > 1:
        return "not marked: other hosts have disks of their own"
    return ""


def _answer(
    places: Sequence[Place], found: Sequence[engine.Scrubbed], faults: Sequence[Fault],
    repairs: Sequence[engine.Repair], marks: Sequence[Mark], copies: Mapping[str, int],
) -> Answer:  # fmt: skip
    done = {(each.place, each.object): each for each in repairs}
    left = [
        fault
        for fault in faults
        if (fault.place, fault.object) not in done
        or done[fault.place, fault.object].outcome is not engine.Outcome.REPAIRED
    ]
    document = {
        "ok": not left,
        "places": [{"name": place.name, "location": place.tier.location} for place in places],
        "objects": len({scrubbed.object for scrubbed in found}),
        "faults": [asdict(fault) for fault in faults],
        "copies_below_two": dict(copies),
        "repairs": [{**asdict(each), "outcome": each.outcome.name.lower()} for each in repairs],
        "lost": [asdict(mark) for mark in marks],
    }
    human: list[Table | str] = []
    if faults:
        lines = [
            (
                fault.place, fault.object, fault.kind,
                done[fault.place, fault.object].outcome.name.lower()
                if (fault.place, fault.object) in done else "-",
                fault.reason,
            )
            for fault in faults
        ]  # fmt: skip
        human.append(Table(("place", "object", "what", "repair", "reason"), lines))
    if marks:
        rows = [(mark.c, mark.unseen or "marked corrupt", ", ".join(mark.objects)) for mark in marks]
        human.append(Table(("lost: c", "journal", "objects"), rows))
    one = sum(1 for count in copies.values() if count == 1)
    human.append(
        f"{document['objects']} objects read in {' and '.join(place.name for place in places)}: "
        f"{len(faults)} faults, {len(faults) - len(left)} repaired; "
        f"{one} objects have one lasting copy, {len(copies) - one} none"
    )
    damaged = any(fault.kind != "unreadable" for fault in left)
    return Answer(document, human, CORRUPT if damaged else FAILED if left else OK)
