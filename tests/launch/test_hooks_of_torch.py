"""What is private in TorchElastic and used here is there, and is called as it wants to be. A failure names
what broke."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.elastic.agent.server import local_elastic_agent

from durable_core.launch.agent import hooks
from durable_core.launch.agent.hooks import TABLE, Hook


@pytest.mark.parametrize("hook", TABLE, ids=lambda hook: f"{getattr(hook.owner, '__name__', '')}.{hook.name}")
def test_the_hook_is_there(hook: Hook) -> None:
    assert not hooks.broken((hook,)), "\n".join(hooks.broken((hook,)))


class Changed:
    """As another torch could have it."""

    def __init__(self) -> None:
        self._kept = 1

    def _takes(self, group: object) -> None: ...

    def _takes_any(self, **named: object) -> None: ...


@pytest.mark.parametrize(
    ("hook", "fault"),
    [
        (Hook(Changed, "_gone", ("group",), "x"), "Changed._gone is not there"),
        (Hook(Changed, "_takes", ("worker_group",), "x"), "Changed._takes takes no worker_group"),
        (Hook(Changed, "_dropped", None, "x"), "Changed._dropped is not set"),
        (Hook(Changed, "_takes", ("group",), "x"), ""),
        (Hook(Changed, "_takes_any", ("group",), "x"), ""),
        (Hook(Changed, "_kept", None, "x"), ""),
    ],
)
def test_what_broke_is_named_with_the_version(hook: Hook, fault: str) -> None:
    found = hooks.broken((hook,))
    if not fault:
        assert found == ()
        return
    assert len(found) == 1
    assert fault in found[0] and torch.__version__ in found[0] and hooks.TESTED in found[0]


def test_torchs_own_starter_is_back_afterwards() -> None:
    theirs = vars(local_elastic_agent)["start_processes"]
    with pytest.raises(RuntimeError), hooks.starting_through(lambda **_: None):  # type: ignore[arg-type,return-value]
        assert vars(local_elastic_agent)["start_processes"] is not theirs
        raise RuntimeError
    assert vars(local_elastic_agent)["start_processes"] is theirs
