"""What NVIDIA's driver library says, asked through ctypes: CuPy is not imported for it, so a probe stays quick."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

LIBRARIES = ("libcuda.so.1", "libcuda.so")


class Gpus(NamedTuple):
    """The CUDA version that the driver supports, and the names of the GPUs."""

    version: tuple[int, int]
    names: tuple[str, ...]


class NoGpuError(Exception):
    """Why there is no GPU to use."""


def open_library() -> Any:
    """Returns NVIDIA's driver library.

    Raises:
        NoGpuError: it is not installed.
    """
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:  # the next name may be there
            continue
    raise NoGpuError(f"no NVIDIA driver is installed ({LIBRARIES[0]} is not found): install one")


def gpus(library: Any) -> Gpus:
    """Returns what the driver library says about this machine.

    Raises:
        NoGpuError: the driver does not work, or there is no GPU.
    """
    number = ctypes.c_int()
    _check(library.cuDriverGetVersion(ctypes.byref(number)), "cuDriverGetVersion")
    version = (number.value // 1000, number.value % 1000 // 10)
    _check(library.cuInit(0), "cuInit")
    _check(library.cuDeviceGetCount(ctypes.byref(number)), "cuDeviceGetCount")
    names = []
    for ordinal in range(number.value):
        device, text = ctypes.c_int(), ctypes.create_string_buffer(256)
        _check(library.cuDeviceGet(ctypes.byref(device), ordinal), "cuDeviceGet")
        _check(library.cuDeviceGetName(text, len(text), device), "cuDeviceGetName")
        names.append(text.value.decode(errors="replace"))
    return Gpus(version, tuple(names))


_NO_DEVICE = 100


def _check(code: int, call: str) -> None:
    if code == _NO_DEVICE:
        raise NoGpuError("the NVIDIA driver sees no GPU: check nvidia-smi, and CUDA_VISIBLE_DEVICES")
    if code:
        raise NoGpuError(f"the NVIDIA driver does not work: {call} returned {code}; nvidia-smi may say why")
