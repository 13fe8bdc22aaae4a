"""L3. ``window_shuffle_v1``: a bounded shuffle of a stream whose records have no ids.

The stream is cut into windows of B items, and each window is handed out in the order of a keyed
permutation. *Mixing distance*: an item moves by at most B - 1 places, and windows keep their order; this
is no permutation of the stream. *State*: the upstream's state where the window begins, and how many
items were handed out: no item is saved. *Restore*: at most B - 1 items are read again. *Memory*: B items.

The upstream's draws from the global streams are seeded per item, by (seed, epoch, worker, ordinal), so
that an item that is read again draws the same. Order key: (name, dataset id, seed, epoch, worker, window).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from durable_core.data.cursor import class_name
from durable_core.data.loader.reading.global_streams import Preserved
from durable_core.data.loader.sources.iterable import StreamFetcher, StreamIterator
from durable_core.data.loader.sources.mapped import is_stateful
from durable_core.data.order.arithmetic import Bijection, derive_keys
from durable_core.data.readers.hugging import lossy_buffer
from durable_core.data.rng import SampleSeeds
from durable_core.errors import OrderError, SpecMismatchError, UnsupportedError, UsageError

WINDOW_SHUFFLE = "window_shuffle_v1"


class WindowShuffle(IterableDataset[Any]):
    """``window_shuffle_v1`` (see the module) around an iterable dataset that has a state.

    Each ``iter()`` begins the epoch set by ``set_epoch`` (0 at first), which ``DurableLoader`` calls and
    passes on to ``dataset``; with workers, each shuffles its own part.

    Args:
        dataset: iterable, with ``state_dict`` and ``load_state_dict``; its iterator may have them as well.
        window: B, the items held and mixed.
        seed: another one, or another window, cannot continue a run.

    Raises ``UnsupportedError`` for a dataset without a state, or with one that is known to lose rows.
    """

    def __init__(self, dataset: Any, *, window: int, seed: int, dataset_id: str = "") -> None:
        if window < 1:
            raise UsageError(f"a window of {window} items is none", hint="pass window=1 or more")
        if not is_stateful(dataset):
            raise UnsupportedError(
                f"{class_name(dataset)} has no state_dict, so a window of it cannot be read again",
                hint="give it state_dict() and load_state_dict()",
            )
        if (lossy := lossy_buffer(dataset)) is not None:
            raise UnsupportedError(lossy, hint="give WindowShuffle the stream before that")
        self.window = window
        self._setting = {"name": WINDOW_SHUFFLE, "window": window, "seed": seed, "dataset_id": dataset_id}
        self._key = (WINDOW_SHUFFLE, dataset_id, seed)
        seeds = SampleSeeds(dataset_id=dataset_id, seed=seed, transform_version=WINDOW_SHUFFLE)
        self._upstream = StreamFetcher(dataset, seeds)

    def set_epoch(self, epoch: int) -> None:
        """From the next ``iter()`` on."""
        self._upstream.epoch = epoch
        self._upstream.tell_epoch()  # before there are workers: see StreamSource.open

    def __iter__(self) -> _Windows:
        return _Windows(iter(self._upstream), self.window, (*self._key, self._upstream.epoch))

    def state_dict(self) -> dict[str, Any]:
        """The settings; the position is its iterator's state."""
        return dict(self._setting)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ``SpecMismatchError`` when the settings differ from those of the state."""
        if dict(state) != self._setting:
            raise SpecMismatchError(
                f"the stream was shuffled as {dict(state)} and is now as {self._setting}",
                fields=("window_shuffle",),
                hint="restore the settings the run was started with",
            )


class _Windows(Iterator[Any]):
    def __init__(self, upstream: StreamIterator, size: int, key: tuple[str | int, ...]) -> None:
        info = get_worker_info()
        self._upstream, self._size = upstream, size
        self._key = (*key, 0 if info is None else info.id)
        self._epoch = key[-1]
        self._preserved = Preserved()
        self._begin(0)

    def _begin(self, window: int) -> None:
        self._window, self._emitted = window, 0
        self._start = self._upstream.state_dict()
        self._left: list[Any] | None = None  # in reverse; None until the window is read

    def __next__(self) -> Any:
        left = self._read() if self._left is None else self._left
        value = left.pop()
        self._emitted += 1
        if not left:
            self._begin(self._window + 1)
        return value

    def _read(self) -> list[Any]:
        with self._preserved:
            items = [item.value for item in islice(self._upstream, self._size)]
        if not items and not self._emitted:
            raise StopIteration
        if len(items) <= self._emitted:
            raise OrderError(
                f"window {self._window} of the stream has {len(items)} items, of which {self._emitted} had "
                "been handed out and more were left: the stream is not the one that was saved"
            )
        order = Bijection(len(items), derive_keys(*self._key, self._window)).values(self._emitted, len(items))
        self._left = [items[place] for place in reversed(order.tolist())]
        return self._left

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self._epoch,
            "window": self._window,
            "emitted": self._emitted,
            "upstream": copy.deepcopy(self._start),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Before the first item. Raises ``SpecMismatchError`` for the state of another epoch."""
        if state["epoch"] != self._epoch:
            raise SpecMismatchError(
                f"the state is of epoch {state['epoch']}, and this is epoch {self._epoch}",
                fields=("epoch",),
                hint="call set_epoch before iterating",
            )
        self._upstream.load_state_dict(copy.deepcopy(state["upstream"]))
        self._window, self._emitted, self._left = state["window"], state["emitted"], None
        self._start = copy.deepcopy(state["upstream"])
