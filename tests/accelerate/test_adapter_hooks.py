"""What of Accelerate is leaned on: there, or named when it is not."""

from __future__ import annotations

from collections.abc import Iterator

import accelerate
import pytest
from adapter_parts import forget_accelerate

from accelerate_durable import hooks
from durable_core.errors import UnsupportedError


@pytest.fixture(autouse=True)
def nothing_goes_on() -> Iterator[None]:
    yield
    forget_accelerate()


def test_this_accelerate_has_everything_that_is_leaned_on() -> None:
    hooks.check(accelerate.Accelerator(cpu=True))


@pytest.mark.parametrize("name", [name for name, _ in hooks.USED])
def test_what_an_accelerate_lacks_is_named(name: str) -> None:
    made = accelerate.Accelerator(cpu=True)
    delattr(made, name)
    with pytest.raises(UnsupportedError, match=rf"lacks Accelerator\.{name} \("):
        hooks.check(made)


@pytest.mark.parametrize(("owner", "name"), [(owner, name) for owner, name, _ in hooks.USED_OF_CLASSES])
def test_and_what_its_classes_lack(owner: type, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = accelerate.Accelerator(cpu=True)
    if name not in vars(owner):
        pytest.skip(f"{name} is of a class above {owner.__name__}")
    monkeypatch.delattr(owner, name)
    with pytest.raises(UnsupportedError, match=rf"{owner.__name__}\.{name} \("):
        hooks.check(made)
