"""L3. All state objects as one tree, and back: everything fits, or nothing is touched.

The tree maps each object's name to its state, so tensor keys read ``state/model/layers.0.weight``;
beside them ``_objects`` says what each object was and ``_buffers`` holds non-persistent buffers.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from durable_core.errors import DurableError, PromiseError, RestoreError, SpecMismatchError, UsageError
from durable_core.state import contract, modules, optimizers
from durable_core.state.contract import ORDER, Kind

Tree: TypeAlias = dict[str, Any]

_OBJECTS, _BUFFERS = "_objects", "_buffers"
# What load_state_dict of torch or of user code raises for a state it cannot take.
_LOADING_FAILED = (
    ArithmeticError, AssertionError, AttributeError, DurableError, LookupError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip
_SHOWN = 8  # problems spelled out in one error


def capture(objects: Mapping[str, Any]) -> Tree:
    """The state of every object, as a tree for ``tree.flatten``. Holds live tensors: stage it at once.

    ``UsageError`` names objects without a contract.
    """
    contract.check_all(objects)
    tree: Tree = {_OBJECTS: {}, _BUFFERS: {}}
    for name in sorted(objects):
        obj = contract.adapt(objects[name])
        about: dict[str, Any] = {
            "class": contract.type_name(obj),
            "kind": contract.classify(name, obj).value,
            "version": contract.version(obj),
        }
        if isinstance(obj, nn.Module):
            tree[name], about["module"] = modules.read(obj)
            extras = modules.module_extras(obj)
            if extras:
                tree[_BUFFERS][name] = extras
        else:
            tree[name] = obj.state_dict()
        tree[_OBJECTS][name] = about
    return tree


def merge(*trees: Tree) -> Tree:
    """Several captures of different objects as one, for one ``restore``."""
    merged: Tree = {_OBJECTS: {}, _BUFFERS: {}}
    for tree in trees:
        twice = set(tree[_OBJECTS]) & set(merged[_OBJECTS])
        if twice:
            raise UsageError(f"state object {', '.join(sorted(twice))} was captured twice")
        merged[_OBJECTS].update(tree[_OBJECTS])
        merged[_BUFFERS].update(tree[_BUFFERS])
        merged.update({name: tree[name] for name in tree[_OBJECTS]})
    return merged


def restore(
    objects: Mapping[str, Any], tree: Tree, *, keep: bool = False, modes: bool = True
) -> tuple[str, ...]:
    """Put a captured tree back into freshly constructed objects; returns the names in the order restored.

    First everything is checked (objects, keys, shapes, dtypes, groups, versions): ``SpecMismatchError`` lists
    what does not fit, and no object has been touched. Then the objects are restored in the order of
    ``contract.Kind``, random streams last. ``PromiseError``, also before anything is touched, when the
    checkpoint holds random streams of a device that is not here. The tree's tensors belong to the objects
    afterwards; with ``keep`` they get copies, made of one object after the other, and the tree can be put
    back again. Without ``modes`` modules stay in training or evaluation, and parameters frozen or not, as
    they are. An object that raises while loading leaves a ``RestoreError``: do not train on that state.
    """
    contract.check_all(objects)
    live = {name: contract.adapt(obj) for name, obj in objects.items()}
    found = [f"{name}: {problem}" for name, problem in _problems(live, tree)]
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise SpecMismatchError(
            f"the checkpoint does not fit: {'; '.join(found[:_SHOWN])}{more}",
            fields=tuple(found),
            hint="nothing was changed; build the objects as the run did, for a fork restores the same ones; "
            "what is new needs another root and can begin with the run's weights (durable export)",
        )
    states = {name: _current(name, obj, tree) for name, obj in live.items()}
    order = sorted(live, key=lambda name: (ORDER.index(contract.classify(name, live[name])), name))
    for name in order:
        try:
            _write(live[name], copy.deepcopy(states[name]) if keep else states[name], tree, name, modes=modes)
        except _LOADING_FAILED as error:
            raise RestoreError(
                f"{name!r} failed while loading its state; the state is now partly restored: {error}",
                hint="end this process; do not train on this state",
            ) from error
    return tuple(order)


def _problems(live: Mapping[str, Any], tree: Tree) -> Iterator[tuple[str, str]]:
    stored = tree.get(_OBJECTS)
    if not isinstance(stored, dict) or not isinstance(tree.get(_BUFFERS), dict):
        yield "<tree>", "not a captured state"
        return
    for name in sorted({*live, *stored}):
        if name not in stored:
            yield name, "not in the checkpoint"
        elif name not in live or name not in tree:
            yield name, "in the checkpoint, but no such object was given"
        else:
            for problem in _object_problems(live[name], stored[name], tree, name):
                yield name, problem


def _object_problems(obj: Any, about: Mapping[str, Any], tree: Tree, name: str) -> Iterator[str]:
    state = tree[name]
    if isinstance(obj, (Optimizer, LRScheduler)) and about["class"] != contract.type_name(obj):
        yield f"was a {about['class']} and is a {contract.type_name(obj)}"
    elif isinstance(obj, nn.Module):
        yield from modules.problems(obj, state, tree[_BUFFERS].get(name, {}))
    elif isinstance(obj, Optimizer):
        yield from optimizers.optimizer_problems(obj, state)
    elif isinstance(obj, LRScheduler):
        yield from optimizers.scheduler_problems(obj, state)
    elif isinstance(obj, torch.amp.GradScaler):
        if set(state) != set(obj.state_dict()):
            yield f"the scaler is {'enabled' if obj.is_enabled() else 'disabled'} here and was not so before"
    else:
        yield from _user_problems(obj, state, about["version"])


def _user_problems(obj: Any, state: Any, version: int) -> Iterator[str]:
    if version != contract.version(obj):
        if not hasattr(obj, "migrate_state_dict"):
            yield f"state version {version}, and this code knows {contract.version(obj)} only"
    elif hasattr(obj, "check_state_dict"):
        try:
            obj.check_state_dict(state)
        except PromiseError:
            raise  # not a misfit: another promise, or another machine, is the way out
        except UsageError as error:
            yield error.message


def _current(name: str, obj: Any, tree: Tree) -> Any:
    """The object's state in the form it has now; older forms are migrated before anything is touched."""
    stored = tree[_OBJECTS][name]["version"]
    if stored == contract.version(obj) or not hasattr(obj, "migrate_state_dict"):
        return tree[name]
    return obj.migrate_state_dict(tree[name], stored)


def _write(obj: Any, state: Any, tree: Tree, name: str, *, modes: bool) -> None:
    if isinstance(obj, nn.Module):
        modules.write(obj, state, tree[_BUFFERS].get(name, {}), tree[_OBJECTS][name]["module"], modes=modes)
    elif isinstance(obj, Optimizer):
        optimizers.write_optimizer(obj, state)
    else:
        obj.load_state_dict(state)


def kinds(objects: Mapping[str, Any]) -> dict[str, Kind]:
    """Name -> part of the state, as ``restore`` orders them; for reports."""
    return {name: contract.classify(name, contract.adapt(obj)) for name, obj in objects.items()}
