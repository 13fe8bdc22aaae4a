"""L6. A launcher or a controller without one of its defences, for negative controls:
``python -m durable_core.testing.drills.unguarded DEFENCE MODULE [ARGS]``.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Callable
from typing import Any


def _signatures() -> None:
    """That a failure is the same as before, nobody remembers."""
    from durable_core.launch import retry

    retry._RULES = tuple(rule for rule in retry._RULES if rule is not retry._repeated)


def _comparison() -> None:
    """Each rank's times are looked at by themselves."""
    from durable_core.launch.stragglers import Watch

    Watch.seen = lambda self, beats: self  # type: ignore[method-assign]
    _also_in_the_controller("comparison")


def _controllers() -> None:
    """The one that is started first is the only one."""
    from durable_core.launch.agent.house import Helper

    tend = Helper.tend

    def once(self: Helper) -> None:
        if not self.pids:
            tend(self)

    Helper.tend = once  # type: ignore[method-assign]


def _final_record() -> None:
    """A group whose workers ended with 0 has done its work."""
    from durable_core.launch.agent.ended import Cause, Ended, Verdict
    from durable_core.launch.agent.judging import Judge

    judge = Judge.__call__

    def believing(self: Judge, ended: Ended) -> Verdict:
        if ended.cause is Cause.FINISHED:
            return Verdict(0, "every worker ended with 0")
        return judge(self, ended)

    Judge.__call__ = believing  # type: ignore[method-assign]


def _also_in_the_controller(name: str) -> None:
    main: Any = importlib.import_module("durable_core.launch.agent.main")
    command = main._controller

    def unguarded(*given: Any) -> tuple[str, ...]:
        python, _, module, *rest = command(*given)
        return (python, "-m", __spec__.name if __spec__ else __name__, name, module, *rest)

    main._controller = unguarded


DEFENCES: dict[str, Callable[[], None]] = {
    "signatures": _signatures,
    "comparison": _comparison,
    "controllers": _controllers,
    "final record": _final_record,
}


def main(defence: str, module: str, *arguments: str) -> None:
    DEFENCES[defence]()
    sys.argv[:] = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
