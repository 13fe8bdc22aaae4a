"""L6. A cluster in simulation: what a training job of ten thousand cards gets done, by how it saves and
recovers.

``python -m durable_core.testing.cluster [--seeds N] [--json]``. Everything is drawn from seeds. What it
rests on is in ``model`` and printed with every result; it is arithmetic about a machine, no measurement of
one.
"""

from durable_core.testing.cluster.expected import Expectation, expectation
from durable_core.testing.cluster.model import Job, Machine, Tier
from durable_core.testing.cluster.simulate import Outcome, run

__all__ = ["Expectation", "Job", "Machine", "Outcome", "Tier", "expectation", "run"]
