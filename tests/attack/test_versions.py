"""What a newer version wrote is whole: it is refused, never marked as damaged."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from attack_runs import start, state_at

from durable_core import errors
from durable_core.engine.inspect import open_run
from durable_core.format import manifest
from durable_core.session import Run
from durable_core.state import tree
from durable_core.types import CheckpointState


@pytest.mark.parametrize("module", [manifest, tree], ids=["manifest", "document"])
def test_an_older_version_of_this_library_refuses_and_spoils_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType
) -> None:
    run = start(tmp_path)
    version = module.VERSION + 1
    with monkeypatch.context() as newer:
        newer.setattr(module, "VERSION", version)
        newer.setattr(module, "OLDEST", version, raising=False)  # what is written when nothing new is needed
        run.save(state_at(1), {}, step=1, wait=True)
        run.close()
    older = Run.open(tmp_path)
    with pytest.raises(errors.UnknownVersionError):
        older.load()
    older.close()
    assert open_run(tmp_path).state.checkpoints[1].state is CheckpointState.COMMITTED
    monkeypatch.setattr(module, "VERSION", version)
    monkeypatch.setattr(module, "OLDEST", version, raising=False)
    again = Run.open(tmp_path)
    assert again.load().step == 1
    again.close()
