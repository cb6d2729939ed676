"""Arguments are taken by the kernel's own types, or refused with the parameter's name; never reinterpreted."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cuda.host_cases import needs_compiler
from umd_core.errors import DTypeError, InputCountError, LimitError
from umd_cuda import host

pytestmark = needs_compiler

ECHO = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
struct Pair { short a; float b; };
extern "C" __global__ void echo(bool b, signed char c, unsigned short s, int i, unsigned long long u, float f, double d,
                                half h, __nv_bfloat16 g, Pair p, double* out) {
  double all[] = {double(b), double(c), double(s), double(i), double(u), f, d, double(float(h)), double(float(g)),
                  double(p.a), p.b};
  for (int k = 0; k < 11; ++k) out[k] = all[k];
}
extern "C" __global__ void pointers(const float* read, float* written, const float4* four, const void* any,
                                    const unsigned char* bytes, const long long* longs) {
  written[0] = read ? read[0] : -1.0f;
}
"""


class Pair(ctypes.Structure):
    _fields_ = (("a", ctypes.c_short), ("b", ctypes.c_float))


@pytest.fixture(scope="module")
def module() -> host.RawModule:
    return host.RawModule(code=ECHO)


def _echo(module: host.RawModule, **changed: Any) -> Any:
    values = {
        "b": True, "c": -3, "s": 4, "i": -5, "u": 6, "f": 7.5, "d": 8.25, "h": 0.5, "g": 2.0, "p": Pair(9, 10.0),
    }  # fmt: skip
    out = np.zeros(11)
    module.get_function("echo")(1, 1, (*{**values, **changed}.values(), out))
    return out


def test_python_numbers_are_converted(module: host.RawModule) -> None:
    np.testing.assert_array_equal(_echo(module), [1, -3, 4, -5, 6, 7.5, 8.25, 0.5, 2, 9, 10])
    np.testing.assert_array_equal(_echo(module, f=3, d=4, h=5, g=6)[5:9], [3, 4, 5, 6])


def test_numpy_scalars_of_the_right_type_are_taken(module: host.RawModule) -> None:
    struct = np.array((9, 10), np.dtype([("a", "i2"), ("b", "f4")], align=True))
    got = _echo(
        module, b=np.bool_(False), c=np.int8(-128), s=np.uint16(65535), i=np.int32(-(2**31)), u=np.uint64(2**53),
        f=np.float32(0.1), d=np.float64(0.1), h=np.float16(0.1), g=ml_dtypes.bfloat16(0.1), p=struct,
    )  # fmt: skip
    wanted = [0, -128, 65535, -(2**31), 2**53, np.float32(0.1), 0.1, np.float16(0.1), ml_dtypes.bfloat16(0.1), 9, 10]
    np.testing.assert_array_equal(got, [float(v) for v in wanted])


@given(value=st.integers(-(2**70), 2**70))
def test_an_integer_arrives_or_is_refused(module: host.RawModule, value: int) -> None:
    for name, position, low, high in (("c", 1, -128, 127), ("s", 2, 0, 65535), ("i", 3, -(2**31), 2**31 - 1)):
        if low <= value <= high:
            assert _echo(module, **{name: value})[position] == value
        else:
            with pytest.raises(LimitError) as raised:
                _echo(module, **{name: value})
            assert raised.value.value == value


@given(value=st.floats(width=64))
def test_a_float_arrives_rounded_to_the_parameters_type(module: host.RawModule, value: float) -> None:
    got = _echo(module, f=value, d=value)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got[5:7], [np.float64(np.float32(value)), value])


@pytest.mark.parametrize(
    ("name", "value", "got"),
    [
        ("i", 1.0, "float"),
        ("i", np.int64(1), "int64"),
        ("i", np.float32(1), "float32"),
        ("f", np.float64(1), "float64"),
        ("f", True, "bool"),
        ("f", "1", "str"),
        ("d", np.float32(1), "float32"),
        ("h", np.float32(1), "float32"),
        ("b", 1, "int"),
        ("u", np.zeros(3), "float64"),
        ("p", 1, "int"),
        ("p", b"123", "bytes"),
    ],
)
def test_what_would_change_its_meaning_is_refused(module: host.RawModule, name: str, value: Any, got: str) -> None:
    if name == "b" and type(value) is int:
        with pytest.raises(DTypeError):
            _echo(module, b=value)
        return
    with pytest.raises(DTypeError) as raised:
        _echo(module, **{name: value})
    assert (raised.value.input, raised.value.got) == (name, got)
    assert f"input {name!r}" in str(raised.value)


def test_arrays_must_have_the_pointers_type(module: host.RawModule) -> None:
    kernel = module.get_function("pointers")
    f4, u1, i8 = np.zeros(8, np.float32), np.zeros(8, np.uint8), np.zeros(1, np.int64)
    right = (f4, f4.copy(), f4, i8, u1, i8)
    kernel(1, 1, right)
    kernel(1, 1, (None, f4, f4.astype(np.complex64), u1, u1.view(np.bool_), i8))
    assert f4[0] == -1
    for position, wrong, name in (
        (0, np.zeros(8), "read"), (1, i8, "written"), (2, np.zeros(8), "four"), (4, f4, "bytes"), (5, f4, "longs"),
        (0, [1.0], "read"), (1, 5, "written"),
    ):  # fmt: skip
        args = list(right)
        args[position] = wrong
        with pytest.raises(DTypeError) as raised:
            kernel(1, 1, args)
        assert raised.value.input == name


def test_a_read_only_array_is_not_written(module: host.RawModule) -> None:
    f4, u1, i8 = np.zeros(8, np.float32), np.zeros(8, np.uint8), np.zeros(1, np.int64)
    fixed = np.ones(8, np.float32)
    fixed.flags.writeable = False
    module.get_function("pointers")(1, 1, (fixed, f4, fixed, fixed, u1, i8))
    with pytest.raises(DTypeError) as raised:
        module.get_function("pointers")(1, 1, (f4, fixed, f4, f4, u1, i8))
    assert raised.value.input == "written"


def test_the_number_of_arguments(module: host.RawModule) -> None:
    with pytest.raises(InputCountError) as raised:
        module.get_function("pointers")(1, 1, (None,))
    assert (raised.value.got, raised.value.least) == (1, 6)


def test_strided_arrays_are_passed_by_their_first_element_and_checked_in_their_bounds() -> None:
    kernel = host.RawKernel(
        'extern "C" __global__ void k(const float* x, float* y, int stride) {\n'
        "  y[threadIdx.x] = x[threadIdx.x * stride]; }",
        "k",
    )
    x, y = np.arange(20, dtype=np.float32), np.zeros(5, np.float32)
    assert kernel.check(1, 5, (x[2::4], y, 4), outputs=["y"])
    np.testing.assert_array_equal(y, x[2::4])
    assert kernel.check(1, 5, (x[2::4], y, 5)).kinds() == {host.Kind.OUT_OF_BOUNDS_READ}
