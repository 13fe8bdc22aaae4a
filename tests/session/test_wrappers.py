"""What is set on an object of a framework is off again, whatever was there before."""

from __future__ import annotations

from types import SimpleNamespace

from durable_core.session.wrappers import Wrappers


class Loop:
    def run(self) -> str:
        return "theirs"


def test_wrappers_come_off_in_turn() -> None:
    loop, module = Loop(), SimpleNamespace(skip=None)
    wrappers = Wrappers()
    for text in ("ours", "ours again"):
        wrappers.set(loop, "run", lambda text=text: text)
        wrappers.set(module, "skip", text)
    assert (loop.run(), module.skip) == ("ours again", "ours again")
    wrappers.remove()
    wrappers.remove()
    assert (loop.run(), vars(loop), module.skip) == ("theirs", {}, None)
