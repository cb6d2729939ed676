"""What the tests of neural-network ops share: paths to a result, torch as float64 oracle, comparison by scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from tests.core import op_arrays
from tests.core.op_arrays import dynamic, laid_out, some_values, translated
from tests.core.recipe_interpreter import run_program
from umd_core.dtypes import FLOATS, DType
from umd_core.ir import Graph, TensorDesc
from umd_core.translate import translate

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


def run_kernels(
    op: str, inputs: Sequence[Array | None], attributes: Mapping[str, Any] | None = None, outputs: int = 1
) -> list[Array]:
    """Returns the outputs of an op translated for a device that has every kernel."""
    return run_program(translated(op, inputs, attributes or {}, outputs), dynamic(op, inputs))


PATHS = {**op_arrays.PATHS, "kernels": run_kernels}
"""Launches for a level-0 device; the simulator; the command buffer for a device that has every kernel."""


def wide(array: Array) -> torch.Tensor:
    """Returns the same numbers as a row-major float64 tensor."""
    return torch.from_numpy(np.array(array, np.float64, order="C"))


def close(got: Array, want: torch.Tensor | Array, dtype: DType, scale: Any = 0.0, tolerance: float = 16.0) -> None:
    """Checks dtype, shape and values: within `tolerance` epsilons of the larger of the value and its scale."""
    wanted = np.asarray(want.detach() if isinstance(want, torch.Tensor) else want, np.float64)
    scale = np.asarray(scale.detach() if isinstance(scale, torch.Tensor) else scale, np.float64)
    assert got.dtype == dtype.numpy
    assert got.shape == wanted.shape
    info = torch.finfo(getattr(torch, dtype.name))
    numbers = got.astype(np.float64)
    with np.errstate(invalid="ignore"):
        allowed = tolerance * float(info.eps) * np.fmax(np.abs(wanted), scale) + float(info.tiny)
        fine = (np.abs(numbers - wanted) <= allowed) | (numbers == wanted) | (np.isnan(numbers) & np.isnan(wanted))
        beyond = np.isinf(numbers) & (np.abs(wanted) + allowed >= float(info.max))
        fine |= beyond & (np.sign(numbers) == np.sign(wanted))
    if not fine.all():
        at = tuple(int(i) for i in np.argwhere(~fine)[0])
        message = f"{int((~fine).sum())} of {fine.size} differ, first at {list(at)}:"
        raise AssertionError(f"{message} {numbers[at]}, expected {wanted[at]}")


@st.composite
def tensors(draw: st.DrawFn, shape: Sequence[int], dtype: DType, *, special: bool = False) -> Array:
    """Arrays of a shape and type in any memory layout."""
    return draw(laid_out(some_values(draw(st.integers(0, 2**32)), tuple(shape), dtype, special=special)))


def floats() -> st.SearchStrategy[DType]:
    """The float types."""
    return st.sampled_from(FLOATS)


def run_graph(
    op: str, inputs: Sequence[Array | None], attributes: Mapping[str, Any], wanted: Sequence[TensorDesc | bool | None]
) -> list[Array]:
    """Returns the outputs that are wanted (False: not at all; a TensorDesc: in that layout) of a one-op graph."""
    graph = Graph(op)
    names = ["" if x is None else graph.input(f"x{i}", TensorDesc.of(x)) for i, x in enumerate(inputs)]
    outputs = ["" if layout is False else f"y{i}" for i, layout in enumerate(wanted)]
    graph.add(op, names, attributes, outputs=outputs)
    for name, layout in zip(outputs, wanted, strict=True):
        if name:
            graph.output(name, layout if isinstance(layout, TensorDesc) else None)
    return run_program(translate(graph), [x for x in inputs if x is not None])
