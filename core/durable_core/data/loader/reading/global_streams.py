"""L3. The three process-wide random streams, and a cheap way to know whether one was drawn from.

python's ``random``, numpy's legacy global, torch's default CPU generator. Saving or restoring one costs
up to 80 us, and most datasets never draw. So a stream is *watched*: a part of its memory is read (never
written) before and after, and only what changed is restored, by the generator's own functions.

All three are Mersenne twisters: 624 words and a position. A draw moves the position, and when it passes
the end all words are new, as they are after seeding; so the position and ``_SOME`` of the words
tell (2^-512 of all changes would not show), with the spare that is left of a pair of normals. That it
is the right memory is tried out first, on a generator of our own; where it is not (another interpreter
or version), saved states are compared instead.

What leaves no trace: to draw and then put the stream back just as it was, or only to read the state
(``torch.initial_seed()``).
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from durable_core.data.rng import Seeds

_SOME = 64  # bytes: 16 words
_PYTHON = slice(0, 4 + _SOME)  # _random.Random: the position, the words
_NUMPY = slice(4 * 624 - _SOME, 4 * 624 + 4)  # mt19937_state: the words, the position
_TORCH = slice(80, 100 + _SOME), slice(2596, 2632)  # at::CPUGeneratorImpl: seed, position, words; spares
_FLOATS = (torch.float32, torch.float64)


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
        self._words: memoryview | None = _fields(self._generator, random.Random.__base__)[_PYTHON]
        if generator is None:
            trial = random.Random(1)
            if not _shows(PythonStream(trial), trial.random, partial(trial.seed, 2), trial.random):
                self._words = None

    def seed(self, seeds: Seeds) -> None:
        self._generator.seed(seeds.python)

    def peek(self) -> object:
        words = self.save() if self._words is None else self._words.tobytes()
        return words, self._generator.gauss_next  # the spare of gauss() is an attribute

    def save(self) -> Any:
        return self._generator.getstate()

    def restore(self, state: Any) -> None:
        self._generator.setstate(state)


class NumpyStream:
    """Behind ``numpy.random.rand`` and its like; ``generator`` is another one of its kind, for trials."""

    def __init__(self, generator: np.random.RandomState | None = None) -> None:
        self._generator: Any = generator or _owner(np.random.random_sample)
        self._spare: memoryview | None = _fields(self._generator, type(self._generator))  # and more
        self._bits: Any = None
        self._words: memoryview | None = None
        if generator is None:
            trial = np.random.RandomState(1)
            draws = (trial.random_sample, partial(trial.seed, 2), trial.randn, trial.randn)
            if not _shows(NumpyStream(trial), *draws):
                self._spare = None

    def seed(self, seeds: Seeds) -> None:
        self._generator.seed(seeds.numpy)

    def peek(self) -> object:
        if self._generator._bit_generator is not self._bits:  # the first time, and after set_bit_generator
            self._bits = self._generator._bit_generator
            known = isinstance(self._bits, np.random.MT19937)
            address = self._bits.ctypes.state_address
            self._words = _at(address, _NUMPY.stop)[_NUMPY] if known else None
        if self._words is None or self._spare is None:
            return _frozen(self.save())
        return self._words.tobytes(), self._spare.tobytes()

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
        memory = _implementation(self._generator)
        self._words: memoryview | None = memory[_TORCH[0]]
        self._spares = memory[_TORCH[1]]
        if generator is None:
            trial = torch.Generator()
            normals = (partial(torch.randn, (), dtype=d, generator=trial) for d in _FLOATS for _ in (1, 2))
            draw = partial(torch.rand, (), generator=trial)
            if not _shows(TorchStream(trial), draw, draw, partial(trial.manual_seed, 2), draw, *normals):
                self._words = None

    def seed(self, seeds: Seeds) -> None:
        self._generator.manual_seed(seeds.torch)

    def peek(self) -> object:
        if self._words is None:
            return self._generator.get_state().numpy().tobytes()
        return self._words.tobytes(), self._spares.tobytes()

    def save(self) -> Any:
        return self._generator.get_state()

    def restore(self, state: Any) -> None:
        self._generator.set_state(state)


Streams = tuple[Stream, Stream, Stream]


def process_streams() -> Streams:
    """All three."""
    return PythonStream(), NumpyStream(), TorchStream()


class Watch:
    """Knows which of ``streams`` changed since ``mark``, and can put them back. Streams go by their place."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        first, second, third = (stream.peek for stream in streams)
        # Once or twice a batch, so without a loop.
        self._peek: Callable[[], tuple[object, ...]] = lambda: (first(), second(), third())
        self._seen: tuple[object, ...] = (None, None, None)
        self._saved_at: tuple[object, ...] = self._seen
        self._saved: list[Any] = [None, None, None]

    def mark(self, *, save: bool = False) -> None:
        """From here on; ``save``: and ``restore`` comes back to here (what is saved already stays)."""
        self._seen = seen = self._peek()
        if save and seen != self._saved_at:
            for place, stream in enumerate(self._streams):
                if seen[place] != self._saved_at[place]:
                    self._saved[place] = stream.save()
            self._saved_at = seen

    def changed(self, places: Sequence[int]) -> list[int]:
        """Those of ``places`` that were drawn from, seeded or restored since."""
        now, seen = self._peek(), self._seen
        return [] if now == seen else [place for place in places if now[place] != seen[place]]

    def restore(self, places: Sequence[int]) -> None:
        """Put back those of ``places`` that changed since ``mark(save=True)``."""
        for place in self.changed(places):
            self._streams[place].restore(self._saved[place])
        self._saved_at = self._peek()  # a spare that is not valid may look different than before


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
    return _at(generator._cdata, _TORCH[1].stop)


def _fields(generator: Any, kind: Any) -> memoryview:
    """The fields that ``kind`` declares in C, at the beginning of the object."""
    return _at(id(generator) + object.__basicsize__, max(kind.__basicsize__ - object.__basicsize__, 0))


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
