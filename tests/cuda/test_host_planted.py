"""Each class of fault, planted into kernels that are clean: found, at the right line, in the right buffer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tests.cuda.host_cases import KERNELS, by_name, needs_compiler
from umd_cuda import host
from umd_cuda.host import Kind

pytestmark = needs_compiler


@dataclass(frozen=True)
class Bug:
    """`old` becomes `new`; the finding stands in the line that holds `at`, in `buffer`."""

    kernel: str
    old: str
    new: str
    kind: Kind
    at: str
    buffer: str


RW, WW = Kind.RACE_READ_WRITE, Kind.RACE_WRITE_WRITE
BUGS = {
    "bound off by one, read": Bug(
        "csr_spmv", "j < indptr[warp + 1]", "j <= indptr[warp + 1]", Kind.OUT_OF_BOUNDS_READ, "sum += data[j]", "data"
    ),
    "bound off by one, write": Bug(
        "fx3<int>", "if (tid < N) {\n    arr", "if (tid <= N) {\n    arr", Kind.OUT_OF_BOUNDS_READ, "arr[tid] * 3",
        "arr",
    ),
    "bound forgotten, vector store": Bug(
        "project", "if (i >= n) return;", "", Kind.OUT_OF_BOUNDS_READ, "float3 p = points[i]", "points"
    ),
    "index before the buffer": Bug(
        "inclusive_scan", "out[t] = temp", "out[t - 1] = temp", Kind.OUT_OF_BOUNDS_WRITE, "out[t - 1]", "out"
    ),
    "workgroup array too short": Bug(
        "histogram", "local[256]", "local[255]", Kind.OUT_OF_BOUNDS_WRITE, "local[b] = 0", "local"
    ),
    "workgroup tile without its last row": Bug(
        "transpose_no_bank_conflicts", "tile[TILE_DIM][", "tile[TILE_DIM - 1][", Kind.OUT_OF_BOUNDS_WRITE,
        "= idata[(y + j)", "tile",
    ),
    "second barrier of the product removed": Bug(
        "sgemm<32, 16, 8, 4>", "acc[i] += As[(row * TM + i) * BK + k] * b;\n    }\n    __syncthreads();",
        "acc[i] += As[(row * TM + i) * BK + k] * b;\n    }", RW, "As[i] = ", "As",
    ),
    "barrier before the reduction removed": Bug(
        "softmax", "red[threadIdx.x] = sum;\n  __syncthreads();", "red[threadIdx.x] = sum;", RW,
        "red[threadIdx.x] += red", "red",
    ),
    "barrier after the broadcast removed": Bug(
        "softmax", "m = red[0];\n  __syncthreads();", "m = red[0];", RW, "red[threadIdx.x] = sum", "red"
    ),
    "barrier between warps' sums removed": Bug(
        "row_sum<double, 2>", "shared[wid] = val;\n  __syncthreads();", "shared[wid] = val;", RW, "shared[wid] = val",
        "shared",
    ),
    "barrier of the sorting step removed": Bug(
        "bitonic_sort", "        }\n      }\n      __syncthreads();", "        }\n      }", WW, "s[ixj] = swap", "s"
    ),
    "tile of bodies overwritten early": Bug(
        "forces", "acc);\n    __syncthreads();", "acc);", RW, "shPosition[threadIdx.x] = ", "shPosition"
    ),
    "read of a counter beside its atomics": Bug(
        "histogram", "atomicAdd(&local[pixels[i]], 1);\n  __syncthreads();", "atomicAdd(&local[pixels[i]], 1);", RW,
        "if (local[b])", "local",
    ),
    "add without an atomic, across workgroups": Bug(
        "histogram", "atomicAdd(&bins[b], local[b])", "bins[b] += local[b]", WW, "bins[b] += local[b]", "bins"
    ),
    "add without an atomic, inside a workgroup": Bug(
        "histogram", "atomicAdd(&local[pixels[i]], 1)", "local[pixels[i]] += 1", WW, "local[pixels[i]] += 1", "local"
    ),
    "fence forgotten before the ticket": Bug(
        "single_pass_sum", "    __threadfence();\n", "", RW, "sum += partial[b]", "partial"
    ),
    "every thread writes the same place": Bug(
        "layer_norm", "y[row * cols + c] = (x", "y[row * cols] = (x", WW, "y[row * cols] = (x", "y"
    ),
    "sums of warps that do not exist": Bug(
        "row_sum<double, 2>", "(threadIdx.x < (blockDim.x >> 5)) ? shared[lane] : (T)(0.0f)", "shared[lane]",
        Kind.UNINITIALISED_READ, "val = shared[lane]", "shared",
    ),
    "bins not cleared": Bug(
        "histogram", "local[b] = 0", ";", Kind.UNINITIALISED_READ, "atomicAdd(&local[pixels[i]], 1)", "local"
    ),
    "output read before it is written": Bug(
        "gelu_bf16", "out[i] = gelu(in[i])", "out[i] = gelu(out[i])", Kind.UNINITIALISED_READ, "gelu(out[i])", "out"
    ),
    "barrier in a branch": Bug(
        "softmax", "fmaxf(red[threadIdx.x], red[threadIdx.x + s]);\n    __syncthreads();",
        "fmaxf(red[threadIdx.x], red[threadIdx.x + s]);\n    if (threadIdx.x < s) __syncthreads();",
        Kind.DIVERGENT_BARRIER, "if (threadIdx.x < s) __syncthreads();", "",
    ),
    "threads that leave before the barrier": Bug(
        "inclusive_scan", "temp[t] = t < n ? in[t] : 0;", "if (t >= n) return;\n  temp[t] = in[t];",
        Kind.DIVERGENT_BARRIER, "", "",
    ),
    "full mask where half the warp has ended": Bug(
        "compact", "base = __shfl_sync(", "if (lane < 16) base = __shfl_sync(", Kind.BAD_MASK, "if (lane < 16) base", ""
    ),
    "full mask where half the warp waits elsewhere": Bug(
        "row_sum<double, 2>", "  val = warpReduceSum<T>(val);\n  if (lane == 0)",
        "  if (lane < 16) val = warpReduceSum<T>(val);\n  if (lane == 0)", Kind.DIVERGENT_WARP,
        "val += __shfl_xor_sync", "",
    ),
    "a mask without the caller": Bug(
        "compact", "__ballot_sync(0xffffffff,", "__ballot_sync(0x0000ffff,", Kind.BAD_MASK,
        "__ballot_sync(0x0000ffff", "",
    ),
    "a value from outside the mask": Bug(
        "layer_norm", "__shfl_sync(0xffffffff, w.mean, 0)",
        "__shfl_sync(threadIdx.x < 16 ? 0xffffu : 0xffff0000u, w.mean, 0)", Kind.INACTIVE_SOURCE, "float mean =", "",
    ),
    "a column never written": Bug(
        "softmax", "for (int c = threadIdx.x; c < cols; c += blockDim.x) out[c]",
        "for (int c = threadIdx.x; c + 1 < cols; c += blockDim.x) out[c]", Kind.UNWRITTEN_OUTPUT, "", "y",
    ),
    "the odd element forgotten": Bug(
        "test_sum", "if (tid < N)", "if (tid + 1 < N)", Kind.UNWRITTEN_OUTPUT, "", "y"
    ),
}  # fmt: skip


def _line(source: str, text: str) -> int:
    return source[: source.index(text)].count("\n") + 1 if text else 0


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS)
def test_found(bug: Bug) -> None:
    case = by_name(bug.kernel)
    clean = (KERNELS / case.file).read_text()
    assert bug.old in clean
    source = clean.replace(bug.old, bug.new, 1)
    args = case.args(np.random.default_rng(4))
    report = case.function(source).check(case.grid, case.block, args, shared_mem=case.shared, outputs=case.outputs)
    found = [f for f in report.findings if f.kind is bug.kind and f.buffer == bug.buffer]
    assert found, str(report)
    if bug.at:
        lines = {f.line for f in found} | {f.other.line for f in found if f.other}
        assert _line(source, bug.at) in lines, str(report)
        assert f"{case.file}:{found[0].line}: {bug.kind}" in str(report)


def test_dynamic_memory_smaller_than_its_use() -> None:
    case = by_name("softmax")
    args = case.args(np.random.default_rng(4))
    report = case.function().check(case.grid, case.block, args, shared_mem=128)
    found = next(f for f in report.findings if f.kind is Kind.OUT_OF_BOUNDS_WRITE)
    assert (found.buffer, found.offset, found.size) == ("red", 128, 4)
    assert found.where is not None
    assert found.where.thread == (32, 0, 0)


def test_facts_of_a_finding() -> None:
    x = np.zeros(1000, np.float32)
    kernel = host.RawKernel(
        'extern "C" __global__ void k(const float* a, float* b, int n) {\n'
        "  int i = (blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x * blockDim.y + threadIdx.y * blockDim.x"
        " + threadIdx.x;\n"
        "  if (i <= n)\n"
        "    b[i] = 2 * a[0];\n"
        "}\n",
        "k",
        source_name="twice.cu",
    )
    report = kernel.check((2, 4), (16, 8), (x, np.zeros_like(x), 1000), outputs=["b"])
    (found,) = report.findings
    assert found.kind is Kind.OUT_OF_BOUNDS_WRITE
    assert (found.buffer, found.offset, found.size, found.line, found.count) == ("b", 4000, 4, 4, 1)
    assert found.where == host.Invocation((1, 3, 0), (8, 6, 0), 4)
    assert "twice.cu:4: out-of-bounds write in 'b' at byte 4000 (4 bytes)" in str(report)
    with pytest.raises(host.CheckFailedError) as raised:
        report.raise_for_findings()
    assert raised.value.kernel == "k"


def test_result_that_depends_on_the_order_of_workgroups() -> None:
    kernel = host.RawKernel(
        'extern "C" __global__ void k(int* order, int* ticket) {\n'
        "  if (threadIdx.x == 0) order[blockIdx.x] = atomicAdd(ticket, 1);\n"
        "}\n",
        "k",
    )
    arrays = (np.zeros(16, np.int32), np.zeros(1, np.int32))
    assert kernel.check(16, 32, arrays)
    np.testing.assert_array_equal(arrays[0], np.arange(16))
    arrays[1][0] = 0
    report = kernel.check(16, 32, arrays, orders=4)
    assert report.kinds() == {Kind.ORDER_DEPENDENT}
    assert report.findings[0].buffer == "order"


def test_faults_in_every_order_are_reported() -> None:
    """The race below is silent in launch order for the value, and a finding in each order all the same."""
    case = by_name("bitonic_sort")
    source = (
        (KERNELS / case.file).read_text().replace("        }\n      }\n      __syncthreads();", "        }\n      }", 1)
    )
    report = case.function(source).check(case.grid, case.block, case.args(np.random.default_rng(1)), orders=3)
    assert report.kinds() & {RW, WW}


def test_a_trap_is_a_finding() -> None:
    kernel = host.RawKernel(
        'extern "C" __global__ void k(const int* a) {\n  if (a[threadIdx.x] < 0)\n    __trap();\n}\n', "k"
    )
    values = np.arange(8, dtype=np.int32)
    assert kernel.check(1, 8, (values,))
    report = kernel.check(1, 8, (values - 3,))
    assert [(f.kind, f.line) for f in report.findings] == [(Kind.TRAP, 3)]
    with pytest.raises(host.LaunchError) as raised:
        kernel(1, 8, (values - 3,))
    assert "line 3" in raised.value.reason
