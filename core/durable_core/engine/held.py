"""L4. Which classes of state a checkpoint holds, told by what its objects were saved as."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from durable_core.format.manifest import Manifest

#: Class -> the kind that stands for it; the names are for people.
CLASSES: Mapping[str, str] = {
    "parameters": "parameters",
    "optimizer": "optimizer",
    "random streams": "rng",
    "data position": "data",
    "learning rate": "scheduler",
    "averages": "ema",
    "scaler": "scaler",
}
#: Those without which no program goes on as the same run; it may do without the others.
NEEDED = ("parameters", "optimizer", "random streams", "data position")

# As sessions write them (`'kind': 'optimizer'`), and as Lightning's checkpoints call them.
_SIGNS: Mapping[str, tuple[str, ...]] = {
    "parameters": ("'parameters'", "state_dict"),
    "optimizer": ("'optimizer'", "optimizer_states"),
    "scheduler": ("'scheduler'", "lr_schedulers"),
    "ema": ("'ema'", "WeightAveraging"),
    "scaler": ("'scaler'", "MixedPrecision"),
}


def classes_held(manifest: Manifest) -> dict[str, bool]:
    """Each of ``CLASSES``, and whether something of it is in the checkpoint."""
    kinds = set(_kinds(manifest))
    return {name: kind in kinds for name, kind in CLASSES.items()}


def _kinds(manifest: Manifest) -> Iterator[str]:
    for (name, _), document in manifest.documents.items():
        text = str(document)
        if name == "role" and "'rng'" in text:
            yield "rng"
        yield from (kind for kind in _SIGNS if any(sign in text for sign in _SIGNS[kind]))
    if manifest.cursor:
        yield "data"
