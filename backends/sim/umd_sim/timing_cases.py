"""What a calibration runs: for each kernel family one op at two sizes, and the sweeps that bandwidths come from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from umd_core.commands import Command, CommandBuffer
from umd_core.ir import Array, Graph, TensorDesc

CHAIN = ("Mul", "Add") * 6
"""The ops of the fused chain that arithmetic is timed with."""
FUNCTION_OPS = {
    "div": "Div", "erf": "Erf", "exp": "Exp", "expm1": "umd.Expm1", "log": "Log", "log1p": "umd.Log1p", "pow": "Pow",
    "reciprocal": "Reciprocal", "rsqrt": "umd.Rsqrt", "sigmoid": "Sigmoid", "sin": "Sin", "cos": "Cos", "sqrt": "Sqrt",
    "tanh": "Tanh",
}  # fmt: skip
"""The op that is one launch of one function, by the function's name."""


@dataclass(frozen=True, slots=True)
class Case:
    """An op whose main kernel is of a family.

    Attributes:
        family: the kernel family.
        op: the op's name.
        inputs: arrays, by a scale from `small` to `large`; static ones keep their values.
        attributes: of the op.
        small: a scale at which a launch is nearly all that it takes.
        large: one at which it is nearly nothing.
    """

    family: str
    op: str
    inputs: Callable[[int], Sequence[Array]]
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    small: int = 1
    large: int = 256


def numbers(*shape: int) -> Array:
    """Returns float32 numbers in [0.5, 1.5): every function of them is finite and takes its usual time."""
    return np.resize(np.random.default_rng(0).random(4096, np.float32) + np.float32(0.5), shape)


def _positions(limit: int, *shape: int) -> Array:
    return np.random.default_rng(0).integers(0, limit, shape)


CASES: tuple[Case, ...] = (
    Case("expression", "Add", lambda n: [numbers(n, 256), numbers(n, 256)]),
    Case("reduce", "ReduceSum", lambda n: [numbers(n, 256), np.array([1])]),
    Case("arg_reduce", "ArgMax", lambda n: [numbers(n, 256)], {"axis": 1}),
    Case("gather", "Gather", lambda n: [numbers(1024, 256), _positions(1024, n)], {"axis": 0}),
    Case("scatter", "ScatterElements", lambda n: [numbers(n, 256), _positions(n, n, 256), numbers(n, 256)]),
    Case("gemm", "MatMul", lambda n: [numbers(n, 6 * n), numbers(6 * n, 6 * n)], large=128),
    Case("conv", "Conv", lambda n: [numbers(1, 32, n, n), numbers(32, 32, 3, 3)], {"pads": [1, 1, 1, 1]}, large=56),
    Case("pool", "MaxPool", lambda n: [numbers(1, 32, n + 2, n + 2)], {"kernel_shape": [3, 3]}, large=64),
    Case("rows", "Softmax", lambda n: [numbers(n, 256)]),
    Case("update", "umd.AdamW", lambda n: [*(numbers(n, 256) for _ in range(4)), numbers(), numbers()]),
    Case("scan", "CumSum", lambda n: [numbers(n, 256), np.array(1)]),
    Case("sort", "TopK", lambda n: [numbers(n, 256), np.array([8])], large=64),
    Case("random", "umd.Bernoulli", lambda n: [numbers(n, 256) - np.float32(0.5), np.array(1), np.array(2)]),
)


def chained(count: int, dtype: str) -> tuple[Graph, list[Array]]:
    """Returns a graph of one fused chain of `CHAIN`, and its arguments."""
    graph = Graph("chain")
    value, y = (graph.input(name, TensorDesc(dtype, (count,))) for name in ("x", "y"))
    for op in CHAIN:
        value = graph.add(op, [value, y])
    graph.output(value)
    graph.fuses = True
    return graph, [numbers(count).astype(dtype)] * 2


def repeated(command_buffer: CommandBuffer, copies: int) -> CommandBuffer:
    """Returns a program that does the same `copies` times over, one after the other."""
    commands: list[Command] = []
    for _ in range(copies):
        first = len(commands)
        before = (first - 1,) if first else ()
        commands += [c._replace(deps=(*before, *(first + dep for dep in c.deps))) for c in command_buffer.commands]
    return dataclasses.replace(command_buffer, commands=commands, events=[], patches=[], debug=[], raw=None)


# programs that nothing is fitted to: how far off their estimates are is what a calibrated profile says of itself


def perceptron() -> tuple[Graph, list[Array]]:
    """Returns three dense layers with ReLU and a softmax, and a batch of 64."""
    graph = Graph("perceptron")
    arrays = [numbers(64, 256), numbers(256, 512), numbers(512), numbers(512, 512), numbers(512, 10)]
    x, w1, b1, w2, w3 = (graph.input(f"x{i}", TensorDesc.of(a)) for i, a in enumerate(arrays))
    x = graph.add("Relu", [graph.add("Add", [graph.add("MatMul", [x, w1]), b1])])
    x = graph.add("Relu", [graph.add("Add", [graph.add("MatMul", [x, w2]), b1])])
    graph.output(graph.add("Softmax", [graph.add("MatMul", [x, w3])], {"axis": -1}))
    return graph, arrays


def attention() -> tuple[Graph, list[Array]]:
    """Returns 4 heads of attention over 96 places, and the sum with what went in."""
    graph = Graph("attention")
    arrays = [numbers(4, 96, 32), numbers(4, 32, 96), numbers(4, 96, 32)]
    q, k, v = (graph.input(f"x{i}", TensorDesc.of(a)) for i, a in enumerate(arrays))
    weights = graph.add("Softmax", [graph.add("MatMul", [q, k])], {"axis": -1})
    graph.output(graph.add("Add", [q, graph.add("MatMul", [weights, v])]))
    return graph, arrays


def convolutions() -> tuple[Graph, list[Array]]:
    """Returns two convolutions with ReLU and a maximum pool, and a picture of 40 by 40."""
    graph = Graph("convolutions")
    arrays = [numbers(1, 16, 40, 40), numbers(48, 16, 3, 3), numbers(64, 48, 3, 3)]
    x, w1, w2 = (graph.input(f"x{i}", TensorDesc.of(a)) for i, a in enumerate(arrays))
    x = graph.add("Relu", [graph.add("Conv", [x, w1], {"pads": [1, 1, 1, 1]})])
    x = graph.add("MaxPool", [x], {"kernel_shape": [2, 2], "strides": [2, 2]})
    graph.output(graph.add("Relu", [graph.add("Conv", [x, w2], {"pads": [1, 1, 1, 1]})]))
    return graph, arrays


HELD_OUT: tuple[Callable[[], tuple[Graph, list[Array]]], ...] = (perceptron, attention, convolutions)
