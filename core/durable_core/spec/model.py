"""L1. The spec as frozen values, validated on construction."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from durable_core.errors import PromiseError, UnknownVersionError
from durable_core.spec.aliases import is_digest, mutable_alias
from durable_core.spec.canonical import digest_of, flatten
from durable_core.spec.checking import LATER, amounts, choice, positive, require
from durable_core.spec.sections import (
    Batch,
    Budgets,
    Determinism,
    FailurePolicy,
    Membership,
    Observability,
    Output,
    Pairs,
    ParallelPlan,
    RecoveryGoals,
    Security,
)
from durable_core.types import Promise

#: algorithm -> versions this code can read
KNOWN_ALGORITHMS: Mapping[str, tuple[int, ...]] = {
    "sampler": (1,),
    "shuffle": (1,),
    "mixture": (1,),
    "packer": (1,),
    "checkpoint_schema": (1,),
    "manifest_format": (1,),
}

_RUN_KEY = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True)
class ModelSpec:
    """``parameters_digest`` is that of the sorted ``[name, shape, dtype]`` rows and ``parameters`` their
    element count; ``initial`` names the weights a run starts from by digest (``None``: the script's own)."""

    cls: str = ""
    parameters: int = 0
    parameters_digest: str = ""
    initial: str | None = None


@dataclass(frozen=True)
class OptimizerSpec:
    """``config`` is kept flat rather than digested, so that a difference can be named."""

    config: Pairs = ()


@dataclass(frozen=True)
class DataSpec:
    """``verified``: ``dataset_id`` is a digest of the content. ``size``: samples per epoch (``None``:
    unknown). ``global_batch``: samples per optimizer step over all roles. ``remainder``: what happens
    to the samples of an epoch that do not fill a batch. ``transforms``, ``packing`` and ``mixture`` name the
    version of each by digest or number; ``epochs``: what ends one (``None``: not said)."""

    dataset_id: str = ""
    verified: bool = False
    size: int | None = None
    order: str = "shuffled"
    remainder: str = "drop"
    global_batch: int | None = None
    tokenizer: str | None = None
    num_workers: int = 0
    transforms: str | None = field(default=None, metadata=LATER)
    packing: str | None = field(default=None, metadata=LATER)
    mixture: str | None = field(default=None, metadata=LATER)
    epochs: str | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        positive(self.global_batch, "data.global_batch")
        require(self.size is None or self.size >= 0, "data.size", "must not be negative")
        require(self.num_workers >= 0, "data.num_workers", "must not be negative")
        require(
            not self.verified or is_digest(self.dataset_id),
            "data.dataset_id",
            f"verified, but {self.dataset_id!r} is not a digest",
            "give sha256:<hex> of the dataset manifest, or verified=False",
        )


@dataclass(frozen=True)
class Target:
    """Where the run ends, in optimizer steps and epochs; ``None`` is no limit."""

    max_steps: int | None = None
    max_epochs: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_steps", "max_epochs"):
            value = getattr(self, name)
            require(value is None or value >= 0, f"target.{name}", f"must not be negative, but is {value!r}")


@dataclass(frozen=True)
class CheckpointPolicy:
    """Cadence and retention; free to change at any restart. ``every_n_steps=None`` is automatic, by
    ``method`` (``exact``, ``young``, ``daly``) between ``min_seconds`` and ``max_seconds``. ``tiers``: those
    that the run keeps copies in. ``incremental``, ``integrity``: the versions of those algorithms."""

    every_n_steps: int | None = None
    every_seconds: float | None = None
    keep_last: int = 3
    keep_every_n_steps: int | None = None
    backlog: str = "skip"
    rpo_steps: int | None = None
    on_rpo_breach: str = "continue"
    method: str | None = field(default=None, metadata=LATER)
    min_seconds: float | None = field(default=None, metadata=LATER)
    max_seconds: float | None = field(default=None, metadata=LATER)
    tiers: tuple[str, ...] = field(default=(), metadata=LATER)
    incremental: str | None = field(default=None, metadata=LATER)
    integrity: str | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        for name in ("every_n_steps", "keep_last", "keep_every_n_steps", "rpo_steps"):
            positive(getattr(self, name), f"checkpoint.{name}")
        seconds = self.every_seconds
        good = seconds is None or (math.isfinite(seconds) and seconds > 0)
        require(good, "checkpoint.every_seconds", f"must be positive seconds, not {seconds!r}")
        choice(self.backlog, ("skip", "delay"), "checkpoint.backlog")
        choice(self.on_rpo_breach, ("continue", "pause", "abort"), "checkpoint.on_rpo_breach")
        choice(self.method, ("exact", "young", "daly"), "checkpoint.method")
        amounts(self, "checkpoint", "min_seconds", zero=True)
        amounts(self, "checkpoint", "max_seconds")


@dataclass(frozen=True)
class Provenance:
    """Where the run came from. Never identity: editing a print must not brick a run. ``dirty``: the working
    tree differs from the revision; such a spec cannot be frozen. ``kernels``: compiled artifacts and their
    versions."""

    code_digest: str | None = None
    source_revision: str | None = None
    image: str | None = None
    environment: Pairs = ()
    package_lock: str | None = field(default=None, metadata=LATER)
    kernels: Pairs = field(default=(), metadata=LATER)
    dirty: bool = field(default=False, metadata=LATER)


@dataclass(frozen=True)
class Algorithms:
    """Versions of everything whose change would change the run or its files (SPEC-07)."""

    sampler: int = 1
    shuffle: int = 1
    mixture: int = 1
    packer: int = 1
    checkpoint_schema: int = 1
    manifest_format: int = 1

    def __post_init__(self) -> None:
        for name, known in KNOWN_ALGORITHMS.items():
            version = getattr(self, name)
            if version not in known:
                raise UnknownVersionError(
                    f"spec.algorithms.{name}",
                    f"version {version!r} is not among {list(known)}",
                    hint="use the version of durable that wrote it, or start a fork",
                )


@dataclass(frozen=True)
class RunSpec:
    """One run. Validated on construction (``UsageError`` names the field); immutable after it.

    ``roles`` are the logical data-parallel roles, one per writer. ``accumulation``: micro-batches
    per optimizer step. ``accept_distribution`` and ``reason`` acknowledge the *distribution* promise
    (``PromiseError`` without them). ``cancel_authority``: principals who may cancel the run.
    ``parent_spec``: digest of the spec this one was forked from. The sections after it are what a launched
    run declares; ``None`` or empty: not said.
    """

    run_key: str = "main"
    promise: Promise = Promise.BITWISE
    seed: int = 0
    model: ModelSpec = field(default_factory=ModelSpec)
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    data: DataSpec | None = None
    precision: str = "32-true"
    roles: tuple[str, ...] = ("dp0",)
    accumulation: int = 1
    target: Target = field(default_factory=Target)
    checkpoint: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    cancel_authority: tuple[str, ...] = ("operator",)
    algorithms: Algorithms = field(default_factory=Algorithms)
    provenance: Provenance = field(default_factory=Provenance)
    accept_distribution: bool = False
    reason: str = ""
    parent_spec: str | None = None
    owner: str = field(default="", metadata=LATER)
    membership: Membership | None = field(default=None, metadata=LATER)
    parallel: ParallelPlan | None = field(default=None, metadata=LATER)
    batch: Batch | None = field(default=None, metadata=LATER)
    determinism: Determinism | None = field(default=None, metadata=LATER)
    recovery: RecoveryGoals = field(default_factory=RecoveryGoals, metadata=LATER)
    failure: FailurePolicy = field(default_factory=FailurePolicy, metadata=LATER)
    budgets: Budgets = field(default_factory=Budgets, metadata=LATER)
    security: Security = field(default_factory=Security, metadata=LATER)
    observability: Observability = field(default_factory=Observability, metadata=LATER)
    output: Output = field(default_factory=Output, metadata=LATER)

    def __post_init__(self) -> None:
        require(
            bool(_RUN_KEY.fullmatch(self.run_key)),
            "run_key",
            f"{self.run_key!r} is not [A-Za-z0-9._-]{{1,64}}",
        )
        require(isinstance(self.promise, Promise), "promise", f"{self.promise!r} is not a Promise")
        require(-(1 << 63) <= self.seed < 1 << 64, "seed", f"{self.seed} does not fit in 64 bits")
        positive(self.accumulation, "accumulation")
        different = len(self.roles) >= 1 and len(set(self.roles)) == len(self.roles)
        require(different, "roles", f"{self.roles!r} must be distinct, and at least one")
        self._require_one_size()
        if self.promise is Promise.DISTRIBUTION and not (self.accept_distribution and self.reason.strip()):
            raise PromiseError(
                "spec.promise: 'distribution' lets samples repeat or be skipped after a restart",
                hint='say why the conclusion drawn from the run permits it: accept_distribution="..." '
                "(of a RunSpec: accept_distribution=True, reason=...)",
            )

    def _require_one_size(self) -> None:
        if self.membership is None or self.parallel is None:
            return
        workers = self.parallel.workers
        require(
            self.membership.admits(workers),
            "membership",
            f"the parallel plan has {workers} workers, which it does not admit",
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON object; ``from_json`` takes it back to an equal spec."""
        from durable_core.spec import codec

        return codec.encode(self)

    @staticmethod
    def from_json(document: Mapping[str, Any] | str | bytes) -> RunSpec:
        """Read a spec. ``UnknownVersionError`` for a version or algorithm this code does not know,
        ``FormatError`` for anything malformed; both name the field."""
        from durable_core.spec import codec

        return codec.decode(document)

    def digest(self) -> str:
        """``sha256:<hex>`` of the canonical JSON: the spec's address."""
        return digest_of(self.to_json())

    def diff(self, other: RunSpec) -> tuple[str, ...]:
        """Dotted names of the fields that differ, sorted."""
        mine, theirs = flatten(self.to_json()), flatten(other.to_json())
        absent = object()
        return tuple(
            sorted(k for k in mine.keys() | theirs.keys() if mine.get(k, absent) != theirs.get(k, absent))
        )

    def freeze(self) -> RunSpec:
        """Check that every reference is immutable, and an elastic membership supported by all that it
        concerns; returns self. ``UsageError`` names the field."""
        references = {
            "model.initial": self.model.initial,
            "data.dataset_id": self.data.dataset_id if self.data else None,
            "data.tokenizer": self.data.tokenizer if self.data else None,
            "provenance.source_revision": self.provenance.source_revision,
            "provenance.image": self.provenance.image,
            "provenance.package_lock": self.provenance.package_lock,
            "output.evaluation": self.output.evaluation,
        }
        for name, value in references.items():
            why = mutable_alias(name.rpartition(".")[2], value) if value else None
            require(why is None, name, f"{value!r} {why}", "resolve it to a digest before the run starts")
        require(
            not self.provenance.dirty,
            "provenance.dirty",
            "the working tree differs from the revision, so nothing says what ran",
            "commit it first",
        )
        self._require_elastic()
        return self

    def _require_elastic(self) -> None:
        elastic = None if self.membership is None else self.membership.elastic
        if elastic is None or elastic.min == elastic.max:
            return
        missing = ", ".join(elastic.missing)
        require(
            not missing,
            "membership.elastic.supports",
            f"another number of workers is not declared to be supported by: {missing}",
            "declare it when it is so, or use membership.fixed",
        )
        require(
            self.promise is not Promise.BITWISE,
            "membership.elastic",
            "sums over another number of workers round otherwise, and the promise is bitwise",
            "promise: exact-order, or membership.fixed",
        )

    def forked_from(self, parent: RunSpec) -> RunSpec:
        """This spec as an explicit fork of ``parent`` (SPEC-08)."""
        return replace(self, parent_spec=parent.digest())

    def may_cancel(self, principal: str) -> bool:
        """FENCE-09: only the identities named in the spec."""
        return principal in self.cancel_authority
