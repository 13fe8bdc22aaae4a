from __future__ import annotations

import pytest

pytest.importorskip("lightning")

from lightning_check import References


@pytest.fixture(scope="session")
def references(tmp_path_factory: pytest.TempPathFactory) -> References:
    return References(tmp_path_factory.mktemp("lightning"))
