"""Warp operations, atomics, half types and intrinsics against NumPy and ml_dtypes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.cuda.host_cases import needs_compiler
from umd_cuda import host

pytestmark = needs_compiler

LANES = np.arange(32)


def _run(body: str, *arrays: Any, block: int = 32, parameters: str = "int* out", prelude: str = "") -> None:
    source = f'{prelude}\nextern "C" __global__ void k({parameters}) {{ int t = threadIdx.x; {body} }}\n'
    host.RawKernel(source, "k")((1,), (block,), arrays)


@pytest.mark.parametrize(
    ("call", "source_lane"),
    [
        ("__shfl_sync(~0u, t, 5)", np.full(32, 5)),
        ("__shfl_sync(~0u, t, t + 1)", (LANES + 1) % 32),
        ("__shfl_sync(~0u, t, 3, 8)", LANES // 8 * 8 + 3),
        ("__shfl_up_sync(~0u, t, 3)", np.where(LANES < 3, LANES, LANES - 3)),
        ("__shfl_up_sync(~0u, t, 1, 4)", np.where(LANES % 4 < 1, LANES, LANES - 1)),
        ("__shfl_down_sync(~0u, t, 7)", np.where(LANES + 7 > 31, LANES, LANES + 7)),
        ("__shfl_down_sync(~0u, t, 2, 16)", np.where(LANES % 16 + 2 > 15, LANES, LANES + 2)),
        ("__shfl_xor_sync(~0u, t, 9)", LANES ^ 9),
        ("(int)__shfl_xor_sync(~0u, (double)t, 16)", LANES ^ 16),
        ("(int)__shfl_xor_sync(~0u, (long long)t, 1, 2)", LANES ^ 1),
    ],
)
def test_shuffles(call: str, source_lane: Any) -> None:
    out = np.zeros(32, np.int32)
    _run(f"out[t] = {call};", out)
    np.testing.assert_array_equal(out, source_lane)


@pytest.mark.parametrize(
    ("call", "value"),
    [
        ("__ballot_sync(~0u, t % 3 == 0)", sum(1 << i for i in range(0, 32, 3))),
        ("__any_sync(~0u, t == 31)", 1),
        ("__any_sync(~0u, t > 31)", 0),
        ("__all_sync(~0u, t < 32)", 1),
        ("__all_sync(~0u, t < 31)", 0),
        ("__match_any_sync(~0u, t / 32)", 0xFFFFFFFF),
        ("__reduce_add_sync(~0u, t)", 496),
        ("__reduce_max_sync(~0u, t - 40)", np.uint32(np.int32(-9))),
        ("__reduce_min_sync(~0u, t - 40)", np.uint32(np.int32(-40).view(np.uint32))),
        ("__syncthreads_count(t < 5)", 5),
        ("__syncthreads_or(t == 7)", 1),
        ("__syncthreads_and(t < 31)", 0),
        ("__activemask()", 0xFFFFFFFF),
    ],
)
def test_votes(call: str, value: int) -> None:
    out = np.zeros(32, np.uint32)
    _run(f"out[t] = {call};", out, parameters="unsigned* out")
    np.testing.assert_array_equal(out, np.full(32, int(value) & 0xFFFFFFFF, np.uint32))


def test_active_lanes_of_a_branch() -> None:
    out = np.zeros(32, np.uint32)
    _run("if (t % 4 == 1) out[t] = __activemask(); else out[t] = __activemask();", out, parameters="unsigned* out")
    ones = sum(1 << i for i in range(1, 32, 4))
    # both branches stand in one line: the place of a call is its line
    assert set(out) <= {ones, 0xFFFFFFFF ^ ones, 0xFFFFFFFF}
    _run("if (t % 4 == 1)\nout[t] = __activemask();\nelse\nout[t] = __activemask();", out, parameters="unsigned* out")
    np.testing.assert_array_equal(out, np.where(LANES % 4 == 1, ones, 0xFFFFFFFF ^ ones).astype(np.uint32))


def test_parts_of_a_warp_shuffle_apart() -> None:
    out = np.zeros(32, np.int32)
    _run(
        "unsigned half = t < 16 ? 0xffffu : 0xffff0000u; int v = t;"
        "if (t >= 16) for (int k = 0; k < 3; ++k) v = __shfl_xor_sync(half, v, 1);"
        "else v = __shfl_xor_sync(half, v, 2); out[t] = v;",
        out,
    )
    np.testing.assert_array_equal(out, np.where(LANES < 16, LANES ^ 2, LANES ^ 1))


@pytest.mark.parametrize(
    ("kind", "call", "start", "end", "returned"),
    [
        ("int", "atomicAdd(p, 2)", 1, 65, 1),
        ("unsigned", "atomicSub(p, 1u)", 100, 68, 100),
        ("unsigned long long", "atomicAdd(p, 1ull << 40)", 0, 32 << 40, 0),
        ("float", "atomicAdd(p, 0.5f)", 1, 17, 1),
        ("double", "atomicAdd(p, 0.25)", 0, 8, 0),
        ("int", "atomicMax(p, t)", -5, 31, -5),
        ("int", "atomicMin(p, -t)", 5, -31, 5),
        ("unsigned", "atomicExch(p, 9u)", 4, 9, 4),
        ("int", "atomicCAS(p, t, t + 1)", 0, 32, 0),
        ("unsigned", "atomicAnd(p, ~(1u << t))", 0xFFFFFFFF, 0, 0xFFFFFFFF),
        ("unsigned", "atomicOr(p, 1u << t)", 0, 0xFFFFFFFF, 0),
        ("unsigned", "atomicXor(p, 1u << t)", 0xF, 0xFFFFFFF0, 0xF),
        ("unsigned", "atomicInc(p, 9u)", 8, 10 - 10 + (8 + 32) % 10, 8),
        ("unsigned", "atomicDec(p, 9u)", 3, (3 - 32) % 10, 3),
    ],
)
def test_atomics(kind: str, call: str, start: float, end: float, returned: float) -> None:
    numpy = {"int": "i4", "unsigned": "u4", "unsigned long long": "u8", "float": "f4", "double": "f8"}[kind]
    cell, old = np.array([start]).astype(numpy), np.zeros(32, numpy)
    _run(f"old[t] = {call};", cell, old, parameters=f"{kind}* p, {kind}* old")
    assert cell[0] == end
    assert old[0] == returned


def test_every_half_goes_to_float_and_back() -> None:
    bits = np.arange(65536, dtype=np.uint16)
    x = bits.view(np.float16)
    wide, back = np.zeros(65536, np.float32), np.zeros(65536, np.float16)
    kernel = host.RawKernel(
        "#include <cuda_fp16.h>\n"
        'extern "C" __global__ void k(const half* x, float* wide, half* back) {\n'
        "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  wide[i] = __half2float(x[i]); back[i] = __float2half(wide[i]); }",
        "k",
    )
    kernel(256, 256, (x, wide, back))
    np.testing.assert_array_equal(wide, x.astype(np.float32))
    finite = ~np.isnan(x)
    np.testing.assert_array_equal(back.view(np.uint16)[finite], bits[finite])
    assert np.isnan(back[~finite]).all()


@pytest.mark.parametrize(
    ("header", "kind", "numpy"), [("fp16", "half", np.float16), ("bf16", "__nv_bfloat16", ml_dtypes.bfloat16)]
)
def test_half_arithmetic_rounds_once(header: str, kind: str, numpy: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(4096) * 10.0 ** rng.integers(-3, 4, 4096) for _ in range(2))
    x, y = a.astype(numpy), b.astype(numpy)
    outs = [np.zeros(4096, numpy) for _ in range(5)]
    kernel = host.RawKernel(
        f"#include <cuda_{header}.h>\n"
        f'extern "C" __global__ void k(const {kind}* x, const {kind}* y, const float* f, {kind}* add, {kind}* mul, '
        f"{kind}* div, {kind}* less, {kind}* from) {{\n"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  add[i] = x[i] + y[i]; mul[i] = __hmul(x[i], y[i]); div[i] = x[i] / y[i];\n"
        f"  less[i] = {kind}(__hlt(x[i], y[i]) ? 1.0f : 0.0f); from[i] = {kind}(f[i]); }}",
        "k",
    )
    kernel(16, 256, (x, y, a.astype(np.float32), *outs))
    p, q = x.astype(np.float32), y.astype(np.float32)
    with np.errstate(over="ignore"):
        for got, wanted in zip(outs, (p + q, p * q, p / q, p < q, a.astype(np.float32)), strict=True):
            np.testing.assert_array_equal(got, wanted.astype(numpy))


@pytest.mark.parametrize(
    ("call", "reference"),
    [
        ("__popc(x)", lambda x: [bin(v).count("1") for v in x]),
        ("__clz((int)x)", lambda x: [32 - int(v).bit_length() for v in x]),
        ("__ffs((int)x)", lambda x: [(int(v) & -int(v)).bit_length() for v in x]),
        ("__brev(x)", lambda x: [int(f"{v:032b}"[::-1], 2) for v in x]),
        ("__umulhi(x, 0x9E3779B9u)", lambda x: [int(v) * 0x9E3779B9 >> 32 for v in x]),
        ("__funnelshift_l(x, 1u, 4)", lambda x: [((1 << 32 | int(v)) << 4) >> 32 & 0xFFFFFFFF for v in x]),
        ("__byte_perm(x, 0, 0x0123)", lambda x: [int.from_bytes(int(v).to_bytes(4, "little"), "big") for v in x]),
        ("min(x, 1000u)", lambda x: [min(int(v), 1000) for v in x]),
        ("max((int)(x >> 1), 77)", lambda x: [max(int(v) >> 1, 77) for v in x]),
        ("(unsigned)__float2int_rz(1e20f) + 0 * x", lambda x: [2**31 - 1] * len(x)),
        ("__float_as_uint(__uint_as_float(x >> 2))", lambda x: [int(v) >> 2 for v in x]),
    ],
)
def test_integer_intrinsics(call: str, reference: Any) -> None:
    x = np.random.default_rng(1).integers(0, 2**32, 64, dtype=np.uint64).astype(np.uint32)
    x[:2] = 0, 1
    out = np.zeros(64, np.uint32)
    source = (
        'extern "C" __global__ void k(const unsigned* in, unsigned* out) {\n'
        f"  unsigned x = in[threadIdx.x]; out[threadIdx.x] = {call}; }}"
    )
    host.RawKernel(source, "k")(1, 64, (x, out))
    np.testing.assert_array_equal(out, np.array(reference(x), np.uint64).astype(np.uint32))


def test_minimum_and_maximum_prefer_numbers_to_nan() -> None:
    nan, inf = np.float32(np.nan), np.float32(np.inf)
    a = np.array([1, 2, nan, 3, nan, -inf, inf, 0], np.float32)
    b = np.array([2, 1, 3, nan, nan, 0, 1, -0.0], np.float32)
    out = np.zeros((4, 8), np.float32)
    body = "out[t] = fmaxf(a[t], b[t]); out[8 + t] = fminf(a[t], b[t]);"
    body += "out[16 + t] = max(a[t], b[t]); out[24 + t] = fmin((double)a[t], (double)b[t]);"
    _run(body, a, b, out, block=8, parameters="const float* a, const float* b, float* out")
    wanted = [np.fmax(a, b), np.fmin(a, b), np.fmax(a, b), np.fmin(a, b)]
    np.testing.assert_array_equal(out, np.stack(wanted))


def test_vector_types_have_cudas_sizes_and_alignments() -> None:
    wanted = {
        "char3": (3, 1), "uchar4": (4, 4), "short2": (4, 4), "ushort4": (8, 8), "int3": (12, 4), "uint4": (16, 16),
        "float2": (8, 8), "float3": (12, 4), "float4": (16, 16), "double2": (16, 16), "longlong4": (32, 16),
        "dim3": (12, 4),
    }  # fmt: skip
    out = np.zeros(2 * len(wanted), np.int32)
    body = " ".join(f"out[{2 * i}] = sizeof({n}); out[{2 * i + 1}] = alignof({n});" for i, n in enumerate(wanted))
    _run(body, out, block=1)
    assert dict(zip(wanted, zip(out[::2].tolist(), out[1::2].tolist(), strict=True), strict=True)) == wanted


@pytest.mark.parametrize("block", [(5, 1, 1), (33, 1, 1), (4, 3, 2), (1024, 1, 1)])
@pytest.mark.parametrize("synchronises", [False, True])
def test_coordinates(block: tuple[int, int, int], synchronises: bool) -> None:
    grid = (2, 3, 2)
    threads, blocks = int(np.prod(block)), int(np.prod(grid))
    out = np.full((blocks, threads, 6), -1, np.int32)
    source = (
        'extern "C" __global__ void k(int* out) {\n'
        "  int b = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;\n"
        "  int t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;\n"
        f"  {'__syncthreads();' if synchronises else ''}\n"
        "  int* o = out + 6 * (b * (int)(blockDim.x * blockDim.y * blockDim.z) + t);\n"
        "  o[0] = threadIdx.x; o[1] = threadIdx.y; o[2] = threadIdx.z;\n"
        "  o[3] = blockIdx.x; o[4] = blockIdx.y; o[5] = blockIdx.z; }"
    )
    host.RawKernel(source, "k")(grid, block, (out,))
    coordinates = [
        np.stack(np.unravel_index(np.arange(n), sizes[::-1]))[::-1].T for n, sizes in ((threads, block), (blocks, grid))
    ]
    np.testing.assert_array_equal(out[:, :, :3], np.broadcast_to(coordinates[0], (blocks, threads, 3)))
    np.testing.assert_array_equal(out[:, :, 3:], np.broadcast_to(coordinates[1][:, None], (blocks, threads, 3)))
