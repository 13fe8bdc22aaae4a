"""L1. The run spec: the immutable, content-addressed statement of what a run is.

It is written once, in ``run.created``. Every restart derives one again from the script, and
``check_resume`` says field by field what the difference means (``FIELD_RULES``). ``runfile`` reads what
people declare for a launched run.
"""

from durable_core.spec.aliases import is_digest, mutable_alias
from durable_core.spec.canonical import canonical, digest_of, flatten
from durable_core.spec.codec import SPEC_VERSION
from durable_core.spec.derive import derive, describe_model, pairs
from durable_core.spec.goals import DOMAINS, FATES, Goal
from durable_core.spec.model import (
    KNOWN_ALGORITHMS,
    Algorithms,
    CheckpointPolicy,
    DataSpec,
    ModelSpec,
    OptimizerSpec,
    Provenance,
    RunSpec,
    Target,
)
from durable_core.spec.rules import FIELD_RULES, Comparison, Rule, check_resume, compare, rule_of
from durable_core.spec.sections import (
    CAPABILITIES,
    Batch,
    Budgets,
    Determinism,
    Elastic,
    FailurePolicy,
    Membership,
    Observability,
    Output,
    ParallelPlan,
    Placement,
    RecoveryGoals,
    RepairableRole,
    Security,
)

__all__ = [
    "CAPABILITIES",
    "DOMAINS",
    "FATES",
    "FIELD_RULES",
    "KNOWN_ALGORITHMS",
    "SPEC_VERSION",
    "Algorithms",
    "Batch",
    "Budgets",
    "CheckpointPolicy",
    "Comparison",
    "DataSpec",
    "Determinism",
    "Elastic",
    "FailurePolicy",
    "Goal",
    "Membership",
    "ModelSpec",
    "Observability",
    "OptimizerSpec",
    "Output",
    "ParallelPlan",
    "Placement",
    "Provenance",
    "RecoveryGoals",
    "RepairableRole",
    "Rule",
    "RunSpec",
    "Security",
    "Target",
    "canonical",
    "check_resume",
    "compare",
    "derive",
    "describe_model",
    "digest_of",
    "flatten",
    "is_digest",
    "mutable_alias",
    "pairs",
    "rule_of",
]
