"""How a script's model differs from the one that a root holds: which keys, which shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from durable_core.engine.inspect import open_run
from durable_core.errors import DurableError, SpecMismatchError

Shape = tuple[int, ...]

#: Differences that a message names; of the others it says how many there are.
NAMED = 6


@contextmanager
def named(root: str, state: Mapping[str, Any]) -> Iterator[None]:
    """A ``SpecMismatchError`` raised within, about the model of the run at ``root``, names the keys in which
    it differs from the models in ``state``."""
    try:
        yield
    except SpecMismatchError as error:
        told = _compared(root, state) if any(field.startswith("model.") for field in error.fields) else ""
        if not told:
            raise
        raise SpecMismatchError(told, fields=error.fields, hint=error.hint) from error


def _compared(root: str, state: Mapping[str, Any]) -> str:
    """``""``: no key differs, or nothing can be read there to compare with."""
    try:
        reader = open_run(root)
        info = reader.newest_usable()
        saved = {key: entry.global_shape for key, entry in reader.manifest(info).tensors.items()}
    except DurableError:
        return ""
    models = {name: item for name, item in state.items() if isinstance(item, nn.Module)}
    told = list(differences(saved, models))
    more = f"; and {len(told) - NAMED} more" if len(told) > NAMED else ""
    about = f"{root} holds another model (checkpoint {info.c}, step {info.step}): "
    return about + "; ".join(told[:NAMED]) + more if told else ""


def differences(saved: Mapping[str, Shape], models: Mapping[str, nn.Module]) -> Iterator[str]:
    """One sentence for each key of the models that is in one of the two only, or has another shape."""
    there = {
        key.removeprefix("state/"): shape for key, shape in saved.items() if key.startswith("state/model")
    }
    here = {
        f"{name}/{key}": tuple(value.shape)
        for name, model in models.items()
        for key, value in model.state_dict().items()
        if isinstance(value, Tensor)
    }
    for key in sorted(there.keys() | here.keys()):
        if key not in there:
            yield f"{key} is not in it"
        elif key not in here:
            yield f"{key} is not in the script's"
        elif there[key] != here[key]:
            yield f"{key} is {_written(there[key])} there and {_written(here[key])} in the script"


def _written(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "a scalar"
