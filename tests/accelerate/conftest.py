from __future__ import annotations

import pytest

pytest.importorskip("accelerate")

from accelerate_lives import References


@pytest.fixture(scope="session")
def references(tmp_path_factory: pytest.TempPathFactory) -> References:
    return References(tmp_path_factory.mktemp("accelerate"))
