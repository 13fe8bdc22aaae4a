"""What a run is asked to be: ``DurableOptions``, read from files, the environment and arguments alike."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Union

from durable_core.commit.retention import Retention
from durable_core.detect.policy import Integrity
from durable_core.errors import FormatError, UnsupportedError, UsageError
from durable_core.session.cadence import Cadence
from durable_core.session.places import Tiers
from durable_core.session.settings import Backlog, OnBreach, Resume, Settings
from durable_core.spec import RunSpec, runfile
from durable_core.spec.codec import decode_dataclass
from durable_core.types import Promise

#: ``ACCELERATE_DURABLE_<NAME>`` is the option of that name; this one names a file of options.
PREFIX = "ACCELERATE_DURABLE_"
FILE = f"{PREFIX}FILE"

_RUN_KEY = re.compile(r"[a-z0-9][a-z0-9._-]*")
#: Only code can give these: objects.
_CODE_ONLY = ("spec",)
_WORDS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True)
class DurableOptions:
    """``root``: a directory or URL for this run alone; ``None``: ``durable`` below the project directory.
    ``run_key``: several runs share a root, and this is the name of one.

    ``resume``, ``every_n_steps`` (optimizer steps), ``every_seconds``, ``promise``, ``accept_distribution``,
    ``tiers``, ``retention``, ``backlog``, ``on_rpo_breach``, ``supply_window`` (steps), ``integrity``,
    ``takeover`` and ``spec`` are those of ``DurableSession.open``. ``max_steps``: optimizer steps after which
    a script that counts them itself is done. ``train_loader``: which of the prepared loaders trains, counted
    from 0 in the order of ``prepare``; ``None``: the one whose batches an optimizer steps on.

    Raises ``UsageError`` that names the option at fault.
    """

    root: str | os.PathLike[str] | None = None
    resume: Resume = "auto"
    every_n_steps: int | str = "auto"
    every_seconds: float | None = None
    promise: Promise | str | None = None
    accept_distribution: str = ""
    tiers: Tiers | None = None
    retention: Retention | None = None
    backlog: Backlog = "skip"
    on_rpo_breach: OnBreach = "continue"
    supply_window: int = Settings.supply_window
    integrity: Integrity | None = None
    run_key: str | None = None
    takeover: bool = False
    max_steps: int | None = None
    train_loader: int | None = None
    spec: RunSpec | None = None

    def __post_init__(self) -> None:
        if self.root is not None:
            object.__setattr__(self, "root", _root(self.root))
        if self.run_key is not None and not _RUN_KEY.fullmatch(self.run_key):
            raise UsageError(f"run_key={self.run_key!r}", hint="letters a-z, digits, '.', '_' and '-'")
        for name, kind in _OBJECTS.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise UsageError(f"{name}={value!r}", hint=f"an object of class {kind.__name__}, or None")
        if self.every_n_steps != "auto":
            _whole("every_n_steps", self.every_n_steps, 1, 'or "auto"')
        if self.every_seconds is not None and not self.every_seconds > 0:
            raise UsageError(f"every_seconds={self.every_seconds!r}", hint="a positive time, or None")
        _whole("max_steps", self.max_steps, 1, "or None: the script ends by itself")
        _whole("train_loader", self.train_loader, 0, "or None: the one that is trained on")
        if self.integrity is not None and self.integrity.recompute_every is not None:
            raise UnsupportedError(
                "a script under Accelerate computes its gradients itself, and cannot be made to do it twice",
                hint="recompute_every is for DurableSession; replicas_every compares replicas here as well",
            )
        self.settings()

    # --- what the session takes ---------------------------------------------------------------

    def settings(self) -> Settings:
        """Frozen and checked, as ``Run.open`` takes it."""
        policy = self.spec.checkpoint if self.spec is not None else None
        return Settings(
            resume=self.resume,
            takeover=self.takeover,
            promise=Promise.BITWISE if self.promise is None else _promise(self.promise),
            insist=self.promise is not None,
            accept_distribution=self.accept_distribution,
            cadence=Cadence(self.every_n_steps, self.every_seconds),
            retention=self.retention or Retention(),
            tiers=self.tiers or Tiers(),
            backlog=self.backlog,
            on_rpo_breach=self.on_rpo_breach,
            supply_window=self.supply_window,
            integrity=self.integrity or Integrity(),
            rpo_steps=policy.rpo_steps if policy is not None else None,
        )

    def session(self) -> dict[str, Any]:
        """The keyword arguments of ``DurableSession.open`` that are options."""
        settings = self.settings()
        return {name: getattr(self, name) for name in _SESSION} | {"rpo_steps": settings.rpo_steps}

    def home(self, project_dir: str | os.PathLike[str] | None = None) -> str:
        """The directory or URL of this run, its key included. ``UsageError`` when nobody says where."""
        root = str(self.root) if self.root is not None else None
        if root is None and project_dir:
            root = str(Path(project_dir) / "durable")
        if root is None:
            raise UsageError(
                "nobody says where this run lives",
                hint=f"{PREFIX}ROOT=DIR, --root DIR, `root: DIR` in durable.yaml or below durable_config:, "
                "Accelerator(durable=DIR), or Accelerator(project_dir=DIR)",
            )
        return root if self.run_key is None else f"{root}/{self.run_key}"

    # --- where options come from ----------------------------------------------------------------

    @classmethod
    def of(cls, mapping: Any, where: str = "durable.yaml", path: str = "") -> DurableOptions:
        """What the file ``where`` says, below its key ``path``. ``UsageError`` names the file and the key: an
        unknown one, with the nearest that is known, or one of an illegal value."""
        try:
            options = decode_dataclass(cls, {} if mapping is None else mapping, path, without=_CODE_ONLY)
        except FormatError as error:
            named = f"{error.key}: " if error.key else ""
            raise UsageError(f"{where}: {named}{error.reason}", hint=error.hint) from error
        except UsageError as error:
            within = f"{path}: " if path else ""
            raise type(error)(f"{where}: {within}{error.message}", hint=error.hint) from error
        assert isinstance(options, cls)
        return options

    @classmethod
    def read(cls, file: str | os.PathLike[str]) -> DurableOptions:
        """The options of a YAML or JSON file."""
        found = runfile.document(Path(file), hint="--durable and ACCELERATE_DURABLE_FILE name such a file")
        return cls.of(found, str(file))

    @classmethod
    def gather(
        cls,
        environ: Mapping[str, str] = os.environ,
        file: str | os.PathLike[str] | None = None,
        **arguments: Any,
    ) -> DurableOptions:
        """Of a file (``file``, or what ``ACCELERATE_DURABLE_FILE`` names), the environment, and
        ``arguments``; later ones win. An empty variable is one that is not set.
        """
        file = file or environ.get(FILE) or None
        options = cls() if file is None else cls.read(file)
        return replace(options, **{**_environment(environ), **arguments})

    @classmethod
    def variables(cls, mapping: Any) -> dict[str, str]:
        """What ``of`` was given, as variables for a process that is started: ``gather`` finds the same."""
        given = mapping or {}
        return {f"{PREFIX}{name.upper()}": _as_text(value) for name, value in given.items()}


#: Options that are objects of ours: below them a file has further keys.
_OBJECTS: Mapping[str, type] = {
    "tiers": Tiers, "retention": Retention, "integrity": Integrity, "spec": RunSpec
}  # fmt: skip
#: What ``DurableSession.open`` takes under the same name.
_SESSION = (
    "resume", "every_n_steps", "every_seconds", "promise", "accept_distribution", "retention", "backlog",
    "on_rpo_breach", "tiers", "supply_window", "integrity", "takeover", "spec",
)  # fmt: skip


# --- the environment ------------------------------------------------------------------------------


def _environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """The options that variables give. A process that is told of an option it does not know must not go on
    as if nothing had been said."""
    variables = {f"{PREFIX}{name.upper()}": name for name in option_names()}
    found: dict[str, Any] = {}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(PREFIX) or variable == FILE or not text:
            continue
        if variable not in variables:
            near = difflib.get_close_matches(variable, [*variables, FILE], n=1, cutoff=0.5)
            meant = f"did you mean {near[0]}?" if near else "known: " + ", ".join([*variables, FILE])
            raise UsageError(f"{variable}: no such option", hint=meant)
        name = variables[variable]
        value = _value(typing.get_type_hints(DurableOptions)[name], text)
        found[name] = getattr(DurableOptions.of({name: value}, f"{variable}={text!r}"), name)
    return found


def option_names() -> tuple[str, ...]:
    """Of the options that a file or a variable can give."""
    return tuple(item.name for item in fields(DurableOptions) if item.name not in _CODE_ONLY)


def _value(hint: Any, text: str) -> Any:
    """``text`` as a file would say it: a word where a word is wanted, else JSON."""
    union = typing.get_origin(hint) in (Union, types.UnionType)
    options = set(typing.get_args(hint) if union else (hint,))
    if bool in options:
        return _WORDS.get(text.lower(), text)
    if not _wants_json(options):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _wants_json(options: set[Any]) -> bool:
    return any(option in (int, float) or dataclasses.is_dataclass(option) for option in options)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# --- single values --------------------------------------------------------------------------------


def _root(value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise UsageError(f"root={value!r}", hint="a directory or URL for this run")
    text = os.fspath(value).rstrip("/")
    if not text:
        raise UsageError(f"root={value!r}", hint="a directory or URL for this run")
    return text


def _promise(value: Any) -> Promise:
    try:
        return Promise(value)
    except ValueError as error:
        known = ", ".join(repr(promise.value) for promise in Promise)
        raise UsageError(f"promise={value!r}", hint=f"one of {known}") from error


def _whole(name: str, value: Any, least: int, otherwise: str) -> None:
    good = value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= least)
    if not good:
        raise UsageError(f"{name}={value!r}", hint=f"a whole number, {least} or more, {otherwise}")
