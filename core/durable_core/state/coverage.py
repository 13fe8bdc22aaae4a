"""L3. The coverage report of ``durable doctor``: what is captured, what is derivable, what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from durable_core.state import contract, modules, rng

_SCALARS = (bool, int, float, str)
_HINT_GENERATOR = "pass it as a state object of its own: state={..., 'name': generator}"
_HINT_TENSOR = "register_buffer() it, or return it from the object's state_dict()"
_HINT_CHANGED = "it changes while training: make it a buffer, or put it into get_extra_state()"


@dataclass(frozen=True)
class Item:
    """``path`` names the value (``model.layers.0.mask``), ``what`` describes it, ``hint`` is the way out."""

    path: str
    what: str
    hint: str = ""


@dataclass(frozen=True)
class Coverage:
    """``captured`` is in every checkpoint; ``derivable`` is set by constructors and assumed constant;
    ``missing`` changes later updates (or may) and is lost in a restart."""

    captured: tuple[Item, ...]
    derivable: tuple[Item, ...]
    missing: tuple[Item, ...]

    @property
    def complete(self) -> bool:
        return not self.missing


def coverage(objects: Mapping[str, Any], *, earlier: Mapping[str, Any] | None = None) -> Coverage:
    """Report on ``objects``. With ``earlier`` (``scalars`` of some steps ago), attributes that have
    changed since count as missing instead of derivable."""
    captured: list[Item] = []
    derivable: list[Item] = []
    missing: list[Item] = []
    declared = {id(obj) for obj in objects.values()}
    for name, given in objects.items():
        obj = contract.adapt(given)
        if not isinstance(obj, contract.Stateful):
            hint = "give it state_dict() and load_state_dict()"
            missing.append(Item(name, f"{contract.type_name(obj)} without a contract", hint))
            continue
        captured.extend(_captured(name, obj))
        for path, value in _attributes(name, obj):
            if rng.is_generator(value) and id(value) not in declared:
                missing.append(Item(path, f"{contract.type_name(value)}, not declared", _HINT_GENERATOR))
            elif isinstance(value, Tensor):
                missing.append(Item(path, f"tensor {list(value.shape)} that is not a buffer", _HINT_TENSOR))
    for path, value in scalars(objects).items():
        if earlier is not None and path in earlier and earlier[path] != value:
            missing.append(Item(path, f"was {earlier[path]!r} and is {value!r}", _HINT_CHANGED))
        else:
            derivable.append(Item(path, f"{value!r}, set by the constructor"))
    return Coverage(tuple(captured), tuple(derivable), tuple(missing))


def scalars(objects: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """Numbers and strings on user-defined modules; compare two of these to find counters nobody saves."""
    return {
        path: value
        for name, given in objects.items()
        if isinstance(given, nn.Module)
        for path, value in _attributes(name, contract.adapt(given))
        if isinstance(value, _SCALARS)
    }


def _captured(name: str, obj: Any) -> Iterator[Item]:
    kind = contract.classify(name, obj).value
    if isinstance(obj, nn.Module):
        parameters, buffers = sum(1 for _ in obj.parameters()), sum(1 for _ in obj.buffers())
        yield Item(name, f"{kind}: {parameters} parameters, {buffers} buffers")
        for path in modules.module_extras(obj):
            yield Item(f"{name}.{path}", "non-persistent buffer")
    else:
        number = contract.version(obj)
        unversioned = number == contract.UNVERSIONED and not type(obj).__module__.startswith("torch.")
        hint = "declare state_version = 1, so that a later change of form is noticed" if unversioned else ""
        yield Item(name, f"{kind}: {contract.type_name(obj)}", hint)


def _attributes(name: str, obj: Any) -> Iterator[tuple[str, Any]]:
    """Plain attributes (not parameters, buffers, submodules) that an object's own class keeps."""
    if not isinstance(obj, nn.Module):
        return
    for prefix, child in obj.named_modules():
        base = f"{name}.{prefix}" if prefix else name
        torch_own = type(child).__module__.startswith("torch.")
        for attribute, value in vars(child).items():
            if attribute in _MODULE_ATTRIBUTES or (torch_own and isinstance(value, _SCALARS)):
                continue
            yield f"{base}.{attribute}", value


_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
