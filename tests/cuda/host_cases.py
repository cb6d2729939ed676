"""The acceptance kernels: each with a launch, its arguments, and what NumPy makes of the same arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from umd_cuda import host
from umd_cuda.host.toolchain import find_compiler

KERNELS = Path(__file__).parent / "kernels"
CAMERA = np.dtype({  # as the compiler lays out the struct: int2 is aligned to 8 bytes
    "names": ["focal", "center", "size", "flip"], "formats": ["f8", ("f4", 3), ("i4", 2), "?"],
    "offsets": [0, 8, 24, 32], "itemsize": 40,
})  # fmt: skip
TAPS = np.array([0.1, 0.2, 0.4, 0.2, 0.1], np.float32)


def has_compiler() -> bool:
    try:
        find_compiler()
    except host.NoCompilerError:
        return False
    return True


needs_compiler = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")


@dataclass(frozen=True)
class Case:
    """A launch. `expected` maps parameter names to what they must hold afterwards."""

    file: str
    kernel: str
    grid: Sequence[int]
    block: Sequence[int]
    args: Callable[[np.random.Generator], list[Any]]
    expected: Callable[[list[Any]], dict[str, Any]]
    shared: int = 0
    outputs: tuple[str, ...] = ()
    tolerance: float = 1e-5
    sort: bool = False  # the kernel promises a set, not an order

    def module(self, source: str | None = None) -> host.RawModule:
        code = (KERNELS / self.file).read_text() if source is None else source
        return host.RawModule(code=code, name=self.file, name_expressions=(self.kernel,))

    def function(self, source: str | None = None) -> host.RawKernel:
        return self.module(source).get_function(self.kernel)


def _f(rng: np.random.Generator, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def _layer_norm(x: Any, gamma: Any) -> Any:
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * gamma


def _gelu(x: Any) -> Any:
    wide = x.astype(np.float32)
    return (0.5 * wide * (1 + np.tanh(0.7978845608 * (wide + 0.044715 * wide**3)))).astype(x.dtype)


def _project(a: list[Any]) -> Any:
    p, camera = a[0], a[2]
    u = camera["focal"] * (p[:, 0] - camera["center"][0]) / p[:, 2] + camera["size"][0] / 2
    v = camera["focal"] * (p[:, 1] - camera["center"][1]) / p[:, 2] + camera["size"][1] / 2
    return np.stack([u, camera["size"][1] - v], 1)


def _camera() -> Any:
    camera = np.zeros((), CAMERA)
    camera["focal"], camera["center"], camera["size"], camera["flip"] = 50.0, (0.1, 0.2, 0), (64, 48), True
    return camera


def _forces(x: Any) -> Any:
    r = x[None, :, :3].astype(np.float64) - x[:, None, :3]
    d = (r * r).sum(-1) + 1e-3
    force = (r * (x[None, :, 3] * d**-1.5)[..., None]).sum(1)
    return np.concatenate([force, np.zeros((len(x), 1))], 1)


def _csr(rng: np.random.Generator) -> list[Any]:
    dense = rng.standard_normal((37, 50)) * (rng.random((37, 50)) < 0.2)
    indptr = np.concatenate([[0], (dense != 0).sum(1).cumsum()]).astype(np.int32)
    return [37, indptr, np.nonzero(dense)[1].astype(np.int32), dense[dense != 0], rng.standard_normal(50), np.zeros(37)]


def _csr_product(a: list[Any]) -> Any:
    return [(a[3][s:e] * a[4][a[2][s:e]]).sum() for s, e in zip(a[1][:-1], a[1][1:], strict=True)]


def _points(rng: np.random.Generator, n: int) -> Any:
    return np.concatenate([_f(rng, n, 2), rng.random((n, 1), np.float32) + 1], 1)


def _ints(rng: np.random.Generator, low: int, high: int, n: int, kind: Any = np.int32) -> Any:
    return rng.integers(low, high, n).astype(kind)


def _zeros(*shape: int, kind: Any = np.float32) -> Any:
    return np.zeros(shape, kind)


CASES = [
    Case("elementwise.cu", "my_add", (5,), (64,), lambda r: [_f(r, 320), _f(r, 320), _zeros(320)],
         lambda a: {"y": a[0] + a[1]}, outputs=("y",)),
    Case("elementwise.cu", "test_sum", (3,), (128,), lambda r: [_f(r, 300), _f(r, 300), _zeros(300), 300],
         lambda a: {"y": a[0] + a[1]}, outputs=("y",)),
    Case("elementwise.cu", "saxpy", (2,), (64,), lambda r: [1000, 1.5, _f(r, 1000), _f(r, 1000)],
         lambda a: {"y": np.float32(1.5) * a[2] + a[3]}),
    Case("elementwise.cu", "fx3<double>", (4,), (32,), lambda r: [r.standard_normal(100), 100],
         lambda a: {"arr": a[0] * 3}),
    Case("elementwise.cu", "fx3<int>", (4,), (32,), lambda r: [_ints(r, -99, 99, 100), 100],
         lambda a: {"arr": a[0] * 3}),
    Case("elementwise.cu", "project", (2,), (64,), lambda r: [_points(r, 100), _zeros(100, 2), _camera(), 100],
         lambda a: {"pixels": _project(a)}, outputs=("pixels",), tolerance=1e-4),
    Case("half.cu", "haxpy", (2,), (32,),
         lambda r: [101, 0.5, _f(r, 101).astype(np.float16), _f(r, 101).astype(np.float16)],
         lambda a: {"y": (0.5 * a[2].astype(np.float64) + a[3]).astype(np.float16)}, tolerance=0.0),
    Case("half.cu", "gelu_bf16", (3,), (64,),
         lambda r: [_f(r, 150).astype(ml_dtypes.bfloat16), np.zeros(150, ml_dtypes.bfloat16), 150],
         lambda a: {"out": _gelu(a[0])}, outputs=("out",), tolerance=1e-2),
    Case("reductions.cu", "row_sum<double, 2>", (4,), (96,), lambda r: [r.standard_normal((4, 301)), np.zeros(4), 301],
         lambda a: {"out": a[0].sum(1)}, outputs=("out",)),
    Case("reductions.cu", "single_pass_sum", (4,), (64,), lambda r: [_f(r, 999), 999, _zeros(4), _zeros(1)],
         lambda a: {"result": [a[0].sum(dtype=np.float64)]}, shared=256, outputs=("partial", "result"), tolerance=1e-4),
    Case("reductions.cu", "layer_norm", (3,), (32, 4), lambda r: [_f(r, 10, 70), _f(r, 70), _zeros(10, 70), 10, 70],
         lambda a: {"y": _layer_norm(a[0], a[1])}, outputs=("y",), tolerance=1e-4),
    Case("reductions.cu", "softmax", (3,), (64,), lambda r: [_f(r, 3, 100), _zeros(3, 100), 100],
         lambda a: {"y": _softmax(a[0])}, shared=256, outputs=("y",)),
    Case("matrices.cu", "transpose_no_bank_conflicts", (2, 2), (32, 8),
         lambda r: [_zeros(50, 40), _f(r, 40, 50), 50, 40], lambda a: {"odata": a[1].T}, outputs=("odata",)),
    Case("matrices.cu", "sgemm<32, 16, 8, 4>", (2, 2), (128,),
         lambda r: [40, 30, 20, 2.0, _f(r, 40, 20), _f(r, 20, 30), 0.5, _f(r, 40, 30)],
         lambda a: {"C": 2 * (a[4] @ a[5]) + 0.5 * a[7]}, tolerance=1e-4),
    Case("matrices.cu", "csr_spmv", (10,), (128,), _csr, lambda a: {"y": _csr_product(a)}, outputs=("y",)),
    Case("matrices.cu", "forces", (2,), (32,), lambda r: [_f(r, 50, 4), _zeros(50, 4), 50],
         lambda a: {"A": _forces(a[0])}, shared=512, outputs=("A",), tolerance=2e-3),
    Case("indexing.cu", "histogram", (3,), (64,),
         lambda r: [_ints(r, 0, 256, 1000, np.uint8), _zeros(256, kind=np.uint32), 1000],
         lambda a: {"bins": np.bincount(a[0], minlength=256)}),
    Case("indexing.cu", "segment_sum", (4,), (64,),
         lambda r: [r.standard_normal(250), _ints(r, 0, 7, 250), np.zeros(7), 250],
         lambda a: {"sums": np.bincount(a[1], a[0], 7)}),
    Case("indexing.cu", "inclusive_scan", (1,), (128,),
         lambda r: [_ints(r, -9, 9, 100), _zeros(100, kind=np.int32), 100],
         lambda a: {"out": a[0].cumsum()}, shared=1024, outputs=("out",)),
    Case("indexing.cu", "bitonic_sort", (2,), (256,), lambda r: [_f(r, 2, 256)], lambda a: {"keys": np.sort(a[0])}),
    Case("indexing.cu", "compact", (4,), (64,),
         lambda r: [_ints(r, -5, 5, 250), _zeros(250, kind=np.int32), _zeros(1, kind=np.int32), 250],
         lambda a: {"out": _kept(a[0]), "count": [(a[0] > 0).sum()]}, sort=True),
    Case("indexing.cu", "filter_k", (4,), (64,),
         lambda r: [_zeros(250, kind=np.int32), _zeros(1, kind=np.int32), _ints(r, -5, 5, 250), 250],
         lambda a: {"dst": _kept(a[2]), "nres": [(a[2] > 0).sum()]}, sort=True),
]  # fmt: skip


def _kept(values: Any) -> Any:
    return np.sort(np.where(values > 0, values, 0))


def by_name(kernel: str) -> Case:
    return next(case for case in CASES if case.kernel == kernel)
