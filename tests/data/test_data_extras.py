"""What a missing extra says: the package, and how it is installed."""

from __future__ import annotations

import sys

import pytest

from durable_core.data.files import open_location
from durable_core.errors import UnsupportedError


def test_a_url_without_fsspec_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(UnsupportedError, match=r"memory:// is read with fsspec.*durable-training\[data\]"):
        open_location("memory://corpus")
    with pytest.raises(UnsupportedError, match=r"durable-training\[s3\]"):
        open_location("s3://bucket/corpus")
