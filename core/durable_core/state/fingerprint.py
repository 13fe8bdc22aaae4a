"""L3. The software fingerprint: what bit equality depends on besides the state (CONTR-12).

Kernel caches and autotuning choices are not state; their versions are here because a different
version may round differently.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping

import numpy as np
import torch

_FRAMEWORKS = ("lightning", "pytorch_lightning", "accelerate", "transformers", "torchdata", "triton")
_VARIABLES = ("CUBLAS_WORKSPACE_CONFIG", "ATEN_CPU_CAPABILITY", "MKL_CBWR", "NVIDIA_TF32_OVERRIDE")

Fingerprint = Mapping[str, str]


def fingerprint() -> dict[str, str]:
    """Flat map of field name -> value, as text. Frameworks are reported if imported; none is imported."""
    fields = {
        "python": platform.python_version(),
        "python.implementation": sys.implementation.name,
        "platform": platform.system(),
        "machine": platform.machine(),
        "byteorder": sys.byteorder,
        "numpy": np.__version__,
        "torch": torch.__version__,
        "torch.cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch.threads": str(torch.get_num_threads()),
        "torch.deterministic": str(torch.are_deterministic_algorithms_enabled()),
        "torch.matmul_precision": torch.get_float32_matmul_precision(),
        "torch.default_dtype": str(torch.get_default_dtype()),
        "torch.mkldnn": str(torch.backends.mkldnn.enabled),
        "cudnn.deterministic": str(torch.backends.cudnn.deterministic),
        "cudnn.benchmark": str(torch.backends.cudnn.benchmark),
        "cudnn.allow_tf32": str(torch.backends.cudnn.allow_tf32),
        "cuda": str(torch.version.cuda),
    }
    fields.update(_accelerators())
    for name in _FRAMEWORKS:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            fields[f"framework.{name}"] = str(version)
    fields.update({f"env.{name}": os.environ[name] for name in _VARIABLES if name in os.environ})
    return fields


def compare(old: Fingerprint, new: Fingerprint) -> tuple[str, ...]:
    """Names of the fields that differ, or that only one of the two has; sorted.

    A framework that only one of the processes had imported is no difference: imports come late.
    """
    return tuple(sorted(name for name in {*old, *new} if _differs(name, old.get(name), new.get(name))))


def _differs(name: str, old: str | None, new: str | None) -> bool:
    if name.startswith("framework.") and (old is None or new is None):
        return False
    return old != new


def _accelerators() -> dict[str, str]:
    if not torch.cuda.is_available():
        return {}
    fields = {
        f"cuda.{index}": torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
    }
    fields["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    return fields
