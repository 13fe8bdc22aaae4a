"""L6. Death at a named instant, for processes that know nothing of it.

``DURABLE_TEST_CRASH="K6:2,K12"`` means: SIGKILL this process at the second arrival at ``K6``, or at
the first arrival at ``K12``, whichever comes first. A script is run under the hook, unchanged, with
``python -m durable_core.testing.crash script.py [arguments]``.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Callable, Mapping

from durable_core.engine import probe
from durable_core.errors import UsageError
from durable_core.types import CrashPoint

VARIABLE = "DURABLE_TEST_CRASH"


def parse(text: str) -> dict[CrashPoint, int]:
    """``"K6:2,K12"`` -> ``{K6: 2, K12: 1}``; ``UsageError`` names the part that does not read."""
    plan: dict[CrashPoint, int] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, count = part.partition(":")
        if name not in CrashPoint.__members__ or not (count or "1").isdigit() or int(count or "1") < 1:
            raise UsageError(f"{VARIABLE}: {part!r} is no crash point", hint="write K6 or K6:2, K0 to K21")
        plan[CrashPoint[name]] = int(count or "1")
    return plan


def killer(plan: Mapping[CrashPoint, int], kill: Callable[[], None]) -> Callable[[CrashPoint], None]:
    """A hook for ``probe.install`` that calls ``kill`` at the planned arrival."""
    arrivals = dict.fromkeys(plan, 0)

    def arrived(point: CrashPoint) -> None:
        if point in plan:
            arrivals[point] += 1
            if arrivals[point] == plan[point]:
                kill()

    return arrived


def kill_self() -> None:
    """No handler, no flush, no ``finally``: what a power cut or the OOM killer does to a process."""
    os.kill(os.getpid(), signal.SIGKILL)


def install_from_env(environ: Mapping[str, str] = os.environ) -> None:
    """Installs the hook that ``DURABLE_TEST_CRASH`` asks for, if it asks for one."""
    plan = parse(environ.get(VARIABLE, ""))
    if plan:
        probe.install(killer(plan, kill_self))


def main(argv: list[str]) -> None:
    if not argv:
        raise UsageError("no script given", hint="python -m durable_core.testing.crash script.py [arguments]")
    install_from_env()
    sys.argv = argv
    runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
