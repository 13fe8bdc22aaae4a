"""L5. Stacks as faulthandler writes them, and whether a rank waits for others in one. Pure.

Faulthandler shows Python frames only: where native code waits is known from the Python function that called
it. A handle that the script waits on itself (``work.wait()``) looks like the script's own code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):\s*$")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')

#: What stands for the outer frames of a stack that is too deep to be shown.
_DEEPER = "  ..."
_OUTERMOST = frozenset({"<module>", "_run_module_as_main", _DEEPER})

#: A rank whose innermost frame is one of these waits for others. (end of the path, function or ``None``: any)
_WAITS: tuple[tuple[str, str | None], ...] = (
    ("torch/distributed/distributed_c10d.py", None),
    ("torch/distributed/rendezvous.py", None),
    ("torch/distributed/_functional_collectives.py", None),
    ("torch/distributed/nn/functional.py", None),
    ("torch/nn/parallel/distributed.py", None),
    ("torch/autograd/graph.py", "_engine_run_backward"),
    ("torch/autograd/__init__.py", "backward"),
    ("torch/autograd/__init__.py", "grad"),
)


@dataclass(frozen=True)
class Frame:
    file: str
    function: str

    def __str__(self) -> str:
        return f"{self.file.rpartition('/')[2]}:{self.function}"


_REST = Frame("", _DEEPER)


def main_stack(text: str) -> tuple[Frame, ...]:
    """The main thread's frames in the newest whole dump of ``text``, innermost last; empty when there is
    none.

    It is the thread whose outermost frame is a module's: others begin in ``threading``. (Which thread is
    the "current" one says only who was given the signal.) A dump may be read while it is written: a block
    without its outermost frame is not whole, unless it says that more frames follow.
    """
    blocks: list[list[Frame]] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            blocks.append([])
        elif (frame := _FRAME.match(line)) is not None and blocks:
            blocks[-1].append(Frame(frame["file"], frame["function"]))
        elif line == _DEEPER and blocks:
            blocks[-1].append(_REST)
    whole = [block for block in blocks if block and block[-1].function in _OUTERMOST]
    return tuple(frame for frame in reversed(whole[-1]) if frame is not _REST) if whole else ()


def waiting_in(frames: tuple[Frame, ...]) -> str:
    """What the innermost frame waits in, or ``""`` when it is code that waits for nobody as far as can be
    seen."""
    if not frames:
        return ""
    top = frames[-1]
    for file, function in _WAITS:
        if top.file.endswith(file) and function in (None, top.function):
            return str(top)
    return ""
