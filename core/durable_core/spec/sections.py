"""L1. What a launched run declares besides what its script is: frozen, validated, each with a default that
means *not said*. Units are in the names."""

from __future__ import annotations

from dataclasses import dataclass, field

from durable_core.spec.checking import amounts, choice, count, distinct, positive, require
from durable_core.spec.goals import Goal
from durable_core.spec.secrecy import REFERENCES, is_reference, looks_secret

Scalar = str | int | float | bool | None
#: a frozen flat mapping: sorted ``(dotted name, value)`` pairs; a JSON object on disk
Pairs = tuple[tuple[str, Scalar], ...]

#: Classes of failures that a budget may be given for, and those that are never tried again.
CLASSES = tuple(f"F{number}" for number in range(1, 21))
NEVER_RETRIED = frozenset({"F7", "F14", "F15", "F16", "F19", "F20"})
#: What has to work with another number of workers before their number may change (SCHED-06).
CAPABILITIES = ("model_sharding", "optimizer_state", "global_batch", "data_assignment", "schedule")
#: What a failure may take out of service.
QUARANTINE = ("node", "image", "data", "storage")


# --- who takes part --------------------------------------------------------------------------


@dataclass(frozen=True)
class Elastic:
    """Between ``min`` and ``max`` workers. ``supports``: the ``CAPABILITIES`` that whoever wrote the training
    declares for all sizes between; all are needed. ``uneven``: what happens when the global batch does not
    divide among them: ``refuse`` that size, or give some workers one sample more (``spread``)."""

    min: int
    max: int
    uneven: str = "refuse"
    supports: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        positive(self.min, "membership.elastic.min")
        positive(self.max, "membership.elastic.max")
        require(self.min <= self.max, "membership.elastic", f"min {self.min} is more than max {self.max}")
        choice(self.uneven, ("refuse", "spread"), "membership.elastic.uneven")
        for name in self.supports:
            choice(name, CAPABILITIES, "membership.elastic.supports")

    @property
    def missing(self) -> tuple[str, ...]:
        """Capabilities that are not declared."""
        return tuple(name for name in CAPABILITIES if name not in self.supports)


@dataclass(frozen=True)
class RepairableRole:
    """A role that may be started anew while the others go on: which communicators and which state are then
    built again. What is not listed must not be touched."""

    role: str
    communicators: tuple[str, ...]
    state: tuple[str, ...]

    def __post_init__(self) -> None:
        where = f"membership.role_repair.{self.role or '?'}"
        require(bool(self.role), where, "a role needs a name")
        require(bool(self.communicators), where, "name the communicators that are built again")
        distinct(self.communicators, f"{where}.communicators")
        distinct(self.state, f"{where}.state")


@dataclass(frozen=True)
class Membership:
    """Exactly one of ``fixed`` (that many workers, always), ``elastic``, ``role_repair`` (SCHED-04)."""

    fixed: int | None = None
    elastic: Elastic | None = None
    role_repair: tuple[RepairableRole, ...] = ()

    def __post_init__(self) -> None:
        given = (self.fixed is not None, self.elastic is not None, bool(self.role_repair))
        require(sum(given) == 1, "membership", "give exactly one of fixed, elastic, role_repair")
        positive(self.fixed, "membership.fixed")
        distinct(tuple(each.role for each in self.role_repair), "membership.role_repair")

    def __str__(self) -> str:
        if self.elastic is not None:
            return f"{self.elastic.min} to {self.elastic.max}"
        return "any number" if self.fixed is None else f"exactly {self.fixed}"

    def admits(self, workers: int) -> bool:
        """Whether a group of that size is what was agreed on."""
        if self.elastic is not None:
            return self.elastic.min <= workers <= self.elastic.max
        return self.fixed is None or workers == self.fixed


@dataclass(frozen=True)
class Placement:
    """``group`` devices that talk most (the tensor-parallel ones) must lie in one domain of the level
    ``within``; ``avoid``: domains that must not be used."""

    group: int = 1
    within: str = "host"
    avoid: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        positive(self.group, "parallel.placement.group")
        choice(self.within, ("host", "rack", "cluster"), "parallel.placement.within")
        distinct(self.avoid, "parallel.placement.avoid")


@dataclass(frozen=True)
class ParallelPlan:
    """The mesh: ways of data, tensor, pipeline, context and expert parallelism (experts are spread over the
    data-parallel ways). ``sharding``: how the state is divided; ``topology``: what the plan was made for."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    sharding: str = ""
    topology: str = ""
    placement: Placement = field(default_factory=Placement)

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "pp", "cp", "ep"):
            positive(getattr(self, name), f"parallel.{name}")
        require(self.dp % self.ep == 0, "parallel.ep", f"{self.ep} does not divide dp={self.dp}")
        require(
            self.workers % self.placement.group == 0,
            "parallel.placement.group",
            f"{self.placement.group} does not divide the {self.workers} workers",
        )

    @property
    def workers(self) -> int:
        return self.dp * self.tp * self.pp * self.cp


# --- what is trained on ----------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """``unit`` of the global batch; ``sequence_length`` in tokens; how the loss is reduced over it."""

    unit: str = "samples"
    sequence_length: int | None = None
    loss_reduction: str = "mean"

    def __post_init__(self) -> None:
        choice(self.unit, ("samples", "tokens", "sequences"), "batch.unit")
        choice(self.loss_reduction, ("mean", "sum", "token-mean"), "batch.loss_reduction")
        positive(self.sequence_length, "batch.sequence_length")


@dataclass(frozen=True)
class Determinism:
    """The flags that the promise rests on; ``None``: not said. The preflight checks them in a process."""

    deterministic_algorithms: bool | None = None
    cudnn_benchmark: bool | None = None
    tf32: bool | None = None
    cublas_workspace: str | None = None
    fingerprint: Pairs = ()


# --- what must be reached --------------------------------------------------------------------


@dataclass(frozen=True)
class RecoveryGoals:
    """``goals``: RPO and RTO for each named failure domain. ``rollback_window_steps``: a restart never goes
    back further. ``detection_window_steps``: the slowest detector's; a checkpoint older than that is kept.
    ``detection_seconds``: a failure is noticed within. ``probation_steps``: verified steps before a restored
    run counts as running."""

    goals: tuple[Goal, ...] = ()
    rollback_window_steps: int | None = None
    detection_window_steps: int = 0
    detection_seconds: float | None = None
    probation_steps: int = 2

    def __post_init__(self) -> None:
        distinct(tuple(goal.domain for goal in self.goals), "recovery.goals")
        positive(self.rollback_window_steps, "recovery.rollback_window_steps")
        count(self.detection_window_steps, "recovery.detection_window_steps")
        amounts(self, "recovery", "detection_seconds")
        count(self.probation_steps, "recovery.probation_steps")


@dataclass(frozen=True)
class FailurePolicy:
    """``max_restarts``: charged restarts of the run without progress; ``retries``: of one class (``F1: 5``),
    within that. ``None``: the launcher's own. The delay before restart ``n`` is drawn up to
    ``min(backoff_max_seconds, backoff_seconds * 2**(n-1))``. ``repeat_threshold``: the same signature at the
    same step on so many placements is no longer tried again. ``quarantine``: what may be taken out of service
    without asking. ``collective_timeout_seconds``: what every process group is to be told.
    ``standbys_waived``: that nobody stands by is meant so."""

    max_restarts: int | None = None
    retries: Pairs = ()
    backoff_seconds: float = 1.0
    backoff_max_seconds: float = 60.0
    repeat_threshold: int = 2
    quarantine: tuple[str, ...] = QUARANTINE
    collective_timeout_seconds: float | None = None
    standbys_waived: bool = False

    def __post_init__(self) -> None:
        count(self.max_restarts, "failure.max_restarts")
        for name, value in self.retries:
            where = f"failure.retries.{name}"
            require(name in CLASSES, where, f"is no class of failures: {CLASSES[0]} to {CLASSES[-1]}")
            good = isinstance(value, int) and not isinstance(value, bool) and value >= 0
            require(good, where, f"must be an integer, 0 or more, not {value!r}")
            require(not value or name not in NEVER_RETRIED, where, "this class is never tried again")
        amounts(self, "failure", "backoff_seconds", zero=True)
        amounts(self, "failure", "backoff_max_seconds", "collective_timeout_seconds")
        require(
            self.backoff_seconds <= self.backoff_max_seconds,
            "failure.backoff_seconds",
            f"{self.backoff_seconds:g} is more than backoff_max_seconds={self.backoff_max_seconds:g}",
        )
        require(
            isinstance(self.repeat_threshold, int) and self.repeat_threshold >= 2,
            "failure.repeat_threshold",
            f"must be at least 2, not {self.repeat_threshold!r}: one failure repeats nothing",
        )
        unknown = sorted(set(self.quarantine) - set(QUARANTINE))
        require(not unknown, "failure.quarantine", f"{unknown} are none of {', '.join(QUARANTINE)}")

    def retries_of(self, failure: str) -> int | None:
        """The budget of a class; ``None``: not said."""
        value = dict(self.retries).get(failure)
        return value if isinstance(value, int) else None


@dataclass(frozen=True)
class Budgets:
    """What the run may use up before it is ended as failed. ``None``: no limit. ``cost`` is in ``currency``
    and needs the price of a device-hour. ``wall_seconds``: from each start to its last sign in the journal;
    ``failures``: charged ones in the life of the run; ``lost_steps``: trained and lost again, all told."""

    device_hours: float | None = None
    wall_seconds: float | None = None
    cost: float | None = None
    currency: str = ""
    device_hour_price: float | None = None
    failures: int | None = None
    lost_steps: int | None = None

    def __post_init__(self) -> None:
        amounts(self, "budgets", "device_hours", "wall_seconds", "cost")
        amounts(self, "budgets", "device_hour_price", zero=True)
        count(self.failures, "budgets.failures")
        count(self.lost_steps, "budgets.lost_steps")
        priced = self.cost is None or (self.device_hour_price is not None and bool(self.currency))
        require(priced, "budgets.cost", "needs device_hour_price and currency")


# --- who may, who is told, what comes out ----------------------------------------------------


@dataclass(frozen=True)
class Security:
    """``credentials`` says where they are (``env:NAME``, ``file:PATH``, ...), never what they are. ``scope``:
    the keys the run may touch. ``publish_authority``: principals who may publish its artifacts."""

    credentials: str | None = None
    scope: tuple[str, ...] = ()
    publish_authority: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # The value is not shown: it may be the secret.
        good = self.credentials is None or is_reference(self.credentials)
        require(
            good,
            "security.credentials",
            "is not a reference to a credential",
            "say where it is, never what it is: " + ", ".join(REFERENCES),
        )
        distinct(self.scope, "security.scope")
        distinct(self.publish_authority, "security.publish_authority")


@dataclass(frozen=True)
class Observability:
    """``sinks``: where metrics go, such as ``jsonl:/var/log/run.jsonl``. ``alerts``: the owner of each alert.
    ``trace_sampling``: the part of the steps that are traced, 0 to 1."""

    sinks: tuple[str, ...] = ()
    alerts: Pairs = ()
    trace_sampling: float = 0.0

    def __post_init__(self) -> None:
        distinct(self.sinks, "observability.sinks")
        for name, owner in self.alerts:
            require(
                isinstance(owner, str) and bool(owner.strip()),
                f"observability.alerts.{name}",
                "every alert has an owner",
            )
        for sink in self.sinks:
            require(looks_secret(sink) is None, "observability.sinks", "holds what looks like a secret")
        amounts(self, "observability", "trace_sampling", zero=True)
        require(self.trace_sampling <= 1, "observability.trace_sampling", "must be 0 to 1")


@dataclass(frozen=True)
class Output:
    """``artifacts``: names of what the run publishes; ``evaluation``: the plan it is judged by; ``publish``:
    ``accepted`` (after the evaluation), ``final`` (when training ends) or ``never``;
    ``post_run_manifest``: where the account of the finished run goes, below the root unless absolute."""

    artifacts: tuple[str, ...] = ()
    evaluation: str = ""
    publish: str = "final"
    post_run_manifest: str = ""

    def __post_init__(self) -> None:
        distinct(self.artifacts, "output.artifacts")
        choice(self.publish, ("accepted", "final", "never"), "output.publish")
        require(
            self.publish != "accepted" or bool(self.evaluation),
            "output.evaluation",
            'publish="accepted" needs the plan that accepts',
        )
