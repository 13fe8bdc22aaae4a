"""Azure Blob by the same code, on Microsoft's emulator; only where ``azurite-blob`` is on the PATH."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from remote_servers import AZURITE, BUCKET, start_azurite

from durable_core.testing.tier_contract import TierContract
from durable_core.tier.remote import RemoteTier, open_remote

pytestmark = pytest.mark.skipif(AZURITE is None, reason="azurite is not installed (npm install azurite)")


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    process, endpoint = start_azurite(tmp_path_factory.mktemp("azurite"))
    yield endpoint
    process.kill()
    process.wait()


class TestAzure(TierContract):
    race_rounds = 10

    @pytest.fixture
    def tier(self, azurite: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> RemoteTier:
        monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
        monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", azurite)
        return open_remote(f"az://{BUCKET}/{prefix}")
