"""Batches that the run does not know of: of prepared loaders that are not the one that trains.

Their position is in no checkpoint. What is only evaluated needs none; what is trained on does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from durable_core.errors import UnsupportedError

if TYPE_CHECKING:
    from accelerate_durable.loader import PreparedLoader

_COUNTED = "counted from 0 in the order of prepare"


class Strays:
    """``loaders``: all that were prepared, in order."""

    def __init__(self, loaders: Sequence[PreparedLoader]) -> None:
        self._loaders = loaders
        self._last: int | None = None  # which other one handed out the newest batch, gradients enabled

    def known(self) -> None:
        """The one that trains has handed out a batch."""
        self._last = None

    def handed_out(self, loader: PreparedLoader, *, along: bool) -> None:
        """Another one has. ``along``: in a pass during which an optimizer has stepped, as a loop over both
        reads it. Raises ``UnsupportedError`` then."""
        if not torch.is_grad_enabled():
            return
        self._last = place = self._loaders.index(loader)
        if along:
            raise UnsupportedError(
                f"prepared loader {place} ({_COUNTED}) is read along with the one that trains, and its "
                "position is in no checkpoint",
                hint="make one dataset of both; if it only evaluates, read it under torch.no_grad()",
            )

    def check_update(self, trains: PreparedLoader) -> None:
        """An optimizer is about to step, and ``trains`` has nothing outstanding: ``UnsupportedError``, for
        which samples the step consumes is not known."""
        place = self._loaders.index(trains)
        if self._last is not None:
            raise UnsupportedError(
                f"an optimizer steps on batches of prepared loader {self._last}, and the one that trains is "
                f"{place} ({_COUNTED})",
                hint=f"train_loader={self._last}, or one loader for all that is trained on",
            )
        raise UnsupportedError(
            f"an optimizer steps on what prepared loader {place} ({_COUNTED}) has not handed out",
            hint="accelerator.skip_first_batches, not accelerate.skip_first_batches; for steps without "
            "a batch, accelerator.commit() once before the loop",
        )
