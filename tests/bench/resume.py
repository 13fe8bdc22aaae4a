"""How long until the first batch after a restart deep inside an epoch, and what it takes: ours beside peers.

Every figure comes from a process of its own; peers that are not installed are left out. Prints one JSON
document of medians over ``--reps`` interleaved repetitions:

    first_batch_ms  from the restored state to the first batch in hand (imports and the dataset excluded)
    cpu_ms          CPU of the process, and of its workers, in that time
    extra_mib       growth of the process's peak memory in that time
    state_bytes     the state as JSON; state_us: what taking it costs
    right           the first batch is the one the uninterrupted run gives (where that can be said)

    python -m tests.bench.resume [--reps 3] [--only durable,grain] [--peer-size 10000000]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import statistics
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BATCH = 256
HUGE = 2 * 10**9  # ours and grain's: half of it is position 10^9
TRILLION = 10**12
LIMIT_S = 900

Figures = dict[str, Any]


class Numbers:
    """A map-style dataset whose record i is i: reading costs nothing."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


def measured(first_batch: Callable[[], Any]) -> tuple[Any, Figures]:
    def cpu() -> float:
        who = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
        return sum(each.ru_utime + each.ru_stime for each in who)

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun, spent = time.perf_counter(), cpu()
    batch = first_batch()
    figures = {
        "first_batch_ms": round((time.perf_counter() - begun) * 1e3, 2),
        "cpu_ms": round((cpu() - spent) * 1e3, 2),
        "extra_mib": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) / 1024, 1),
    }
    return batch, figures


def state_cost(take: Callable[[], Any], repeats: int = 200) -> Figures:
    took = []
    for _ in range(repeats):
        begun = time.perf_counter()
        state = take()
        took.append(time.perf_counter() - begun)
    size = len(json.dumps(state, default=str))
    return {"state_bytes": size, "state_us": round(statistics.median(took) * 1e6, 1)}


# --- ours ------------------------------------------------------------------------------------


def durable(size: int, workers: int) -> Figures:
    from durable_core.data import DurableLoader, FullPermutation

    def make() -> Any:
        return DurableLoader(Numbers(size), BATCH, seed=1, num_workers=workers)

    next(
        iter(DurableLoader(Numbers(4 * BATCH), BATCH, seed=1))
    )  # torch's own first use, as the peers have it
    state = {**make().state_dict(), "batch": size // 2 // BATCH}
    loader = make()

    def first() -> Any:
        loader.load_state_dict(state)
        return next(iter(loader))

    batch, figures = measured(first)
    order = FullPermutation(size, dataset_id=loader.dataset_id, seed=1)
    start = state["batch"] * BATCH
    figures["right"] = batch.tolist() == order.ids(0, start, start + BATCH).tolist()
    return {**figures, **state_cost(loader.state_dict)}


# --- peers -----------------------------------------------------------------------------------


def torchdata_shuffle(size: int, workers: int) -> Figures:
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader

    def make() -> Any:
        torch.manual_seed(1)
        return StatefulDataLoader(Numbers(size), BATCH, shuffle=True, num_workers=workers)

    loader = make()
    taken = iter(loader)
    next(taken)
    state = loader.state_dict()
    position = size // 2 // BATCH
    # What a loader at that position would have saved: reading half an epoch to learn it proves nothing more.
    for name in ("_sampler_iter_yielded", "_num_yielded"):
        state[name] = position
    inner = state.get("_sampler_iter_state")
    if isinstance(inner, dict) and "samples_yielded" in inner:
        inner["samples_yielded"] = position * BATCH
    loader = make()
    loader.load_state_dict(state)
    _, figures = measured(lambda: next(iter(loader)))
    return {**figures, **state_cost(loader.state_dict, 20)}


def grain_shuffle(size: int, workers: int) -> Figures:
    import grain.python as grain
    import numpy as np

    def make() -> Any:
        source = grain.MapDataset.range(size).shuffle(seed=1)
        return iter(source.to_iter_dataset(grain.ReadOptions(num_threads=0)).batch(BATCH))

    taken = make()
    next(taken)
    state = json.loads(json.dumps(taken.get_state()))

    def moved(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: size // 2 if key == "next_index" else moved(value) for key, value in item.items()}
        return item

    fresh = make()

    def first() -> Any:
        fresh.set_state(moved(state))
        return next(fresh)

    _, figures = measured(first)
    fresh.set_state(moved(state))
    ids = np.concatenate([np.asarray(next(fresh)) for _ in range(200)]).astype(float)
    figures["lag1_correlation"] = round(float(np.corrcoef(ids[:-1], ids[1:])[0, 1]), 3)
    return {**figures, **state_cost(fresh.get_state, 20)}


def hf_shuffle(size: int, workers: int) -> Figures:
    """The shuffle buffer of an iterable Hugging Face dataset: what comes twice and never after a resume."""
    from datasets import Dataset

    rows = min(size, 20_000)

    def make() -> Any:
        table = Dataset.from_dict({"id": list(range(rows))})
        return table.to_iterable_dataset(num_shards=4).shuffle(seed=1, buffer_size=1000)

    stream, seen = make(), []
    for row in stream:
        seen.append(row["id"])
        if len(seen) == 7777:
            break
    state = stream.state_dict()
    fresh = make()

    def first() -> Any:
        fresh.load_state_dict(state)
        return next(iter(fresh))

    _, figures = measured(first)
    fresh.load_state_dict(state)
    seen += [row["id"] for row in fresh]
    figures |= {"rows": rows, "lost": rows - len(set(seen)), "doubled": len(seen) - len(set(seen))}
    return {**figures, "right": not figures["lost"] and not figures["doubled"]}


def mosaic_epoch(size: int, workers: int) -> Figures:
    """The order of one epoch, which every start and resume computes whole."""
    import numpy as np

    home = Path(str(importlib.util.find_spec("streaming").submodule_search_locations[0]))  # type: ignore[union-attr, index]
    for name, place in (("streaming", home), ("streaming.base", home / "base")):
        bare = types.ModuleType(
            name
        )  # its own __init__ imports image libraries that the order has no use for
        bare.__path__ = [str(place)]
        sys.modules[name] = bare
    from streaming.base.partition.orig import get_partitions_orig
    from streaming.base.shuffle.py1e import get_shuffle_py1e

    shards = np.full(-(-size // 8192), 8192, np.int64)
    shards[-1] -= int(shards.sum()) - size

    def first() -> Any:
        partition = get_partitions_orig(size, 1, 1, 1, 1, BATCH, size // 2)
        shuffled = get_shuffle_py1e(shards, 1, 1, 0, 1 << 18)
        return np.where(partition < 0, -1, shuffled[partition])[0, 0, 0, 0]

    return measured(first)[1]


CASES: dict[str, tuple[Callable[[int, int], Figures], str | None, int, int]] = {
    "durable": (durable, None, HUGE, 0),
    "durable_2_workers": (durable, None, HUGE, 2),
    "durable_trillion": (durable, None, TRILLION, 0),
    "torchdata_shuffle": (torchdata_shuffle, "torchdata", 0, 0),
    "grain_shuffle": (grain_shuffle, "grain", HUGE, 0),
    "hf_shuffle_buffer": (hf_shuffle, "datasets", 0, 0),
    "mosaic_epoch": (mosaic_epoch, "streaming", 0, 0),
}


def alone(name: str, size: int) -> Figures:
    """The figures of one process, or what it died of."""
    call = [sys.executable, "-m", "tests.bench.resume", "--case", name, "--peer-size", str(size)]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["nothing said"])[-1]}
    figures: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def median(repetitions: list[Figures]) -> Figures:
    failed = [each for each in repetitions if "error" in each]
    if failed:
        return failed[0]
    out: Figures = {}
    for key in repetitions[0]:
        values = [each[key] for each in repetitions]
        out[key] = all(values) if isinstance(values[0], bool) else round(statistics.median(values), 3)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--peer-size", type=int, default=10**7, help="ids in an epoch of what is O(n)")
    parser.add_argument("--case", help="run this one here (used by the parent process)")
    asked = parser.parse_args()
    if asked.case:
        action, _, size, workers = CASES[asked.case]
        print(json.dumps(action(size or asked.peer_size, workers)))
        return
    names = [
        name
        for name in asked.only.split(",")
        if CASES[name][1] is None or importlib.util.find_spec(str(CASES[name][1]))
    ]
    found: dict[str, list[Figures]] = {name: [] for name in names}
    for _ in range(asked.reps):
        for name in names:
            found[name].append(alone(name, asked.peer_size))
    print(json.dumps({"peer_size": asked.peer_size, **{k: median(v) for k, v in found.items()}}, indent=2))


if __name__ == "__main__":
    main()
