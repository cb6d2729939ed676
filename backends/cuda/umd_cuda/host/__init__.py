"""CUDA C kernels on a CPU: compile, launch, check. Needs NumPy and a C++ compiler; no GPU, CuPy, torch or gRPC."""

from __future__ import annotations

from umd_cuda.host.checking import (
    Box,
    CheckFailedError,
    Finding,
    Invocation,
    Kind,
    Range,
    Report,
    check_launch,
    run_checked,
)
from umd_cuda.host.errors import (
    CacheError,
    CompileError,
    LaunchError,
    NoCompilerError,
    RefusedSourceError,
    UnknownKernelError,
)
from umd_cuda.host.module import HostFunction, HostModule, Parameter, compile
from umd_cuda.host.raw import RawKernel, RawModule

__all__ = [
    "Box",
    "CacheError",
    "CheckFailedError",
    "CompileError",
    "Finding",
    "HostFunction",
    "HostModule",
    "Invocation",
    "Kind",
    "LaunchError",
    "NoCompilerError",
    "Parameter",
    "Range",
    "RawKernel",
    "RawModule",
    "RefusedSourceError",
    "Report",
    "UnknownKernelError",
    "check_launch",
    "compile",
    "run_checked",
]
