"""``python -m tests.torture.bitflip``: damage the files of a committed checkpoint, one at a time.

Each trial copies a small run, flips one random bit of one file of its newest checkpoint (or cuts the
file short at a random length), and then asks for two things: ``verify`` finds it, naming that file;
and a restore uses no damaged byte: it returns the newest checkpoint exactly as it was saved (when
the file is not needed to restore) or the one before exactly as *it* was saved. Prints one JSON
report; exits 1 when a single trial went wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from durable_core.data import DurableLoader
from durable_core.engine.inspect import open_run
from durable_core.engine.verify import verify
from durable_core.session import Run, Settings

STEPS = (0, 2, 4)
KINDS = ("shard", "manifest", "receipt", "segment", "index")
#: a file that restoring does not read: the newest checkpoint is still whole without it
NOT_RESTORED = frozenset({"receipt", "segment", "index"})


@dataclass
class Tally:
    """``restored``: trials by which checkpoint came back. ``faults``: what must never be there."""

    trials: int = 0
    damaged: Counter[str] = field(default_factory=Counter)
    detected: int = 0
    restored: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "trials": self.trials,
            "damaged": dict(sorted(self.damaged.items())),
            "detected": self.detected,
            "restored": dict(sorted(self.restored.items())),
            "faults": self.faults,
        }


def state_at(step: int) -> dict[str, Any]:
    """A state that differs in every byte from step to step, in several dtypes."""
    stream = torch.Generator().manual_seed(1000 + step)
    return {
        "w": torch.randn(64, 17, generator=stream),
        "half": torch.randn(311, generator=stream).to(torch.bfloat16),
        "count": torch.randint(0, 1 << 40, (29,), generator=stream),
        "mask": torch.rand(53, generator=stream) > 0.5,
        "step": step,
    }


def make_run(root: Path) -> None:
    """A run with a checkpoint at each of ``STEPS``, and a ledger."""
    loader = DurableLoader(list(range(64)), batch_size=8, shuffle=True, seed=3)
    run = Run.open(root)
    run.confirm()
    batches = iter(loader)
    for step in range(STEPS[-1] + 1):
        if step:
            next(batches)
            loader.acknowledge(1, step=step)
        if step in STEPS:
            rows = loader.drain_rows()
            run.save(state_at(step), {}, step=step, cursor=loader.state_dict(), rows=rows, wait=True)
    run.close()


def files_of_newest(root: Path) -> dict[str, Path]:
    """Kind -> the file of that kind that belongs to the newest checkpoint."""
    info = open_run(root).newest_usable()
    home = (root / info.manifest).parent
    assert info.ledger is not None
    index = root / info.ledger[0]
    return {
        "shard": home / "shard-dp0.safetensors",
        "manifest": home / "manifest.json",
        "receipt": home / "receipt-dp0.json",
        "segment": index.with_name("dp0.safetensors"),
        "index": index,
    }


def damage(path: Path, chance: random.Random) -> str:
    """Flip one bit, or (one time in five) cut the file; says what was done."""
    data = bytearray(path.read_bytes())
    if chance.random() < 0.2:
        length = chance.randrange(len(data))
        del data[length:]
        what = f"cut to {length} bytes"
    else:
        bit = chance.randrange(8 * len(data))
        data[bit // 8] ^= 1 << bit % 8
        what = f"bit {bit} flipped"
    path.chmod(0o644)
    path.write_bytes(data)
    return what


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, torch.Tensor):
        return isinstance(found, torch.Tensor) and found.dtype == wanted.dtype and torch.equal(found, wanted)
    return bool(found == wanted)


def trial(root: Path, kind: str, chance: random.Random, tally: Tally) -> None:
    """One damage to one copy of the run at ``root``."""
    victim = files_of_newest(root)[kind]
    key = victim.relative_to(root).as_posix()
    what = f"{kind}: {damage(victim, chance)}"
    tally.trials += 1
    tally.damaged[kind] += 1
    findings = verify(open_run(root)).findings
    if {finding.key for finding in findings} == {key}:
        tally.detected += 1
    else:
        tally.faults.append(f"{what}: verify found {[finding.key for finding in findings]}")
    run = Run.open(root, settings=Settings(takeover=True))
    try:
        loaded = run.load()
    finally:
        run.close()
    wanted = state_at(loaded.step)
    if any(not same(loaded.state.get(name), value) for name, value in wanted.items()):
        tally.faults.append(f"{what}: step {loaded.step} was restored with other values")
    expected = STEPS[-1] if kind in NOT_RESTORED else STEPS[-2]
    if loaded.step != expected:
        tally.faults.append(f"{what}: step {loaded.step} was restored, not {expected}")
    tally.restored["newest" if loaded.step == STEPS[-1] else "the one before"] += 1


def campaign(trials: int, seed: int, home: Path) -> Tally:
    """``trials`` damages, the kinds of file in turn."""
    tally = Tally()
    make_run(home / "original")
    chance = random.Random(seed)
    for number in range(trials):
        copy = Path(shutil.copytree(home / "original", home / "copy"))
        trial(copy, KINDS[number % len(KINDS)], chance, tally)
        shutil.rmtree(copy)
    return tally


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Flip bits in a committed checkpoint's files.")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as home:
        tally = campaign(options.trials, options.seed, Path(home))
    print(json.dumps(tally.to_json(), indent=2))
    return 1 if tally.faults or tally.detected != tally.trials else 0


if __name__ == "__main__":
    sys.exit(main())
