"""L6. Scenarios in which storage, or what lies in it, is at fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median

from durable_core.format.record import Kind
from durable_core.testing.drills import namespaces
from durable_core.testing.drills.checks import Incident
from durable_core.testing.drills.ground import DrillFailed, Ground
from durable_core.testing.drills.orders import Injection
from durable_core.testing.drills.undefended import HANGING_S

#: Larger than what the job saves in all, smaller than what it does not notice.
DISK_MB = 24
TROUBLE_S = 3.0


def slow(ground: Ground, defended: bool) -> Incident:
    """Training goes on at its pace while saves take seconds: steps are done while nothing is committed."""
    ground.order(Injection("disk", step=12, argument="slow"), steps=60, wait=not defended)
    launched = ground.launch()
    ground.until_step(40, rank=0)
    times = {mark.step: mark.time for mark in ground.marks() if mark.what == "step" and mark.rank == 0}
    before = median(times[step] - times[step - 1] for step in range(3, 12))
    after = (times[40] - times[12]) / 28
    late = after > 2 * before + HANGING_S / 10
    pace = f"a step took {after:.3f} s on average, and {before:.3f} s before" if late else ""
    return Incident(times[12], ((ground.wait(launched), 0),), {"pace": pace})


def read_only(ground: Ground, defended: bool) -> Incident:
    def trouble(inside: namespaces.Inside, at: Path) -> Callable[[], None]:
        namespaces.read_only(inside, at, on=True)
        return lambda: namespaces.read_only(inside, at, on=False)

    return _storage_trouble(ground, defended, trouble)


def full(ground: Ground, defended: bool) -> Incident:
    def trouble(inside: namespaces.Inside, at: Path) -> Callable[[], None]:
        filler = inside.path(at) / "filler"
        with filler.open("wb") as file:
            try:
                while True:
                    file.write(b"\0" * 65536)
                    file.flush()
            except OSError:
                pass  # no room is left, as intended
        return filler.unlink

    return _storage_trouble(ground, defended, trouble)


def _storage_trouble(
    ground: Ground, defended: bool, trouble: Callable[[namespaces.Inside, Path], Callable[[], None]]
) -> Incident:
    """Steps go on while nothing can be saved; when the trouble is over, checkpoints come again."""
    with namespaces.machine() as inside:
        disk = ground.base / "disk"
        namespaces.disk(inside, disk, DISK_MB)
        ground.prefix = inside.prefix
        ground.order(steps=90, on_breach="continue" if defended else "abort", rpo_steps=8)
        ground.at(str(disk / "run"))
        ground.seen_at = str(inside.path(disk / "run"))
        launched = ground.launch("--max-restarts", "0")
        ground.until_step(12)
        over = trouble(inside, disk)
        began = ground.clock.monotonic()
        fault = ground.until_reached(40)
        over()
        code = ground.wait(launched)
        ground.keep(inside.path(disk / "run"))
    return Incident(began, ((code, 0),), {"went on": fault})


def damaged_shard(ground: Ground, defended: bool) -> Incident:
    """The launch dies, the newest checkpoint is damaged, and the next start goes back to the one before."""
    ground.order(without=() if defended else ("verification",))
    first = ground.launch()
    ground.until_step(23)
    ground.kill(first)
    began = ground.clock.monotonic()
    reader = ground.reader
    info = reader.newest_usable()
    shard = Path(ground.orders.root) / reader.manifest(info).objects[0].key
    damage(shard, truncated=ground.chance.random() < 0.5 and defended)
    code = ground.wait(ground.launch())
    stepped = any(
        entry.record.kind is Kind.CHECKPOINT_CORRUPT and entry.record.payload["c"] == info.c
        for entry in ground.reader.entries()
    )
    return Incident(began, ((code, 0),), {"stepped down": "" if stepped else f"c{info.c} was believed"})


def damage(path: Path, *, truncated: bool) -> None:
    """Half of it is gone; or one bit of its last byte differs."""
    data = bytearray(path.read_bytes())
    if not data:
        raise DrillFailed(f"{path} is empty")
    if truncated:
        del data[len(data) // 2 :]
    else:
        data[-1] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


def missing_data(ground: Ground, defended: bool) -> Incident:
    """Gone before the start; put back when the failure that names it is in the journal."""
    ground.order()
    lost = Path(ground.orders.data) / "part-2.jsonl"
    away = lost.with_suffix(".away")
    lost.rename(away)
    launched = ground.launch(*(() if defended else ("--max-restarts", "0")))

    def named() -> bool:
        return ground.has_run() and any(
            "part-2" in str(each.payload) for each in ground.reader.state.failures
        )

    ground.until_true("the missing object to be named", named)
    began = ground.clock.monotonic()
    away.rename(lost)
    return Incident(began, ((ground.wait(launched), 0),))
