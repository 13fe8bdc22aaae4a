"""L2. Numpy values in typed JSON: small arrays, scalars and dtypes, by dtype, shape and bytes."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from durable_core.errors import CodecError
from durable_core.format.codec_parts import from_base64, listed, to_base64

#: Bytes of one numpy array in a document; a larger one belongs into a tensor.
MAX_ARRAY_BYTES = 16 * 1024 * 1024

# Fixed-width dtypes in numpy's portable spelling: no objects, no structures, no platform-sized floats.
_DTYPE = re.compile(r"[<>|](?:b1|[iu][1248]|f[248]|c8|c16|[SU][1-9]\d{0,8}|[mM]8(?:\[\w{1,12}\])?)")


def _dtype_text(dtype: np.dtype[Any], path: str) -> str:
    if dtype.hasobject or not _DTYPE.fullmatch(dtype.str):
        raise CodecError(path, f"numpy dtype {dtype} cannot be stored", hint="use a plain fixed-width dtype")
    text: str = dtype.str
    return text


def decode_dtype(text: Any) -> np.dtype[Any]:
    if not isinstance(text, str) or not _DTYPE.fullmatch(text):
        raise ValueError(f"dtype {text!r}")
    return np.dtype(text)


def encode_array(value: np.ndarray[Any, Any], path: str) -> Any:
    dtype = _dtype_text(value.dtype, path)
    if value.nbytes > MAX_ARRAY_BYTES:
        raise CodecError(
            path, f"a numpy array of {value.nbytes} bytes", hint=f"beyond {MAX_ARRAY_BYTES} use a tensor"
        )
    order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    data = value.tobytes("F" if order == "F" else "C")
    return {"$array": [dtype, list(value.shape), order, to_base64(data)]}


def decode_array(body: Any) -> np.ndarray[Any, Any]:
    dtype_text, shape, order, text = listed(body, 4)
    dtype, data = decode_dtype(dtype_text), from_base64(text)
    if not all(type(length) is int and length >= 0 for length in listed(shape)) or order not in ("C", "F"):
        raise ValueError(f"shape {shape!r}, order {order!r}")
    if math.prod(shape) * dtype.itemsize != len(data):  # before anything is allocated
        raise ValueError(f"{len(data)} bytes for shape {shape} of {dtype}")
    view: np.ndarray[Any, Any] = np.ndarray(shape, dtype, buffer=data, order="F" if order == "F" else "C")
    owned: np.ndarray[Any, Any] = view.copy(order="K")  # writable, aligned
    return owned


def encode_scalar(value: np.generic, path: str) -> Any:
    if isinstance(value, (np.str_, np.bytes_)):  # numpy drops NULs at their end
        raise CodecError(path, f"a numpy {type(value).__name__}", hint="store str(value) or bytes(value)")
    return {"$scalar": [_dtype_text(value.dtype, path), to_base64(value.tobytes())]}


def decode_scalar(body: Any) -> Any:
    dtype_text, text = listed(body, 2)
    dtype, data = decode_dtype(dtype_text), from_base64(text)
    if len(data) != dtype.itemsize or dtype.kind in "SU":
        raise ValueError(f"{len(data)} bytes for one {dtype}")
    return np.frombuffer(data, dtype)[0]


def encode_by_base(value: Any, path: str) -> Any:
    """Numpy's scalars and dtypes, which are one class per type; ``None`` for anything else."""
    if isinstance(value, np.generic):
        return encode_scalar(value, path)
    if isinstance(value, np.dtype):
        return {"$dtype": _dtype_text(value, path)}
    return None
