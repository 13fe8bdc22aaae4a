"""What of a model of transformers or PEFT an export needs beside its weights: plain documents."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import Any


class Description:
    """What ``durable export --format hf`` writes beside the weights. Nothing of it is put back."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @staticmethod
    def is_of(model: Any) -> bool:
        """Whether there is anything to say of ``model``."""
        return any(hasattr(getattr(model, name, None), "to_dict") for name in ("config", "generation_config"))

    def state_dict(self) -> dict[str, Any]:
        model = self._model
        peft = getattr(model, "peft_config", None)
        return {
            "config": described(getattr(model, "config", None)),
            "generation_config": described(getattr(model, "generation_config", None)),
            "peft": {str(name): described(config) for name, config in peft.items()}
            if isinstance(peft, Mapping)
            else {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The script has built the model."""


def described(config: Any) -> Any:
    """A configuration of transformers or peft as JSON; ``None`` where there is none."""
    if config is None or not hasattr(config, "to_dict"):
        return None
    return json.loads(json.dumps(config.to_dict(), default=_as_json, sort_keys=True))


def _as_json(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return value.value if isinstance(value, enum.Enum) else str(value)
