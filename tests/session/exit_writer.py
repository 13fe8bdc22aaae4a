"""A plain loop that ends as it is told to: ``exit_writer.py ROOT term|fenced|error|late``."""

from __future__ import annotations

import atexit
import contextlib
import signal
import sys
from functools import partial
from pathlib import Path

import torch
from torch import nn

from durable_core import DurableSession
from durable_core.clock import SystemClock
from durable_core.commit.claim import claim_generation
from durable_core.commit.journal import EMPTY
from durable_core.engine.performer import Performer
from durable_core.tier.posix import PosixTier


def main(root: str, ends: str) -> None:
    torch.set_num_threads(1)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with contextlib.ExitStack() as leaving:
        session = DurableSession.open(root, state={"model": model, "optimizer": optimizer})
        if ends == "late":
            atexit.register(session.close)
            atexit.register(session.save, wait=True)
        else:
            leaving.enter_context(session)
        while session.steps < 1_000_000 if ends == "term" else session.steps < 3:
            optimizer.zero_grad()
            model(torch.ones(1, 2)).mean().backward()
            optimizer.step()
            session.step()
            if session.steps == 3:
                print("trained", flush=True)
        if ends == "error":
            raise RuntimeError("mine")
        if ends == "fenced":
            performer = Performer(PosixTier(Path(root)), SystemClock())
            claim = claim_generation(EMPTY, launch_id="other", members=("dp0",), takeover=True)
            performer.run(claim)
            session.save(wait=True)


if __name__ == "__main__":
    once_more = partial(signal.raise_signal, signal.SIGTERM)  # as torchrun does when another rank has ended
    atexit.register(once_more if sys.argv[2] == "term" else bool)
    try:
        main(*sys.argv[1:])
    except SystemExit:
        once_more()
        raise
