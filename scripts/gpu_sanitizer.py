"""Kernels with planted faults, and right ones, under NVIDIA's compute-sanitizer and under our checked build.

python scripts/gpu_sanitizer.py CASE        launches one case through CuPy: what compute-sanitizer watches
python scripts/gpu_sanitizer.py cuda:0      launches a sample of our own kernels on a device
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np

import umd_core as umd
from umd_cuda.host import RawKernel

COUNT, BLOCK = 100, 64
SECONDS = 60


class Case(NamedTuple):
    """A kernel of (const float* x, float* y, int n) over 100 elements, in 2 workgroups of 64.

    Attributes:
        body: its text; `i` is the invocation's index, `p` 64 floats of workgroup memory.
        kinds: what the checked build must find, one of them at least; () for nothing.
        tool: of compute-sanitizer.
        words: one of which the tool must print.
    """

    body: str
    kinds: tuple[str, ...]
    tool: str
    words: tuple[str, ...]


_BY_ONE = "p[threadIdx.x] = i < n ? x[i] : 0; {} if (i < n) y[i] = p[63 - threadIdx.x];"
CASES = {
    "right": Case(_BY_ONE.format("__syncthreads();"), (), "memcheck", ()),
    "right, no race": Case(_BY_ONE.format("__syncthreads();"), (), "racecheck", ()),
    "read out of bounds": Case(
        "if (i < n) y[i] = x[i + 100000000];", ("out-of-bounds read",), "memcheck", ("Invalid __global__ read",)
    ),
    "write out of bounds": Case(
        "if (i < n) y[i + 100000000] = x[i];", ("out-of-bounds write",), "memcheck", ("Invalid __global__ write",)
    ),
    "missing barrier": Case(
        _BY_ONE.format(""), ("race between a read and a write",), "racecheck", ("Race reported", "hazard")
    ),
    "two writers": Case(
        "p[0] = threadIdx.x; __syncthreads(); if (i < n) y[i] = p[0];", ("race between two writes",), "racecheck",
        ("Race reported", "hazard"),
    ),
    "uninitialised output": Case(
        "if (i < n) y[i] += x[i];", ("uninitialised read",), "initcheck", ("Uninitialized __global__ memory read",)
    ),
    "divergent barrier": Case(
        "if (threadIdx.x < 16) __syncthreads(); if (i < n) y[i] = x[i];", ("divergent barrier",), "synccheck",
        ("Divergent thread(s)", "Barrier error"),
    ),
}  # fmt: skip


def source(case: Case) -> str:
    """Returns the CUDA C of a case."""
    return (
        'extern "C" __global__ void k(const float* x, float* y, int n) {\n'
        "  __shared__ float p[64];\n  const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        f"  {case.body}\n}}\n"
    )


def checked(case: Case) -> list[str]:
    """Returns the kinds of faults that our checked build finds."""
    x, y = np.ones(COUNT, np.float32), np.zeros(COUNT, np.float32)
    report = RawKernel(source(case), "k").check((2,), (BLOCK,), (x, y, COUNT), outputs=["y"])
    return sorted({str(finding.kind) for finding in report.findings})


def sanitized(name: str, tool: str) -> str:
    """Returns what compute-sanitizer prints of a case, or of our own kernels on a device.

    Raises:
        OSError, subprocess.SubprocessError: it is not installed, or does not end.
    """
    command = ["compute-sanitizer", "--tool", tool, sys.executable, __file__, name]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    return answer.stdout + answer.stderr


def compared() -> dict[str, dict[str, Any]]:
    """Returns for each case what our checked build and compute-sanitizer say, and whether that is right."""
    results: dict[str, dict[str, Any]] = {}
    there = shutil.which("compute-sanitizer") is not None
    for name, case in CASES.items():
        ours = checked(case)
        right = bool(set(ours) & set(case.kinds)) if case.kinds else not ours
        row: dict[str, Any] = {"checked build": ours, "compute-sanitizer": "not installed", "ok": right}
        if there:
            said = sanitized(name, case.tool)
            found = any(word in said for word in case.words) if case.words else "ERROR SUMMARY: 0 errors" in said
            row |= {"compute-sanitizer": f"{case.tool}: {said.strip().splitlines()[-1:]}", "ok": right and found}
        results[name] = row
    return results


def sample(device: str) -> dict[str, str]:
    """Returns what each tool says of a sample of our own kernels on a GPU; "" where it found nothing."""
    if shutil.which("compute-sanitizer") is None:
        return {"compute-sanitizer": "not installed"}
    found = {}
    for tool in ("memcheck", "racecheck", "synccheck"):
        said = sanitized(device, tool)
        found[tool] = "" if "ERROR SUMMARY: 0 errors" in said else said[-2000:]
    return found


def run_sample(device: str) -> None:
    """Runs a sample of our kernels."""
    random = np.random.default_rng(1)
    x, y = (random.standard_normal((33, 65)).astype(np.float32) for _ in range(2))
    image, filters = (random.standard_normal(s).astype(np.float32) for s in ((2, 3, 9, 9), (4, 3, 3, 3)))
    opened = umd.open_device(device)
    for op, inputs in (
        ("Add", [x, y]), ("Softmax", [x]), ("ReduceSum", [x]), ("MatMul", [x, y.T.copy()]), ("Conv", [image, filters]),
        ("Gather", [x, np.array([3, 1], np.int64)]),
    ):  # fmt: skip
        opened.run(umd.translate(op, inputs), inputs)
    opened.close()


def run_case(case: Case) -> None:
    """Launches a case on the GPU; its output is memory that nothing has written."""
    import cupy  # noqa: PLC0415  # only on a machine with a GPU

    fresh = cupy.cuda.MemoryPointer(cupy.cuda.Memory(4 * COUNT), 0)  # not of the pool, which would hide what is unset
    x, y = cupy.ones(COUNT, np.float32), cupy.ndarray((COUNT,), np.float32, memptr=fresh)
    cupy.RawKernel(source(case), "k")((2,), (BLOCK,), (x, y, np.int32(COUNT)))
    cupy.cuda.runtime.deviceSynchronize()


if __name__ == "__main__":
    if sys.argv[1] in CASES:
        run_case(CASES[sys.argv[1]])
    else:
        run_sample(sys.argv[1])
