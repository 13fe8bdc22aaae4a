"""L5. When to save: the cost model, what is measured, the decision, and who learns of it when."""

from durable_core.session.cadence.history import History, Rate, estimate, read_history
from durable_core.session.cadence.meter import Figures, Meter
from durable_core.session.cadence.pacer import Pacer
from durable_core.session.cadence.policy import Cadence, Interval, Limits, decide
from durable_core.session.cadence.timetable import Schedule, Timetable

__all__ = [
    "Cadence",
    "Figures",
    "History",
    "Interval",
    "Limits",
    "Meter",
    "Pacer",
    "Rate",
    "Schedule",
    "Timetable",
    "decide",
    "estimate",
    "read_history",
]
