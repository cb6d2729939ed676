"""Python values → the bytes of a kernel's parameters, by the kernel's own types or not at all."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from umd_core.errors import DTypeError, InputCountError, LimitError
from umd_cuda.host.module import HostFunction, Parameter

_SCALARS: dict[tuple[str, int], np.dtype[Any]] = {
    ("b", 1): np.dtype(np.bool_), ("h", 2): np.dtype(np.float16), ("g", 2): np.dtype(ml_dtypes.bfloat16),
    ("f", 4): np.dtype(np.float32), ("f", 8): np.dtype(np.float64),
    **{("i", size): np.dtype(f"i{size}") for size in (1, 2, 4, 8)},
    **{("u", size): np.dtype(f"u{size}") for size in (1, 2, 4, 8)},
}  # fmt: skip
_COMPLEX: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.float32): np.dtype(np.complex64),
    np.dtype(np.float64): np.dtype(np.complex128),
}


def pack(function: HostFunction, values: tuple[Any, ...]) -> list[bytes]:
    """Returns the bytes of each argument. Arrays are passed as the address of their first element.

    Raises:
        InputCountError: too many or too few.
        DTypeError: a value that is not what the parameter takes.
        LimitError: an integer that its parameter cannot hold.
    """
    wanted = len(function.parameters)
    if len(values) != wanted:
        raise InputCountError(function.name, len(values), wanted, wanted, "arguments")
    return [_one(function.name, p, value) for p, value in zip(function.parameters, values, strict=True)]


def _one(kernel: str, parameter: Parameter, value: Any) -> bytes:
    if parameter.kind == "p":
        return _pointer(kernel, parameter, value)
    if parameter.kind == "s":
        return _structure(kernel, parameter, value)
    wanted = _SCALARS[parameter.kind, parameter.size]
    if isinstance(value, np.ndarray) and value.ndim > 0:
        raise _wrong(kernel, parameter, f"takes a {wanted}, got an array", str(value.dtype), wanted)
    if isinstance(value, np.generic | np.ndarray):
        if value.dtype != wanted:
            raise _wrong(kernel, parameter, f"takes a {wanted}, got a NumPy {value.dtype}", str(value.dtype), wanted)
        return value.tobytes()
    return _python(kernel, parameter, value, wanted)


def _python(kernel: str, parameter: Parameter, value: Any, wanted: np.dtype[Any]) -> bytes:
    """Returns a Python number as the parameter's type: what would change its meaning is refused."""
    got = type(value).__name__
    if isinstance(value, bool) and parameter.kind in "biu":
        return np.asarray(value, wanted).tobytes()
    if isinstance(value, int) and not isinstance(value, bool) and parameter.kind in "iu":
        limits = np.iinfo(wanted)
        if not int(limits.min) <= value <= int(limits.max):
            limit = int(limits.max) if value > 0 else int(limits.min)
            raise LimitError(f"parameter {parameter.name!r} ({wanted})", value, limit, op=kernel)
        return value.to_bytes(parameter.size, "little", signed=parameter.kind == "i")
    if isinstance(value, int | float) and not isinstance(value, bool) and parameter.kind in "fhg":
        if wanted == np.float64:
            return struct.pack("<d", value)
        with np.errstate(over="ignore"):
            return np.asarray(value, np.float64).astype(wanted).tobytes()
    raise _wrong(kernel, parameter, f"takes a {wanted}, got a Python {got}", got, wanted)


def _structure(kernel: str, parameter: Parameter, value: Any) -> bytes:
    """Returns the bytes of a struct: from bytes, a ctypes structure, or NumPy's scalar or array of a struct type."""
    if isinstance(value, ctypes.Structure | ctypes.Array | bytes | bytearray | memoryview):
        data = bytes(value)
    elif isinstance(value, np.ndarray | np.generic):
        data = value.tobytes()
    else:
        got = type(value).__name__
        raise _wrong(kernel, parameter, f"takes a struct of {parameter.size} bytes, got a Python {got}", got, None)
    if len(data) != parameter.size:
        detail = f"takes a struct of {parameter.size} bytes, got {len(data)} bytes"
        raise _wrong(kernel, parameter, detail, type(value).__name__, None)
    return data


def _pointer(kernel: str, parameter: Parameter, value: Any) -> bytes:
    if value is None:
        return bytes(8)
    if isinstance(value, np.ndarray):
        wanted = _SCALARS.get((parameter.element, parameter.element_size))
        if wanted is not None and value.dtype not in _accepted(wanted):
            got = str(value.dtype)
            raise _wrong(kernel, parameter, f"points to {wanted}, got an array of {got}", got, wanted)
        if not (parameter.constant or value.flags.writeable):
            raise _wrong(kernel, parameter, "may be written, got a read-only array", str(value.dtype), None)
        return value.ctypes.data.to_bytes(8, "little")
    got = type(value).__name__
    raise _wrong(kernel, parameter, f"is a pointer: takes a NumPy array or None, got a {got}", got, None)


def _accepted(wanted: np.dtype[Any]) -> tuple[np.dtype[Any], ...]:
    if wanted.itemsize == 1:  # bytes are bytes: char, unsigned char and bool
        return tuple(np.dtype(kind) for kind in ("i1", "u1", "?"))
    complex_type = _COMPLEX.get(wanted)
    return (wanted,) if complex_type is None else (wanted, complex_type)


def _wrong(kernel: str, parameter: Parameter, detail: str, got: str, wanted: np.dtype[Any] | None) -> DTypeError:
    allowed = [str(wanted)] if wanted is not None else []
    return DTypeError(kernel, detail, input=parameter.name, got=got, allowed=allowed)


def arrays(values: tuple[Any, ...]) -> dict[int, npt.NDArray[Any]]:
    """Returns the arrays among the arguments, by position."""
    return {i: value for i, value in enumerate(values) if isinstance(value, np.ndarray) and value.ndim > 0}
