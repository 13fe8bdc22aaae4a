"""Under Lightning, too, it is told when the data does not keep up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning_subject import Case, fit

from durable_core import events
from durable_core.session.watching import SupplyWatch
from tests.lives import life


def starved(self: Any, step: int, *_: Any) -> None:
    """Whatever was measured, all of it was waiting."""
    self._board.emit(events.InputStarved(0.0, step, 2.0, 1.0, 0.5, "I/O", f"too slow at {step}", 1))


def told(root: Path, **durable: Any) -> list[int]:
    """The steps of which that was told, in a fit of 48."""
    root.mkdir()

    def action() -> None:
        SupplyWatch._judge = starved  # type: ignore[method-assign]
        fit(Case(every=10, durable=durable), root, log="one")

    assert life(root, action) == 0
    output = (root / "output").read_text()
    return [step for step in range(49) if f"too slow at {step}\n" in output]


def test_a_fit_looks_every_so_many_steps_or_never(tmp_path: Path) -> None:
    assert told(tmp_path / "some", supply_window=20) == [21, 41]
    assert told(tmp_path / "none", supply_window=0) == []
