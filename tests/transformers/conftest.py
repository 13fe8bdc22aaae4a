from __future__ import annotations

import importlib.util
import os

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
pytest.importorskip("transformers")

from trainer_subject import References

if not all(importlib.util.find_spec(name) for name in ("datasets", "peft", "trl")):
    collect_ignore = ["test_trainer_tuning.py"]


@pytest.fixture(scope="session")
def references(tmp_path_factory: pytest.TempPathFactory) -> References:
    return References(tmp_path_factory.mktemp("trainer"))
