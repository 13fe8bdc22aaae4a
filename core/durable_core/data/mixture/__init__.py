"""L3. Mixtures: several datasets drawn in declared ratios, exactly and for ever the same.

``Mixture`` is what a user makes; ``MixedSequence`` what is drawn. ``quota`` has the schedule with exact
counts and its proof, ``categorical`` the independent draws, ``policy`` the integers both stand on.
"""

from durable_core.data.mixture.policy import Policy, Source
from durable_core.data.mixture.report import (
    Finding,
    SourceReport,
    check_between,
    check_debts,
    check_draws,
    check_window,
    gone,
    mixture_in,
    report,
)
from durable_core.data.mixture.sequence import MixedSequence
from durable_core.data.mixture.view import Mixture

__all__ = [
    "Finding",
    "MixedSequence",
    "Mixture",
    "Policy",
    "Source",
    "SourceReport",
    "check_between",
    "check_debts",
    "check_draws",
    "check_window",
    "gone",
    "mixture_in",
    "report",
]
