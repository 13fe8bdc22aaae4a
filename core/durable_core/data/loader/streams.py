"""L3. The three process-wide random streams, and a cheap way to know whether one was drawn from.

python's ``random``, numpy's legacy global, torch's default CPU generator. Saving or restoring one costs
up to 80 us, and most datasets never draw. So a stream is *watched*: its memory is read (never written)
before and after, and only what changed is restored, by the generator's own functions. Every draw leaves
its trace there, for a generator that answered and did not change would answer the same again. That it is
the right memory is tried out first, on a generator of our own; where it is not (another interpreter),
saved states are compared instead.

What leaves no trace: to draw and then put the stream back just as it was, or only to read the state
(``torch.initial_seed()``).
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from durable_core.data.rng import Seeds

_MT19937_BYTES = 4 * 624 + 4  # numpy's mt19937_state: the words and the position
_FLOATS = (torch.float32, torch.float64)
_TORCH_BYTES = slice(80, 2632)  # at::CPUGeneratorImpl from the seed to the spare of a pair of normals


class Stream(Protocol):
    """One process-wide stream."""

    def seed(self, seeds: Seeds) -> None:
        """Begin the draws of a sample or batch."""

    def peek(self) -> object:
        """Equal to an earlier one unless the stream was drawn from, seeded or restored in between."""

    def save(self) -> Any:
        """The whole state, for ``restore``."""

    def restore(self, state: Any) -> None:
        """Go on exactly as after ``save``."""


class PythonStream:
    """Behind ``random.random`` and its like; ``generator`` is another one of its kind, for trials."""

    def __init__(self, generator: random.Random | None = None) -> None:
        self._generator: Any = generator or _owner(random.random)
        self._words = _memory(self._generator, random.Random.__base__)  # what is written in C
        if generator is None:
            trial = random.Random(1)
            if not _shows(PythonStream(trial), trial.random, trial.random):
                self._words = None

    def seed(self, seeds: Seeds) -> None:
        self._generator.seed(seeds.python)

    def peek(self) -> object:
        words = self.save() if self._words is None else bytes(self._words)
        return words, self._generator.gauss_next  # the spare of gauss() is an attribute

    def save(self) -> Any:
        return self._generator.getstate()

    def restore(self, state: Any) -> None:
        self._generator.setstate(state)


class NumpyStream:
    """Behind ``numpy.random.rand`` and its like; ``generator`` is another one of its kind, for trials."""

    def __init__(self, generator: np.random.RandomState | None = None) -> None:
        self._generator: Any = generator or _owner(np.random.random_sample)
        self._spare = _memory(self._generator, type(self._generator))  # of a pair of normals, and more
        self._bits: Any = None
        self._words: memoryview | None = None
        if generator is None:
            trial = np.random.RandomState(1)
            if not _shows(NumpyStream(trial), trial.random_sample, trial.randn, trial.randn):
                self._spare = None

    def seed(self, seeds: Seeds) -> None:
        self._generator.seed(seeds.numpy)

    def peek(self) -> object:
        if self._generator._bit_generator is not self._bits:  # the first time, and after set_bit_generator
            self._bits = self._generator._bit_generator
            known = isinstance(self._bits, np.random.MT19937)
            self._words = _at(self._bits.ctypes.state_address, _MT19937_BYTES) if known else None
        if self._words is None or self._spare is None:
            return _frozen(self.save())
        return bytes(self._words), bytes(self._spare)

    def save(self) -> Any:
        return self._generator.get_state(legacy=False)

    def restore(self, state: Any) -> None:
        self._generator.set_state(state)


class TorchStream:
    """Behind ``torch.rand`` and its like on the CPU; ``generator`` is another one of its kind, for trials.

    (``torch.manual_seed`` would also visit every device, at 80 times the cost.)
    """

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self._generator = generator or torch.default_generator
        self._state: memoryview | None = _implementation(self._generator)
        if generator is None:
            trial = torch.Generator()
            normals = (partial(torch.randn, (), dtype=d, generator=trial) for d in _FLOATS for _ in (1, 2))
            if not _shows(TorchStream(trial), partial(torch.rand, (), generator=trial), *normals):
                self._state = None

    def seed(self, seeds: Seeds) -> None:
        self._generator.manual_seed(seeds.torch)

    def peek(self) -> object:
        return self._generator.get_state().numpy().tobytes() if self._state is None else bytes(self._state)

    def save(self) -> Any:
        return self._generator.get_state()

    def restore(self, state: Any) -> None:
        self._generator.set_state(state)


def process_streams() -> tuple[Stream, ...]:
    """All three."""
    return PythonStream(), NumpyStream(), TorchStream()


class Watch:
    """Knows which of ``streams`` changed since ``mark``, and can put them back. Streams go by their place."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self._streams = streams
        self._seen: list[object] = [None] * len(streams)
        self._saved: list[tuple[object, Any]] = [(None, None)] * len(streams)

    def mark(self, *, save: bool = False) -> None:
        """From here on; ``save``: and ``restore`` comes back to here (what is saved already stays)."""
        self._seen = [stream.peek() for stream in self._streams]
        if save:
            for place, seen in enumerate(self._seen):
                if self._saved[place][0] != seen:
                    self._saved[place] = seen, self._streams[place].save()

    def changed(self, places: Iterable[int]) -> list[int]:
        """Those of ``places`` that were drawn from, seeded or restored since."""
        return [place for place in places if self._streams[place].peek() != self._seen[place]]

    def restore(self, places: Iterable[int]) -> None:
        """Put back those of ``places`` that changed since ``mark(save=True)``."""
        for place in self.changed(places):
            stream, state = self._streams[place], self._saved[place][1]
            stream.restore(state)
            self._saved[place] = stream.peek(), state  # a spare that is not valid may look different


class Preserved:
    """``with`` it, the streams are afterwards as they were, whatever the body draws or seeds.

    Again and again, but not within itself.
    """

    def __init__(self) -> None:
        streams = process_streams()
        self._watch, self._all = Watch(streams), range(len(streams))

    def __enter__(self) -> None:
        self._watch.mark(save=True)

    def __exit__(self, *error: object) -> None:
        self._watch.restore(self._all)


def _owner(function: Any) -> Any:
    """The generator that a module's function is a bound method of."""
    return function.__self__


def _implementation(generator: Any) -> memoryview:
    return _at(generator._cdata, _TORCH_BYTES.stop)[_TORCH_BYTES]


def _memory(generator: Any, kind: Any) -> memoryview | None:
    """The fields that ``kind`` declares in C, at the beginning of the object; None without any."""
    size = kind.__basicsize__ - object.__basicsize__
    return _at(id(generator) + object.__basicsize__, size) if size > 0 else None


def _at(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_ubyte * size).from_address(address)).toreadonly().cast("B")


def _frozen(state: Any) -> object:
    """Equal when all that is in it is equal."""
    if isinstance(state, dict):
        return tuple(_frozen(value) for value in state.values())
    return state.tobytes() if isinstance(state, np.ndarray) else state


def _shows(stream: Stream, *draws: Callable[[], object]) -> bool:
    """Whether ``peek`` shows each draw in turn, and nothing where nothing was drawn.

    Of normals, the first gives one of a pair, and the second the spare: that may move no word.
    """
    for draw in draws:
        before, again = stream.peek(), stream.peek()
        draw()
        if before != again or stream.peek() == before:
            return False
    return True
