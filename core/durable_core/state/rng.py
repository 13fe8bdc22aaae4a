"""L3. Random number streams: python, numpy, torch and every device; and generators that have a name.

States are plain trees of numbers and bytes, never pickled tuples. A stream is keyed by what it is
(``python``, ``numpy``, ``torch``, ``cuda:0``), never by a rank.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch

from durable_core.errors import PromiseError, UsageError
from durable_core.format import codec

T = TypeVar("T")
Tree: TypeAlias = dict[str, Any]
Generator: TypeAlias = "torch.Generator | random.Random | np.random.Generator | np.random.RandomState"

GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)

_WORDS = 625  # the Mersenne twister's 624 words, then its position


def capture() -> Tree:
    """The state of every global stream of this process, devices included: stream name -> state."""
    streams: Tree = {
        "python": _python_state(random.getstate()),
        "numpy": _packed(np.random.get_state(legacy=False)),
        "torch": _tensor_bytes(torch.get_rng_state()),
    }
    for name in _devices():
        state = torch.mps.get_rng_state() if name == "mps" else torch.cuda.get_rng_state(name)
        streams[name] = _tensor_bytes(state)
    return streams


def restore(tree: Mapping[str, Any], *, strict: bool = True) -> tuple[str, ...]:
    """Set every global stream from ``tree`` (see ``capture``); everything is checked before the first is set.

    A stream whose device is not here raises ``PromiseError``; with ``strict=False`` its name is
    returned instead. ``UsageError`` for a state of the wrong form.
    """
    trials, absent = _checked(tree, strict=strict)
    for name, state in trials.items():
        if name == "python":
            random.setstate(state)
        elif name == "numpy":
            np.random.set_state(state)
        elif name == "torch":
            torch.set_rng_state(state)
        elif name == "mps":
            torch.mps.set_rng_state(state)
        else:
            torch.cuda.set_rng_state(state, name)
    return absent


def begin(text: str) -> None:
    """Seed every global stream of this process, devices included, each from ``text`` and its own name."""
    random.seed(_seed(text, "python"))
    np.random.seed(_seed(text, "numpy") >> 32)
    torch.default_generator.manual_seed(_seed(text, "torch"))
    for name in _devices():
        if name == "mps":
            torch.mps.manual_seed(_seed(text, name))
        else:
            torch.cuda.default_generators[int(name.partition(":")[2])].manual_seed(_seed(text, name))


def begin_named(generator: Generator, text: str, name: str) -> None:
    """Seed one generator in place, from ``text`` and the name that it is held by."""
    seed = _seed(text, name)
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, random.Random):
        generator.seed(seed)
    elif isinstance(generator, np.random.RandomState):
        generator.seed(seed >> 32)
    else:
        generator.bit_generator.state = type(generator.bit_generator)(seed).state


def _seed(text: str, name: str) -> int:
    """64 bits; another stream's are as good as independent of them."""
    return int.from_bytes(hashlib.blake2b(f"{text}/{name}".encode(), digest_size=8).digest(), "big")


def is_generator(obj: object) -> bool:
    """A random generator with a state of its own."""
    return isinstance(obj, GENERATORS) and not isinstance(obj, random.SystemRandom)


class Streams:
    """The global streams as one state object (``state_dict`` / ``load_state_dict``)."""

    state_kind = "rng"
    state_version = 1

    def state_dict(self) -> Tree:
        return capture()

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """``PromiseError`` or ``UsageError`` when ``state`` cannot be loaded here; changes nothing."""
        _checked(state, strict=True)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        restore(state)


class Named:
    """A generator that user code holds, as a state object; restored in place.

    ``torch.Generator``, ``random.Random``, ``numpy.random.Generator`` and ``numpy.random.RandomState``.
    """

    state_kind = "rng"
    state_version = 1

    def __init__(self, generator: Generator) -> None:
        if isinstance(generator, random.SystemRandom):
            raise UsageError("random.SystemRandom draws from the system and has no state to restore")
        self.generator = generator

    def state_dict(self) -> Tree:
        return {"type": _kind(self.generator), "state": generator_state(self.generator)}

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """``UsageError`` for the state of another kind of generator; changes nothing."""
        if state.get("type") != _kind(self.generator):
            raise UsageError(f"a {state.get('type')} state cannot be loaded into a {_kind(self.generator)}")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_state_dict(state)
        set_generator_state(self.generator, state["state"])


def generator_state(generator: Generator) -> Any:
    """The state of one generator as a tree of numbers and bytes."""
    if isinstance(generator, torch.Generator):
        return _tensor_bytes(generator.get_state())
    if isinstance(generator, random.Random):
        return _python_state(generator.getstate())
    if isinstance(generator, np.random.RandomState):
        return _packed(generator.get_state(legacy=False))
    return _packed(generator.bit_generator.state)


def set_generator_state(generator: Generator, state: Any) -> None:
    """Set one generator from ``generator_state``'s tree, in place."""
    if isinstance(generator, torch.Generator):
        generator.set_state(_bytes_tensor(state))
    elif isinstance(generator, random.Random):
        generator.setstate(_python_tuple(state))
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(_unpacked(state))
    else:
        generator.bit_generator.state = _unpacked(state)


def _kind(generator: Generator) -> str:
    if isinstance(generator, torch.Generator):
        return f"torch.Generator/{generator.device.type}"
    if isinstance(generator, np.random.Generator):
        return f"numpy.random.Generator/{type(generator.bit_generator).__name__}"
    return "random.Random" if isinstance(generator, random.Random) else "numpy.random.RandomState"


def _checked(tree: Mapping[str, Any], *, strict: bool) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The native states that can be set here, and the names of the streams that this process lacks."""
    here = {"python", "numpy", "torch", *_devices()}
    absent = tuple(sorted(set(tree) - here))
    if absent and strict:
        raise PromiseError(
            f"the checkpoint holds random streams that this process lacks: {', '.join(absent)}",
            hint="restart on the same kind of device, or choose a weaker promise",
        )
    return {name: _trial(name, state) for name, state in tree.items() if name in here}, absent


def _trial(name: str, state: Any) -> Any:
    """The native state of a stream, proven to be loadable on a generator that nobody uses."""
    try:
        if name == "python":
            native = _python_tuple(state)
            random.Random().setstate(native)
        elif name == "numpy":
            native = _unpacked(state)
            np.random.RandomState().set_state(native)
        else:
            native = _bytes_tensor(state)
            torch.Generator(name if name != "torch" else "cpu").set_state(native)
    except (KeyError, TypeError, ValueError, RuntimeError, struct.error) as error:
        raise UsageError(f"random stream {name!r}: not a state of this stream: {error}") from error
    return native


def _devices() -> tuple[str, ...]:
    """``cuda:0``, …, ``mps``: the accelerators whose generators this process can reach."""
    names = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("mps")
    return tuple(names)


def _python_state(state: Any) -> Tree:
    version, words, gauss = state
    if len(words) != _WORDS:
        raise UsageError(f"a random.Random subclass with {len(words)} words of state cannot be captured")
    return {"version": version, "words": struct.pack(f"<{_WORDS}I", *words), "gauss": gauss}


def _python_tuple(state: Mapping[str, Any]) -> Any:
    return state["version"], struct.unpack(f"<{_WORDS}I", state["words"]), state["gauss"]


def _tensor_bytes(state: torch.Tensor) -> bytes:
    return state.numpy().tobytes()


def _bytes_tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


def _packed(value: Any) -> Any:
    """A bit generator's state with its arrays as ``{"array": dtype, "data": bytes}``."""
    if isinstance(value, np.ndarray):
        little = value.astype(value.dtype.newbyteorder("<"))
        return {"array": little.dtype.str, "data": little.tobytes()}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: _packed(item) for key, item in value.items()}
    return value


def _unpacked(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "array" in value:
        stored = np.dtype(value["array"])
        return np.frombuffer(value["data"], dtype=stored).astype(stored.newbyteorder("="))
    return {key: _unpacked(item) for key, item in value.items()}


# --- generators inside a state tree --------------------------------------------------------

_BIT_GENERATORS: dict[str, Callable[[], Any]] = {
    kind.__name__: kind
    for kind in (np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64)
}


def register(registry: codec.Registry) -> None:
    """Let the codec store generators that lie in a state tree; they come back as new generators."""
    registry.register(torch.Generator, "torch.Generator", _from_torch_generator, _to_torch_generator)
    registry.register(random.Random, "random.Random", generator_state, _to_python_random)
    registry.register(np.random.RandomState, "numpy.RandomState", generator_state, _to_random_state)
    registry.register(np.random.Generator, "numpy.Generator", generator_state, _to_numpy_generator)


def _from_torch_generator(generator: torch.Generator) -> Any:
    return [generator.device.type, generator_state(generator)]


def _to_torch_generator(document: Any) -> torch.Generator:
    device, state = document
    return _with_state(torch.Generator(device), state)


def _to_python_random(document: Any) -> random.Random:
    return _with_state(random.Random(), document)


def _to_random_state(document: Any) -> np.random.RandomState:
    return _with_state(np.random.RandomState(_BIT_GENERATORS[document["bit_generator"]]()), document)


def _to_numpy_generator(document: Any) -> np.random.Generator:
    return _with_state(np.random.Generator(_BIT_GENERATORS[document["bit_generator"]]()), document)


def _with_state(generator: T, state: Any) -> T:
    set_generator_state(generator, state)  # type: ignore[arg-type]
    return generator
