"""L3. Element types: torch's names against the safetensors names that documents and shards use."""

from __future__ import annotations

import torch

_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "U16": "uint16",
    "I32": "int32",
    "U32": "uint32",
    "I64": "int64",
    "U64": "uint64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}

# torch releases differ in which of the narrow types they have; what is missing is simply not storable there.
TO_TORCH: dict[str, torch.dtype] = {
    name: getattr(torch, attribute) for name, attribute in _NAMES.items() if hasattr(torch, attribute)
}
TO_NAME: dict[torch.dtype, str] = {dtype: name for name, dtype in TO_TORCH.items()}


def itemsize(name: str) -> int:
    """Bytes per element of a safetensors dtype name; ``KeyError`` for a name this torch lacks."""
    return TO_TORCH[name].itemsize
