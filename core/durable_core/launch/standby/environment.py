"""L5. Which variables a worker may have that its standby had not.

A standby has imported packages under the environment of its own start, and what they read then, they keep. So
a worker may differ from its standby only in what is told to each worker anew, and of that only in what no
package has read: the reads are watched, not assumed. Variables that C libraries read (``OMP_NUM_THREADS``)
cannot be watched; they are all among those that have to be equal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

_EACH = frozenset(
    {
        "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME",
        "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE",
        "MASTER_ADDR", "MASTER_PORT",
    }
)  # fmt: skip
_EACH_PREFIX = ("TORCHELASTIC_", "DURABLE_")

#: What an interpreter sets for itself, from variables that have to be equal.
_BY_INTERPRETER = ("LC_CTYPE",)

#: Modules that keep a rank which they read when they are imported, and from which variables: the first that
#: is set. They are told again (``mend``).
_RANKED = {
    "lightning.fabric.utilities.rank_zero": ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK"),
    "lightning_fabric.utilities.rank_zero": ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK"),
    "torchmetrics.utilities.prints": ("LOCAL_RANK",),
}


def each(name: str) -> bool:
    """Whether this variable is told to each worker anew."""
    return name in _EACH or name.startswith(_EACH_PREFIX)


def common(environ: Mapping[str, str]) -> dict[str, str]:
    """What all workers of a node share for as long as the agent lives: the environment of its standbys."""
    return {name: value for name, value in environ.items() if not each(name)}


class Watched(os._Environ[str]):
    """``os.environ`` while packages are imported: ``reads`` is what they ask for of what each worker is told.

    That is not there yet, so reading the whole environment, as packages do to pick out names of their own,
    does not count.
    """

    reads: set[tuple[str, str]]

    def __getitem__(self, key: str) -> str:
        try:
            return super().__getitem__(key)
        except KeyError:
            if each(key):
                self.reads.add((_reader(), key))
            raise

    @staticmethod
    def begin() -> Watched:
        """The object stays the same, for packages hold it."""
        watched = os.environ
        watched.__class__ = Watched
        assert isinstance(watched, Watched)
        watched.reads = set()
        return watched

    def end(self) -> tuple[str, ...]:
        """Stop; what was read by modules that ``mend`` does not know, to be shown."""
        found = sorted(f"{module} reads {name}" for module, name in self.reads if module not in _RANKED)
        del self.reads
        self.__class__ = os._Environ  # type: ignore[assignment]
        return tuple(found)


def _reader() -> str:
    depth = 2
    while (name := str(sys._getframe(depth).f_globals.get("__name__"))) in (
        "os",
        "_collections_abc",
        "collections.abc",
    ):
        depth += 1
    return name


def become(environ: Mapping[str, str]) -> None:
    """Make this process's environment exactly ``environ``, for C libraries as well, and mend what was read
    before."""
    made = {name: os.environ[name] for name in _BY_INTERPRETER if name in os.environ}
    os.environ.clear()
    os.environ.update({**environ, **made})
    for name, variables in _RANKED.items():
        module = sys.modules.get(name)
        if module is not None:
            found = next((environ[variable] for variable in variables if variable in environ), "0")
            module.rank_zero_only.rank = int(found)
