"""A run that finds another mixture is told what is another, not only that its digest is."""

from __future__ import annotations

from typing import Any

import pytest
from data_samples import Plain

from durable_core.data import DurableLoader, Mixture
from durable_core.data.mixture.changed import changes
from durable_core.errors import SpecMismatchError


class Named(Plain):
    def __init__(self, size: int, dataset_id: str) -> None:
        super().__init__(size)
        self.dataset_id = dataset_id


def loader(
    weights: tuple[float, float] = (0.7, 0.3), code: Named | None = None, **options: Any
) -> DurableLoader:
    sources = {"web": Named(8, "sha256:w"), "code": code or Named(4, "sha256:c")}
    return DurableLoader(Mixture(sources, dict(zip(sources, weights, strict=True)), **options), 2, seed=1)


STATE = loader().state_dict()

OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "weights": ({"weights": (0.5, 0.5)}, r"weight of web was 0\.7 and is now 0\.5 \(use update_weights"),
    "content": ({"code": Named(4, "sha256:d")}, "the content of source code changed: dataset_id was"),
    "size": ({"code": Named(5, "sha256:d")}, "source code had 4 records and has 5"),
    "setting": ({"exhaustion": "stop"}, "exhaustion was 'repeat' and is now 'stop'"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_is_another_is_named(other: str) -> None:
    options, words = OTHERS[other]
    with pytest.raises(SpecMismatchError, match=words) as caught:
        loader(**options).load_state_dict(STATE)
    assert "dataset_id" in caught.value.fields


def test_sources_that_came_and_went() -> None:
    one = {"name": "quota_v1", "weights": [1], "sources": [dict(_source("a"))]}
    two = {"name": "quota_v1", "weights": [1], "sources": [dict(_source("b"))]}
    assert changes({"inner": one}, two) == ["there was a source a", "source b is new"]
    assert changes(one, one) == changes(None, one) == changes({"size": 3}, one) == []


def _source(name: str) -> dict[str, Any]:
    return {"name": name, "dataset_id": "x", "size": 1, "replacement": False}
