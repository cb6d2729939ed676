"""NVRTC, NVIDIA's compiler as a library: CUDA C to a GPU's machine code, on a machine without GPU and driver.

It comes with the Python packages nvidia-cuda-nvrtc (the compiler) and nvidia-cuda-runtime (its headers), of one major.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from umd_core.errors import UmdError, UnsupportedError

OPTIONS = ("-std=c++17", "-ftz=true", "-default-device")
"""What CuPy adds of its own (-ftz=true), and the standard that our sources are written in."""
_SUCCESS = 0
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_INFO = re.compile(r"ptxas (info\s+:| +\. +\d+ bytes stack frame)")


class Compiled(NamedTuple):
    """What a kernel needs on a GPU.

    Attributes:
        registers: of one thread.
        shared: bytes of workgroup memory that the kernel declares.
        stack: bytes of memory of its own of one thread, for arrays that it indexes and for spilled registers.
        spilled: bytes of registers that are stored and loaded again.
        warnings: whatever else the compiler said.
    """

    registers: int
    shared: int
    stack: int
    spilled: int
    warnings: tuple[str, ...]


class NvrtcError(UmdError):
    """NVRTC refused a source. Facts: `arch`, `diagnostics`."""

    arch: str
    diagnostics: str

    def __init__(self, arch: str, diagnostics: str) -> None:
        super().__init__(f"NVRTC does not compile it for {arch}:\n{diagnostics}", arch=arch, diagnostics=diagnostics)


@functools.cache
def find() -> tuple[ctypes.CDLL, Path]:
    """Returns the library and the folder of its headers.

    Raises:
        UnsupportedError: the packages are not installed.
    """
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or () if spec else ():
        for library in sorted(Path(root).glob("cu*/lib/libnvrtc.so.*"), reverse=True):
            headers = library.parent.parent / "include"
            if (headers / "cuda_fp16.h").is_file():
                return ctypes.CDLL(str(library)), headers
    raise UnsupportedError("NVRTC is not installed: pip install nvidia-cuda-nvrtc nvidia-cuda-runtime")


def version() -> str:
    """Returns NVRTC's version, as "13.5".

    Raises:
        UnsupportedError: it is not installed.
    """
    major, minor = ctypes.c_int(), ctypes.c_int()
    find()[0].nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def compile(text: str, arch: str, options: Sequence[str] = ()) -> Compiled:
    """Returns what a source of one kernel needs on an architecture ("sm_90"); callable from several threads at once.

    Raises:
        UnsupportedError: NVRTC is not installed.
        NvrtcError: the source does not compile.
    """
    library, headers = find()
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None)
    try:
        given = [*OPTIONS, f"-arch={arch}", f"-I{headers}", "--ptxas-options=-v", *options]
        array = (ctypes.c_char_p * len(given))(*(option.encode() for option in given))
        status = library.nvrtcCompileProgram(program, len(given), array)
        log = _log(library, program)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))
    if status != _SUCCESS:
        raise NvrtcError(arch, log)
    return parse(log)


def _log(library: ctypes.CDLL, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value or 1)
    library.nvrtcGetProgramLog(program, log)
    return log.value.decode(errors="replace")


def parse(log: str) -> Compiled:
    """Returns what the compiler's log (with ptxas's -v) says of a kernel."""
    frames = [tuple(map(int, found)) for found in _FRAME.findall(log)]
    others = tuple(line.strip() for line in log.splitlines() if line.strip() and not _INFO.match(line))
    return Compiled(
        registers=max(map(int, _REGISTERS.findall(log)), default=0),
        shared=max(map(int, _SHARED.findall(log)), default=0),
        stack=max((frame for frame, _, _ in frames), default=0),
        spilled=sum(stores + loads for _, stores, loads in frames),
        warnings=others,
    )
