"""Our CUDA C kernels on the processor beside NumPy, and how long all of them take to compile and to load."""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from measure import interleaved, report

from umd_core.dtypes import DType, float32
from umd_core.ir import Array, contiguous_strides
from umd_core.kernels import BY_NAME, KERNELS
from umd_cuda import host, serial
from umd_cuda.plans import block_of

Work = Callable[[], object]


class Row(NamedTuple):
    """A line of the table: a kernel's name, its call, and the same work in NumPy, if there is a call for it."""

    name: str
    ours: Work
    theirs: Work | None


def kernel(name: str, types: Sequence[DType], sizes: Sequence[int], arrays: Sequence[Array], **fields: Any) -> Work:
    """Returns the call that launches a kernel over arrays, contiguous over their boxes, as `cuda-cpu` does."""
    row = BY_NAME[name]
    record = row.record(types, sizes)
    parameters: dict[str, Any] = dict(fields)
    for operand in row.operands:
        extents = [fields[part] for part in operand.box]
        shape = tuple(e for extent in extents for e in (extent if isinstance(extent, tuple) else (extent,)))
        parameters |= {f"{operand.name}_offset": 0, f"{operand.name}_strides": contiguous_strides(shape)}
    block = record.pack(**parameters)
    flat = record.struct.unpack(block)
    source = serial.source_for(record, serial.needs_wide(record, flat))
    if source is None:
        raise SystemExit(f"{name} has no source")
    function = host.compile(source.text, source.options).function(source.entry)
    pointers = [array.ctypes.data.to_bytes(8, "little") for array in arrays]
    launches = [(serial.launch_geometry(record, flat), function.arguments([*pointers, block]))]
    if source.plan is not None:  # plans for the processor need no scratch memory
        passes = source.plan(record, flat).passes
        launches = [(shape, function.arguments([*pointers, block_of(block, 0, turn)])) for turn, shape in passes]

    def call(kept: object = arrays) -> None:
        for geometry, arguments in launches:
            function.launch(*geometry, arguments)

    return call


def random(*shape: int) -> Array:
    """Returns normal random float32."""
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def flat_rows() -> list[Row]:
    """Returns lines about elementwise work, rows and products."""
    a, b, out = random(1 << 20), random(1 << 20), np.zeros(1 << 20, np.float32)
    x, y, total = random(1024, 1024), np.zeros((1024, 1024), np.float32), np.zeros(1, np.float32)
    m, n, mn = random(256, 256), random(256, 256), np.zeros((256, 256), np.float32)

    def softmax() -> Array:
        e = np.exp(x - x.max(1, keepdims=True))
        result: Array = e / e.sum(1, keepdims=True)
        return result

    one = (float32,)
    square = {"batch": (1,), "rows": 256, "columns": 256, "depth": 256}
    return [
        Row("add 1M", kernel("elementwise_add_kernel", one, (1,), [a, b, out], extents=(1 << 20,)),
            lambda: np.add(a, b, out=out)),
        Row("softmax 1024²", kernel("softmax_kernel", one, (1, 1), [x, y], outer=(1024,), inner=(1024,)), softmax),
        Row("sum 1M", kernel("reduce_sum_kernel", one, (1, 1), [a, total], outer=(1,), inner=(1 << 20,)),
            lambda: a.sum()),
        Row("gemm 256", kernel("gemm_kernel", one, (1,), [m, n, mn], **square), lambda: np.matmul(m, n, out=mn)),
    ]  # fmt: skip


def conv_rows(title: str, sizes: tuple[int, int, int, int], stride: int) -> list[Row]:
    """Returns lines about a padded 3 × 3 convolution of (batch, channels, filters, side)."""
    batch, channels, filters, side = sizes
    output = (side - 1) // stride + 1
    x, w = random(batch, 1, channels, side, side), random(1, filters, channels, 3, 3)
    y = random(batch, 1, filters, output, output)
    fields: Mapping[str, Any] = {
        "batch": batch, "groups": 1, "out_channels": filters, "in_channels": channels, "output": (output, output),
        "kernel": (3, 3), "input": (side, side), "window_strides": (stride, stride), "dilations": (1, 1),
        "pads": (1, 1),
    }  # fmt: skip
    named = (("", [x, w, y.copy()]), ("input_grad_", [y, w, x.copy()]), ("weight_grad_", [y, x, w.copy()]))
    return [
        Row(f"conv {part}{title}", kernel(f"conv_{part}kernel", (float32,), (2,), arrays, **fields), None)
        for part, arrays in named
    ]


def compile_times(jobs: int) -> list[list[Any]]:
    """Returns the seconds that every kernel of the table, with its first types, takes to compile and to load again."""
    texts = []
    for row in KERNELS.values():
        source = serial.source_for(row.record([a[0] for _, a in row.types], [a[0] for _, a in row.sizes]))
        if source is not None:
            texts.append((source.text, source.options))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["UMD_CUDA_CACHE"] = folder
        for title in ("cold", "warm"):
            start, before = time.perf_counter(), _compilers_time()
            with ThreadPoolExecutor(jobs) as threads:
                list(threads.map(lambda given: host.compile(*given), texts))
            rows.append([title, len(texts), jobs, time.perf_counter() - start, _compilers_time() - before])
    return rows


def _compilers_time() -> float:
    """Returns the processor seconds of all compilers that have ended: other work on the machine does not count."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="compilers side by side (1)")
    jobs = parser.parse_args().jobs
    rows = flat_rows() + conv_rows("32, 1 to 16, 28 x 28", (32, 1, 16, 28), 1)
    rows += conv_rows("32, 8 to 16, 8 x 8", (32, 8, 16, 8), 1) + conv_rows(
        "32, 16 to 32, 14 x 14 / 2", (32, 16, 32, 14), 2
    )
    rows += conv_rows("8, 64 to 64, 28 x 28", (8, 64, 64, 28), 1)
    table = []
    for name, ours, theirs in rows:
        times = interleaved({"ours": ours} | ({"theirs": theirs} if theirs else {}), number=3, repeat=9)
        ratio = times["ours"] / times["theirs"] if theirs else "-"
        table.append([name, times["ours"] * 1e6, times["theirs"] * 1e6 if theirs else "-", ratio])
    report("cuda_kernels", "CUDA C kernels on the processor", ["launch", "µs", "NumPy µs", "ratio"], table)
    header = ["all kernels", "number", "compilers", "seconds", "of them computing"]
    report("cuda_compile", "Compiling the CUDA C kernels for the processor", header, compile_times(jobs))


if __name__ == "__main__":
    main()
