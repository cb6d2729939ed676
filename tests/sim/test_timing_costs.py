"""What launches ask of a device: arithmetic and bytes beside counts by hand, by brute force, and by the op table."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import umd_core as umd
from umd_cli.tensors import tensor
from umd_core import dtypes
from umd_core.commands import CommandBuffer, Dispatch
from umd_core.inference import total_cost
from umd_core.kernels import BY_NAME, KERNELS
from umd_core.kernels.costs import FAMILIES, FUNCTIONS, PRODUCTS, Cost, cost, traffic
from umd_core.kernels.expressions import PRIMITIVES
from umd_core.translate import op_graph


def costs(buffer: CommandBuffer) -> list[Cost]:
    return [cost(buffer.kernels[c.kernel], c.parameters) for c in buffer.commands if isinstance(c, Dispatch)]


def of(op: str, *inputs: str, **attributes: Any) -> Cost:
    """Returns the cost of an op that is one launch."""
    (only,) = costs(umd.translate(op, [tensor(text) for text in inputs], **attributes))
    return only


def test_every_kernel_has_a_cost() -> None:
    for row in KERNELS.values():
        assert row.family in FAMILIES or row.family in PRODUCTS or row.name in PRODUCTS, row.name
    assert set(PRIMITIVES) >= FUNCTIONS


def test_arithmetic_by_hand() -> None:
    assert of("MatMul", "f32[2,3,5]", "f32[5,7]").products == 2 * 2 * 3 * 5 * 7
    assert of("Conv", "f32[2,3,8,8]", "f32[4,3,3,3]").products == 2 * (2 * 4 * 6 * 6) * (3 * 3 * 3)
    assert of("Conv", "f32[1,4,8]", "f32[4,2,3]", group=2).products == 2 * (4 * 6) * (2 * 3)
    softmax = of("Softmax", "f32[4,9]")
    assert (softmax.functions, softmax.simple) == ({"exp": 36, "div": 36}, 3 * 36)
    assert (of("Add", "f32[4,9]", "f32[9]").simple, of("Transpose", "f32[4,9]").operations) == (36, 0)
    gelu = of("Gelu", "f32[10]")  # 0.5 · x · (1 + erf(x / sqrt 2))
    assert (gelu.functions, gelu.simple) == ({"erf": 10}, 40)
    assert of("TopK", "f32[3,100]", "i64[1]=4").simple == 3 * 100 * 7  # 100 elements: 7 rounds of merging
    assert of("Add", "f64[4]", "f64[4]").dtype is dtypes.float64


def test_a_chain_counts_its_program_and_the_operands_that_it_names() -> None:
    graph = umd.Graph()
    x, y = graph.input("x", umd.TensorDesc("f32", (64,))), graph.input("y", umd.TensorDesc("f32", (64,)))
    graph.output(graph.add("Exp", [graph.add("Mul", [graph.add("Add", [x, y]), y])]))
    graph.fuses = True
    (only,) = costs(umd.translate(graph))
    assert (only.simple, only.functions) == (2 * 64, {"exp": 64})
    assert only.traffic == (2 * 64 * 4, 64 * 4)


@pytest.mark.parametrize(
    ("op", "inputs"),
    [("MatMul", ["f32[64,96]", "f32[96,32]"]), ("Conv", ["f32[1,8,16,16]", "f32[4,8,3,3]"])],
)
def test_products_agree_with_what_the_op_table_states(op: str, inputs: list[str]) -> None:
    arrays = [tensor(text) for text in inputs]
    stated = total_cost(op_graph(op, arrays, {}))
    found = of(op, *inputs)
    assert (found.products, found.traffic.total) == (stated.flops, stated.bytes)


def test_attention_counts_both_products_and_the_weights() -> None:
    record = BY_NAME["attention_kernel"].record((dtypes.float32, dtypes.float32), (1,))
    flat = [0] * len(record.struct.unpack(bytes(record.size)))
    flat[0] = 1
    sizes = (2, 3, 5, 7, 11)  # batches, queries, keys, depth, width
    for extent, size in zip(record.row.extents, sizes, strict=True):
        flat[record.extent_at[extent.name][0]] = size
    found = cost(record, record.struct.pack(*flat))
    assert found.products == 2 * 2 * 3 * 5 * (7 + 11)
    assert found.functions == {"exp": 2 * 3 * 5}


# bytes


@st.composite
def boxes(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes and strides in which no two elements meet: axes of growing strides, shuffled, and broadcast ones."""
    shape, strides, span = [], [], 1
    for _ in range(draw(st.integers(1, 4))):
        extent = draw(st.integers(1, 5))
        stride = span * draw(st.integers(1, 3))
        shape.append(extent)
        strides.append(0 if draw(st.booleans()) and draw(st.booleans()) else stride * draw(st.sampled_from((1, -1))))
        span = stride * extent
    order = draw(st.permutations(range(len(shape))))
    return tuple(shape[i] for i in order), tuple(strides[i] for i in order)


@given(boxes(), st.sampled_from(("float32", "int8", "float64")))
def test_bytes_are_those_of_the_elements_that_are_touched(
    box: tuple[tuple[int, ...], tuple[int, ...]], dtype: str
) -> None:
    shape, strides = box
    rank = next(size for size in (1, 4, 8) if size >= len(shape))
    pad = rank - len(shape)
    record = BY_NAME["elementwise_copy_kernel"].record((dtypes.BY_NAME[dtype],), (rank,))
    low = -sum((e - 1) * s for e, s in zip(shape, strides, strict=True) if s < 0)
    block = record.pack(
        extents=(1,) * pad + shape,
        x_offset=low,
        x_strides=(0,) * pad + strides,
        out_offset=0,
        out_strides=(0,) * pad + umd.TensorDesc(dtype, shape).strides,
    )
    places = {
        low + sum(i * s for i, s in zip(index, strides, strict=True)) for index in itertools.product(*map(range, shape))
    }
    found = traffic(record, record.struct.unpack(block))
    size = dtypes.BY_NAME[dtype].size
    assert found == (len(places) * size, int(np.prod(shape)) * size)


def test_strided_boxes_move_whole_pieces() -> None:
    def read(text: str, granule: int, **attributes: Any) -> int:
        buffer = umd.translate("Identity", [umd.TensorDesc("f32", **attributes)])
        (command,) = (c for c in buffer.commands if isinstance(c, Dispatch))
        record = buffer.kernels[command.kernel]
        return traffic(record, record.struct.unpack(command.parameters), granule).read

    assert read("every second", 32, shape=(64,), strides=(2,)) == 64 * 2 * 4  # all that lies between
    assert read("every hundredth", 32, shape=(64,), strides=(100,)) == 64 * 32  # a piece for each
    assert read("rows of 16", 32, shape=(8, 16), strides=(1000, 1)) == 8 * 16 * 4
    assert read("rows of 3", 32, shape=(8, 3), strides=(1000, 1)) == 8 * 32
    assert read("columns", 32, shape=(64, 32), strides=(1, 64)) == 64 * 32 * 4  # transposed: every byte once


def test_an_index_touches_what_it_picks() -> None:
    (only,) = costs(umd.translate("Gather", [tensor("f32[1000,64]"), tensor("i64[7]")], axis=0))
    assert only.traffic == (7 * 64 * 4 + 7 * 8, 7 * 64 * 4)
    (only,) = costs(umd.translate("Gather", [tensor("f32[2,64]"), tensor("i64[700]")], axis=0))
    assert only.traffic.read == 2 * 64 * 4 + 700 * 8  # no more than the table has
