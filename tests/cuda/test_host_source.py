"""From CUDA C to C++: tokens, kernels, workgroup memory, lines, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cuda.host_cases import KERNELS, needs_compiler
from umd_core.errors import UnsupportedError
from umd_cuda import host
from umd_cuda.host.source import transform
from umd_cuda.host.tokens import tokenise

_PIECES = st.sampled_from(
    [
        "//",
        "/*",
        "*/",
        '"',
        "'",
        "\\",
        "\n",
        "#",
        'R"(',
        ')"',
        "asm",
        "__shared__",
        "{",
        "}",
        "<<<",
        ">>>",
        "::",
        " ",
        "1'0",
        "x",
        ";",
    ]
)


@given(st.one_of(st.text(), st.lists(_PIECES).map("".join)))
def test_tokens_joined_are_the_source(text: str) -> None:
    tokens = tokenise(text)
    assert "".join(token.text for token in tokens) == text
    position = 0
    for token in tokens:
        assert token.line == text[:position].count("\n") + 1
        position += len(token.text)


@given(st.lists(_PIECES).map("".join), st.booleans())
def test_any_text_is_transformed(text: str, checked: bool) -> None:
    unit = transform(text, "any.cu", checked=checked)
    assert unit.text.count("umd_kernels") == 1


def test_comments_and_strings_stay() -> None:
    source = '// asm __shared__ <<<\nconst char* s = "asm __shared__ float x[4];"; /* __global__ void k() {} */\n'
    unit = transform(source, "k.cu")
    assert source in unit.text
    assert unit.kernels == []


def test_kernels_are_found_with_their_parameters() -> None:
    source = """
namespace a { namespace {
template <typename T, int N = (1 < 2)> __global__ void scale(T* data, const T (&table)[4], int n = 3) { }
} }
namespace b::c { static __global__ __launch_bounds__(256, 2) void plain(float *__restrict__ x, unsigned int) { } }
extern "C" { __global__ void prototype(int n); __global__ void __launch_bounds__(64) shown(const int *p) {} }
void host() { }
"""
    unit = transform(source, "k.cu", expressions=["a::scale<float>"])
    by_name = {kernel.name: kernel for kernel in unit.kernels}
    assert set(by_name) == {"b::c::plain", "shown", "a::scale<float>"}
    assert by_name["shown"].parameters == ("p",)
    assert by_name["b::c::plain"].parameters[0] == "x"
    assert by_name["shown"].line == 6


def test_who_synchronises_is_followed_through_calls_and_macros() -> None:
    source = """
#define SYNC() __syncthreads()
struct Sum { __device__ int operator()(int v) { return __shfl_xor_sync(~0u, v, 1); } };
__device__ void low() { SYNC(); }
__device__ void middle() { low(); }
__global__ void calls() { middle(); }
__global__ void plain(int* x) { x[0] = 1; }
template <class Op> __global__ void with(Op op) { op(1); }
struct Copy {};
"""
    unit = transform(source, "k.cu", expressions=["with<Sum>", "with<Copy>"])
    assert {kernel.name: kernel.fibers for kernel in unit.kernels} == {
        "calls": True, "plain": False, "with<Sum>": True, "with<Copy>": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("construct", "reason"),
    [
        ('asm volatile("mov.u32 %0, %laneid;" : "=r"(x[0]));', "inline PTX"),
        ('asm("trap;");', "inline PTX"),
        ("x[0] = tex1Dfetch<int>(0, 1);", "textures"),
        ("cudaTextureObject_t t;", "textures"),
        ("cooperative_groups::this_grid().sync();", "cooperative groups"),
        ("k<<<1, 2>>>(x);", "dynamic parallelism"),
        ("nvcuda::wmma::fragment<int> f;", "wmma"),
    ],
)
@needs_compiler
def test_what_is_not_covered_is_refused_by_line(construct: str, reason: str) -> None:
    source = f'extern "C" __global__ void k(int* x) {{\n  x[0] = 1;\n  {construct}\n}}\n'
    with pytest.raises(host.RefusedSourceError) as raised:
        host.compile(source, name="mine.cu")
    assert isinstance(raised.value, UnsupportedError)
    assert raised.value.line == 3
    assert reason in raised.value.refusals[0][1]
    assert "mine.cu:3" in str(raised.value)


@pytest.mark.parametrize(
    "header", ["cooperative_groups.h", "mma.h", "cub/cub.cuh", "cupy/complex.cuh", "curand_kernel.h"]
)
@needs_compiler
def test_headers_that_are_not_covered_are_refused_by_line(header: str) -> None:
    with pytest.raises(host.RefusedSourceError) as raised:
        host.compile(f'// first\n\n#include <{header}>\nextern "C" __global__ void k() {{}}\n')
    assert raised.value.line == 3
    assert header in raised.value.refusals[0][1]


@needs_compiler
def test_what_an_if_leaves_out_is_no_matter() -> None:
    source = """
#ifndef __UMD_HOST__
extern "C" __global__ void k(int* x) { asm("trap;"); }
extern "C" __global__ void gone(int* x) { }
#else
#define LANE(x) asm("mov %0" : "=r"(x))
extern "C" __global__ void k(int* x) { x[0] = 7; }
#endif
"""
    module = host.compile(source)
    assert module.kernels == ("k",)
    x = np.zeros(1, np.int32)
    module.function("k").launch((1,), (1,), 0, [x.ctypes.data.to_bytes(8, "little")])
    assert x[0] == 7


@needs_compiler
def test_inline_ptx_behind_a_macro_is_refused() -> None:
    source = (
        '#define LANE(x) asm volatile("mov.u32 %0, %laneid;" : "=r"(x))\n'
        'extern "C" __global__ void k(int* x) {\n  LANE(x[0]);\n}\n'
    )
    with pytest.raises(host.RefusedSourceError) as raised:
        host.compile(source)
    assert "inline PTX" in raised.value.refusals[0][1]


@needs_compiler
def test_compile_errors_name_the_line() -> None:
    source = 'extern "C" __global__ void k(int* x) {\n  __shared__ int a,\n      b[4];\n  x[0] = nothing;\n}\n'
    for checked in (False, True):
        with pytest.raises(host.CompileError) as raised:
            host.compile(source, name="mine.cu", checked=checked)
        assert raised.value.line == 4
        assert "nothing" in raised.value.diagnostics


@pytest.mark.parametrize("checked", [False, True])
@needs_compiler
def test_declarations_of_workgroup_memory(checked: bool) -> None:
    source = """
struct Pair { int key; float value; };
__shared__ int everywhere[2];
extern __shared__ __align__(16) unsigned char dynamic[];
template <typename T, int N> __device__ int grid(int t) {
  static __shared__ T table[N][N], corner;
  volatile __shared__ T* pointer;
  if (t == 0) { corner = 5; pointer = &table[1][2]; *pointer = corner; }
  __syncthreads();
  return table[1][2];
}
extern "C" __global__ void k(int* out) {
  __shared__ Pair pairs[4]; __shared__ alignas(32) double aligned[2];
  extern __shared__ float2 view[];
  int t = threadIdx.x;
  pairs[t].key = t; everywhere[t & 1] = 9; aligned[t & 1] = 3;
  view[t] = make_float2(t, 2 * t);
  __syncthreads();
  out[t] = pairs[1 - t].key + everywhere[0] + grid<int, 3>(t) + (int)((float*)dynamic)[2 * t + 1] + (int)aligned[0];
}
"""
    module = host.RawModule(code=source)
    kernel = module.get_function("k")
    out = np.zeros(2, np.int32)
    if checked:
        report = kernel.check(1, 2, (out,), shared_mem=16, outputs=["out"], orders=2)
        assert report, str(report)
    else:
        kernel(1, 2, (out,), shared_mem=16)
    np.testing.assert_array_equal(out, [1 + 9 + 5 + 0 + 3, 0 + 9 + 5 + 2 + 3])


@pytest.mark.parametrize("checked", [False, True])
@needs_compiler
def test_device_code_of_every_form(checked: bool) -> None:
    source = """
#include <cstdint>
#include <device_launch_parameters.h>
typedef unsigned char byte_t;
enum class Mode : int { Add = 0, Mul = 1 };
__constant__ const int table[3] = {1, 2, 3};
__device__ const float eps = 0.5f;
template <typename T> __device__ T one = T(1);
__host__ __device__ inline float2 operator+(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }
__device__ bool operator==(const int2& a, const int2& b) { return a.x == b.x && a.y == b.y; }
template <typename T> struct Traits { static constexpr int size = sizeof(T); using type = T; };
template <> struct Traits<float> { static constexpr int size = 40; using type = float; };
template <typename T> static __device__ __forceinline__ typename Traits<T>::type twice(T v) { return v + v; }
template <> __device__ __forceinline__ int twice<int>(int v) { return 3 * v; }
__device__ int factorial(int n) { return n < 2 ? 1 : n * factorial(n - 1); }
class Counter {
 public:
  __device__ explicit Counter(int n) : n_(n) {}
  __device__ int next() { return n_ += blockDim.x; }
 private:
  int n_;
};
namespace ops {
template <Mode M> __device__ int apply(int a, int b) { if constexpr (M == Mode::Add) return a + b; else return a * b; }
}
__global__ void k(float* out, Mode mode) {
  Counter counter(threadIdx.x);
  auto square = [=] __device__ (int v) { return v * v; };
  dim3 copy(blockDim);
  float2 sum = make_float2(1, 2) + make_float2(3, 4);
  float value = table[2] + eps + one<int> + sum.y + Traits<float>::size + Traits<double>::size + twice(1.5f) + twice(2);
  value += counter.next() + square(3) + factorial(5) + copy.x + (make_int2(1, 2) == make_int2(1, 2));
  switch (mode) {
    case Mode::Add: value += ops::apply<Mode::Add>(2, 5); break;
    default: value += ops::apply<Mode::Mul>(2, 5);
  }
  out[threadIdx.x] = value;
}
"""
    wanted = 3 + 0.5 + 1 + 6 + 40 + 8 + 3 + 6 + np.arange(4) + 4 + 9 + 120 + 4 + 1 + 10
    out = np.zeros(4, np.float32)
    kernel = host.RawKernel(source, "k")
    if checked:
        report = kernel.check(1, 4, (out, 1), outputs=["out"])
        assert report, str(report)
    else:
        kernel(1, 4, (out, 1))
    np.testing.assert_array_equal(out, wanted)


@needs_compiler
def test_a_kernel_that_a_macro_declares_is_found_by_its_name() -> None:
    source = """
#define SCALE(T) extern "C" __global__ void scale_##T(T* x) { x[threadIdx.x] *= 2; }
SCALE(int)
SCALE(float)
"""
    x = np.arange(4, dtype=np.float32)
    host.RawKernel(source, "scale_float")(1, 4, (x,))
    np.testing.assert_array_equal(x, [0, 2, 4, 6])
    with pytest.raises(host.UnknownKernelError):
        host.RawKernel('extern "C" __global__ void k() {}', "j").compile()
    with pytest.raises(host.UnknownKernelError):
        host.RawKernel('extern "C" __global__ void k() {}', "j<int>")(1, 1, ())


def test_the_acceptance_sources_name_no_host_macro() -> None:
    for path in KERNELS.glob("*.cu"):
        assert "UMD" not in path.read_text()
