"""L5. Has training begun on a batch? Found without keeping anything: looked at before, and compared after.

A loop that stops at its top (``if run.steps >= 50: break``) holds a batch it did nothing with. Whether that
is so decides whether the state is still that of the boundary. Looked at is what is cheap to read:

==========================  =============================================================================
forward passes              autograd's count of what it has recorded: none without one that is to be trained
parameters, buffers         which tensors they are, and torch's count of writes (writes by ``.data`` are none)
optimizers                  their groups but for the parameters, and as with those the tensors that they
                            hold for each of them; that they step, the session's hooks see
random streams              their positions
schedulers, scalers         their numbers
objects of the user's own   their attributes, if those are plain values or tensors; else it is not known
==========================  =============================================================================

It is of batches that a ``DurableLoader`` hands over: without one in the state nobody sees where a batch is
taken, and nothing is compared. Then only an optimizer's step counts as begun; whoever draws the batch from
the run's own random streams leaves such a loop before drawing, or right after ``step()``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter, is_
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from durable_core.data.loader.reading.global_streams import NumpyStream, PythonStream
from durable_core.state import contract, rng

#: Values of one object that are looked at, at most: one that holds more cannot be compared.
LEAVES = 400

_PLAIN = (int, float, complex, str, bytes, bool, type(None), np.generic, torch.dtype, torch.device)
_SCALER = ("_scale", "_growth_tracker", "_growth_factor", "_backoff_factor", "_growth_interval")
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class made by a class statement
_version = attrgetter("_version")


class _Incomparable:
    """Equal to nothing, not even to itself."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]  # as what defines __eq__ alone


@dataclass(frozen=True, eq=False)
class _Held:
    """A tensor as it was: held, lest another one takes its address."""

    tensor: Tensor
    version: object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and self.tensor is other.tensor and self.version == other.version

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class _Seen:
    """``tensors`` are held, lest others take their addresses; ``looks`` are what each look gave."""

    tensors: list[Tensor]
    versions: object
    recorded: int
    looks: list[object]


class Begun:
    """What training may have changed since ``mark``, of the ``objects`` that a session saves.

    Not seen: what another thread computes.
    """

    def __init__(self, objects: Mapping[str, Any]) -> None:
        live = {name: contract.adapt(item) for name, item in objects.items()}
        self._modules = [item for item in live.values() if isinstance(item, nn.Module)]
        self._optimizers = [item for item in live.values() if isinstance(item, Optimizer)]
        self._homes, self._loose = self._places()
        self._streams = PythonStream(), NumpyStream()
        self._looks: dict[str, Callable[[], object]] = {"random numbers were drawn": self._positions}
        for name, item in live.items():
            if not isinstance(item, nn.Module):
                self._looks[f"{name!r} was changed, or cannot be compared"] = _look_at(item, live.values())
        if any(_has_more(member) for module in self._modules for member in module.modules()):
            self._looks["a module has state beside its tensors, which cannot be compared"] = _Incomparable
        self._seen: _Seen | None = None

    def mark(self) -> None:
        """From here on. It costs some 50 us at 150 tensors."""
        self._seen = self._look()

    def found(self) -> str:
        """What has changed since ``mark``, or cannot be compared; ``""`` when nothing has."""
        was = self._seen
        if was is None:
            return "it is not known how it was before"
        (homes, loose), (self._homes, self._loose) = (self._homes, self._loose), self._places()
        if not (_same(homes, self._homes) and _same(loose, self._loose)):
            return "a model or an optimizer has other parts"
        now = self._look()
        if now.recorded != was.recorded:
            return "a forward pass was computed"
        if not _same(was.tensors, now.tensors) or was.versions != now.versions:
            return "weights, buffers or moments were written"
        pairs = zip(self._looks, was.looks, now.looks, strict=True)
        return next((what for what, before, after in pairs if before != after), "")

    def _look(self) -> _Seen:
        held = chain.from_iterable(map(dict.values, self._homes))
        tensors = [*(tensor for tensor in held if tensor is not None), *self._loose, *self._moments()]
        recorded = torch._C._autograd._get_sequence_nr()
        return _Seen(tensors, _versions(tensors), recorded, [look() for look in self._looks.values()])

    def _places(self) -> tuple[list[dict[str, Any]], list[Tensor]]:
        """The dicts in which modules have their tensors, for those may be replaced; and the parameters that
        optimizers have besides."""
        members = [member for module in self._modules for member in module.modules()]
        homes: list[dict[str, Any]] = [home for m in members for home in (m._parameters, m._buffers)]
        owned = {id(tensor) for home in homes for tensor in home.values()}
        groups = (group["params"] for optimizer in self._optimizers for group in optimizer.param_groups)
        return homes, [tensor for tensor in chain.from_iterable(groups) if id(tensor) not in owned]

    def _moments(self) -> list[Tensor]:
        """What optimizers hold for each parameter; none before their first step."""
        held = (of for optimizer in self._optimizers for of in optimizer.state.values())
        values = chain.from_iterable(of.values() for of in held if isinstance(of, dict))
        return [value for value in values if isinstance(value, Tensor)]

    def _positions(self) -> object:
        """By ``get_state`` for torch's: in memory, a generator that was put back may look different."""
        devices = torch.cuda.default_generators if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
        states = [generator.get_state() for generator in (torch.default_generator, *devices)]
        if torch.backends.mps.is_available():
            states.append(torch.mps.get_rng_state())
        return [stream.peek() for stream in self._streams], [state.numpy().tobytes() for state in states]


def _same(one: Sequence[object], other: Sequence[object]) -> bool:
    """The very same objects."""
    return len(one) == len(other) and all(map(is_, one, other))


def _versions(tensors: Iterable[Tensor]) -> object:
    try:
        return list(map(_version, tensors))
    except RuntimeError:  # made in inference mode: torch counts no writes to it
        return _Incomparable()


def _has_more(module: nn.Module) -> bool:
    return type(module).get_extra_state is not nn.Module.get_extra_state


def _look_at(item: Any, live: Iterable[object]) -> Callable[[], object]:
    """How to look at one object of the state that is no module."""
    if isinstance(item, Optimizer):
        return lambda: [_plain(group, limit=None, apart="params") for group in item.param_groups]
    if isinstance(item, LRScheduler):
        return lambda: _plain(item.state_dict())
    if isinstance(item, torch.amp.GradScaler):
        return lambda: _plain({name: getattr(item, name, None) for name in _SCALER})
    if isinstance(item, rng.Streams):
        return lambda: None  # they are looked at already
    if isinstance(item, rng.Named):
        return lambda: _plain(rng.generator_state(item.generator))
    if _is_simple(type(item)):
        known = frozenset(map(id, live))
        return lambda: _plain(vars(item), known=known)
    return _Incomparable


def _is_simple(kind: type) -> bool:
    """Whether all that instances hold is in their ``__dict__``."""
    classes = [each for each in kind.__mro__ if each is not object]
    return all(each.__flags__ & _HEAP_TYPE and not each.__dict__.get("__slots__") for each in classes)


def _plain(
    tree: Any, *, known: frozenset[int] = frozenset(), apart: str = "", limit: int | None = LEAVES
) -> object:
    """What ``tree`` holds, to be compared later; ``known`` are objects that are looked at elsewhere."""
    if apart:
        tree = {name: value for name, value in tree.items() if name != apart}
    leaves = list(islice(_leaves(tree, known), None if limit is None else limit + 1))
    return _Incomparable() if limit is not None and len(leaves) > limit else leaves


def _leaves(value: Any, known: frozenset[int]) -> Iterator[object]:
    """One after another, so that a tree without end costs no more than another."""
    if isinstance(value, _PLAIN):
        yield value
    elif isinstance(value, Tensor):
        yield _Held(value, _versions([value]))
    elif isinstance(value, Mapping):
        yield len(value)
        for key, item in value.items():
            yield from _leaves(key, known)
            yield from _leaves(item, known)
    elif isinstance(value, (list, tuple, deque)):
        yield len(value)
        for item in value:
            yield from _leaves(item, known)
    elif id(value) in known:
        yield id(value)
    else:
        yield _Incomparable()


def left_within(step: int, durable: int | None, *, stepped: bool, taken: int, found: str) -> str | None:
    """What to tell of a block left after ``step``, with ``taken`` batches outstanding; ``None``: nothing.

    ``stepped``: the block has called ``step()``. ``found``: what training on them has changed, ``""`` for
    nothing; then the state of ``step`` is durable by now. ``durable``: the newest step that is.
    """
    if not stepped and (found or taken > 1):
        data = f"{taken} {'batch was' if taken == 1 else 'batches were'} taken, and " if taken else ""
        return (
            f"{data}run.step() was never called in this block ({found or 'nothing was changed'}): the run is "
            f"still at step {step}. Call run.step() when an optimizer step is complete, before the next batch"
        )
    if not found or durable == step:
        return None
    begun = (
        f"a batch was taken after step {step}, and training had begun on it" if taken else "training went on"
    )
    return (
        f"the block was left within a step: {begun} ({found}). What follows step {durable} is done again by "
        "the next start; to keep it, break right after run.step()"
    )
