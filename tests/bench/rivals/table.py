"""Every variant that is measured, and how it makes its bytes durable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from tests.bench.rivals import plain_rivals as plain
from tests.bench.rivals.meters import Plan, Tape
from tests.bench.rivals.workload import Workload

Kind = Literal["none", "sync", "async", "ours"]
ITSELF = "by itself"
IN_STALL = "file and directory, in the stall, as a careful script does it"
ADDED = "added by the benchmark: in the time to durable, not in the stall"
DIRECTORY = "files by itself; the directory added by the benchmark, not in the stall"


@dataclass(frozen=True)
class Variant:
    kind: Kind
    needs: str
    fsync: str
    run: Callable[[Workload, Plan, Path, Tape], None]

    @property
    def installed(self) -> bool:
        return find_spec(self.needs) is not None


def _plain(make: plain.Make) -> Callable[[Workload, Plan, Path, Tape], None]:
    return partial(plain.train, make=make)


def _lightning(name: str) -> Callable[[Workload, Plan, Path, Tape], None]:
    def run(work: Workload, plan: Plan, base: Path, tape: Tape) -> None:
        from tests.bench.rivals import lightning_rivals

        getattr(lightning_rivals, name)(work, plan, base, tape)

    return run


VARIANTS: dict[str, Variant] = {
    "nothing": Variant("none", "torch", "nothing is written", _plain(plain.nothing)),
    "torch_save": Variant("sync", "torch", IN_STALL, _plain(plain.torch_save)),
    "safetensors": Variant("sync", "safetensors", IN_STALL, _plain(plain.safetensors)),
    "dcp_sync": Variant("sync", "torch", DIRECTORY, _plain(plain.dcp_sync)),
    "dcp_thread": Variant("async", "torch", DIRECTORY, _plain(plain.dcp_thread)),
    "dcp_overlapped": Variant("async", "torch", DIRECTORY, _plain(plain.dcp_overlapped)),
    "dcp_process": Variant("async", "torch", DIRECTORY, _plain(plain.dcp_process)),
    "accelerate": Variant("sync", "accelerate", ADDED, _plain(plain.accelerate)),
    "lightning_sync": Variant("sync", "lightning", ADDED, _lightning("lightning_sync")),
    "lightning_async": Variant("async", "lightning", ADDED, _lightning("lightning_async")),
    "durable_session": Variant("ours", "durable_core.session.plain", ITSELF, _plain(plain.durable_session)),
    "durable_memory": Variant("ours", "durable_core.session.plain", ITSELF, _plain(plain.durable_memory)),
    "durable_lightning": Variant("ours", "lightning_durable", ITSELF, _lightning("durable_lightning")),
}
