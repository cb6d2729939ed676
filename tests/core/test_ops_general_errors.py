"""What the general ops refuse: each refusal is typed, names the input or attribute, and shows the shapes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.core.recipe_interpreter import launches, run_op
from umd_core import ops
from umd_core.errors import (
    AttributeValueError,
    DTypeError,
    IndexRangeError,
    InputCountError,
    LimitError,
    ShapeError,
    UmdError,
    UnknownOpError,
    UnsupportedError,
)
from umd_core.ir import TensorDesc
from umd_core.ops import OPS, op_template
from umd_core.template import OpTemplate
from umd_core.translate import translate


class Bad(NamedTuple):
    """A call that must be refused, the error's class, and words of its message."""

    op: str
    inputs: list[Any]
    attributes: dict[str, Any]
    error: type[UmdError]
    words: tuple[str, ...]


def f32(*shape: int) -> TensorDesc:
    return TensorDesc("f32", shape)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


HUGE = 1 << 40
BAD = [
    Bad("Add", [f32(2, 3), f32(2, 4)], {}, ShapeError, ("Add", "[2, 3]", "[2, 4]")),
    Bad("Add", [f32(2)], {}, InputCountError, ("2 inputs", "got 1")),
    Bad("Add", [f32(2), None], {}, InputCountError, ("B is missing",)),
    Bad("Add", [f32(2), TensorDesc("f64", (2,))], {}, DTypeError, ("'B'", "float64", "float32")),
    Bad("Add", [TensorDesc("bool", (2,))] * 2, {}, DTypeError, ("'A'", "bool")),
    Bad("Add", [f32(2), f32(2)], {"axis": 1}, AttributeValueError, ("axis", "unknown", "none")),
    Bad("Max", [f32(2), None], {}, InputCountError, ("data is missing",)),
    Bad("Max", [], {}, InputCountError, ("got 0",)),
    Bad("Sum", [f32(2, 1), f32(3)] * 3 + [f32(4)], {}, ShapeError, ("[4]",)),
    Bad("Not", [f32(2)], {}, DTypeError, ("bool",)),
    Bad("Exp", [TensorDesc("i32", ())], {}, DTypeError, ("int32", "float32")),
    Bad("Where", [f32(2)] * 3, {}, DTypeError, ("'condition'", "bool")),
    Bad("umd.TanhGrad", [f32(2, 3), f32(3)], {}, ShapeError, ("'Y'", "[3]", "[2, 3]")),
    Bad("Gelu", [f32(2)], {"approximate": "erf"}, AttributeValueError, ("approximate", "none, tanh")),
    Bad("MatMul", [f32(2, 3), f32(4, 5)], {}, ShapeError, ("'B'", "4 rows", "3 columns", "[2, 3]", "[4, 5]")),
    Bad("MatMul", [f32(2, 2, 3), f32(3, 3, 5)], {}, ShapeError, ("'B'", "broadcast", "[3]", "[2]")),
    Bad("MatMul", [f32(), f32(3)], {}, ShapeError, ("'A'", "0-d")),
    Bad("MatMul", [f32(HUGE, 1), f32(1, HUGE)], {}, LimitError, ("element count", str(HUGE * HUGE))),
    Bad("Gemm", [f32(2, 3, 4), f32(4, 5)], {}, ShapeError, ("'A'", "rank 3")),
    Bad("Gemm", [f32(2, 3), f32(3, 5)], {"transB": 1}, ShapeError, ("'B'", "5 rows", "3 columns")),
    Bad("Gemm", [f32(2, 3), f32(3, 5), f32(2)], {}, ShapeError, ("'C'", "[2]", "[2, 5]")),
    Bad("Gemm", [TensorDesc("i32", (2, 2))] * 2, {"alpha": 0.5}, AttributeValueError, ("alpha", "whole")),
    Bad("Gemm", [TensorDesc("u8", (2, 2))] * 2, {"beta": -1.0}, AttributeValueError, ("beta", "uint8")),
    Bad("Gemm", [f32(2, 3), f32(3, 5)], {"transA": "perhaps"}, AttributeValueError, ("transA", "bool")),
    Bad("ReduceSum", [f32(2, 3), ints(2)], {}, AttributeValueError, ("axes", "2", "rank 2")),
    Bad("ReduceSum", [f32(2, 3), ints(1, -1)], {}, AttributeValueError, ("axes", "twice")),
    Bad("ReduceSum", [f32(2, 3), np.array([1], np.int32)], {}, DTypeError, ("'axes'", "int32", "int64")),
    Bad("ReduceMean", [TensorDesc("i8", (2,))], {}, DTypeError, ("int8",)),
    Bad("ArgMax", [f32(2, 0)], {"axis": 1}, ShapeError, ("'data'", "empty", "[2, 0]")),
    Bad("ArgMax", [f32(2)], {"axis": 1}, AttributeValueError, ("axis", "rank 1")),
    Bad("Reshape", [f32(2, 3), ints(4, -1)], {}, ShapeError, ("'shape'", "[4, -1]", "[2, 3]")),
    Bad("Reshape", [f32(2, 3), ints(-1, -1)], {}, ShapeError, ("'shape'", "[-1, -1]")),
    Bad("Reshape", [f32(2, 3), ints(6, -2)], {}, ShapeError, ("-2",)),
    Bad("Reshape", [f32(6), ints(6, 0)], {}, ShapeError, ("axis 1", "[6]")),
    Bad("Reshape", [f32(2, 0), ints(0, -1)], {"allowzero": 1}, ShapeError, ("-1",)),
    Bad("Reshape", [f32(6), ints(HUGE, HUGE)], {}, ShapeError, ("6 elements",)),
    Bad("Reshape", [f32(1), ints(*[1] * 9)], {}, LimitError, ("rank", "9", "8")),
    Bad("Flatten", [f32(2)], {"axis": 2}, AttributeValueError, ("axis", "-1 to 1")),
    Bad("Transpose", [f32(2, 3)], {"perm": [0]}, AttributeValueError, ("perm", "1 of 2")),
    Bad("Transpose", [f32(2, 3)], {"perm": [0, 0]}, AttributeValueError, ("perm", "twice")),
    Bad("Transpose", [f32(2, 3)], {"perm": [0, 2]}, AttributeValueError, ("perm", "rank 2")),
    Bad("Concat", [f32(2, 3), f32(3, 4)], {"axis": 0}, ShapeError, ("'inputs'", "number 1", "[3, 4]", "[2, 3]")),
    Bad("Concat", [f32(2), f32(2, 1)], {"axis": 0}, ShapeError, ("[2, 1]",)),
    Bad("Concat", [f32(2)], {}, AttributeValueError, ("axis", "missing")),
    Bad("Concat", [f32(), f32()], {"axis": 0}, ShapeError, ("0-d",)),
    Bad("Concat", [f32(1 << 59), f32(1 << 59)], {"axis": 0}, LimitError, ("tensor size in bytes", str(1 << 62))),
    Bad("Split", [f32(5), ints(2, 2)], {}, ShapeError, ("'split'", "[2, 2]", "5")),
    Bad("Split", [f32(5), ints(7, -2)], {}, ShapeError, ("[7, -2]",)),
    Bad("Split", [f32(5), ints(2, 3)], {"num_outputs": 2}, AttributeValueError, ("num_outputs",)),
    Bad("Split", [f32(5)], {"num_outputs": 4}, AttributeValueError, ("num_outputs", "4 parts of 2")),
    Bad("Split", [f32(5)], {"num_outputs": 0}, AttributeValueError, ("num_outputs", "positive")),
    Bad("Split", [f32()], {"num_outputs": 1}, ShapeError, ("0-d",)),
    Bad("Slice", [f32(5), ints(0), ints(1, 2)], {}, ShapeError, ("'ends'", "2 entries")),
    Bad("Slice", [f32(5), ints(0), ints(5), ints(0), ints(0)], {}, ShapeError, ("'steps'", "0")),
    Bad("Slice", [f32(5), ints(0, 0), ints(5, 5)], {}, ShapeError, ("'starts'", "rank 1")),
    Bad("Slice", [f32(), ints(0), ints(5), ints(0)], {}, ShapeError, ("0-d",)),
    Bad("Slice", [f32(5), ints(0), ints(5), ints(1)], {}, AttributeValueError, ("axes", "rank 1")),
    Bad("Slice", [f32(5), f32(1), ints(5)], {}, AttributeValueError, ("starts", "known")),
    Bad("umd.Flip", [f32(5)], {"axes": [1]}, AttributeValueError, ("axes", "rank 1")),
    Bad("Gather", [f32(), ints(0)], {}, ShapeError, ("'data'", "0-d")),
    Bad("Gather", [f32(2, 2), f32(1)], {}, DTypeError, ("'indices'", "float32", "int32, int64")),
    Bad("Gather", [f32(*[1] * 8), TensorDesc("i64", (1, 1))], {}, LimitError, ("rank", "9")),
    Bad("Gather", [f32(2, 0), TensorDesc("i64", (4,))], {"axis": 1}, ShapeError, ("'indices'", "4 elements", "none")),
    Bad("GatherElements", [f32(0), TensorDesc("i64", (2,))], {}, ShapeError, ("'indices'", "2 elements")),
    Bad("ScatterElements", [f32(0), TensorDesc("i64", (2,)), f32(2)], {}, ShapeError, ("'indices'", "2 elements")),
    Bad("umd.EmbeddingGrad", [f32(2), TensorDesc("i64", (2,))], {"num_weights": 0}, ShapeError, ("2 elements",)),
    Bad("GatherElements", [f32(2, 3), TensorDesc("i64", (3, 1))], {"axis": 1}, ShapeError, ("'indices'", "[3, 1]")),
    Bad("GatherElements", [f32(2, 3), TensorDesc("i64", (3,))], {}, ShapeError, ("'indices'", "[2, 3]")),
    Bad("ScatterElements", [f32(2), TensorDesc("i64", (1,)), f32(2)], {}, ShapeError, ("'updates'", "[2]", "[1]")),
    Bad(
        "ScatterElements",
        [TensorDesc("bool", (2,)), TensorDesc("i64", (1,)), TensorDesc("bool", (1,))],
        {"reduction": "max"},
        UnsupportedError,
        ("'max'", "bool"),
    ),
    Bad("ScatterND", [f32(2), TensorDesc("i64", (1, 2)), f32(1)], {}, ShapeError, ("'indices'", "[1, 2]")),
    Bad("ScatterND", [f32(2, 3), TensorDesc("i64", (4, 1)), f32(4)], {}, ShapeError, ("'updates'", "[4, 3]")),
    Bad("umd.EmbeddingGrad", [f32(2, 3), TensorDesc("i64", (3,))], {"num_weights": 4}, ShapeError, ("'dY'", "[2, 3]")),
    Bad(
        "umd.EmbeddingGrad",
        [f32(2, 3), TensorDesc("i64", (2,))],
        {"num_weights": -4},
        AttributeValueError,
        ("num_weights", "negative"),
    ),
    Bad("Cast", [f32(2)], {}, AttributeValueError, ("to", "missing")),
    Bad("Cast", [f32(2)], {"to": "complex64"}, AttributeValueError, ("to", "complex64")),
    Bad("Clip", [f32(2), f32(2)], {}, ShapeError, ("'min'", "[2]")),
    Bad("Pad", [f32(2, 3), ints(1, 1)], {}, ShapeError, ("'pads'", "2 entries")),
    Bad("Pad", [f32(2), ints(-2, -1)], {}, ShapeError, ("'pads'", "axis 0")),
    Bad("Pad", [f32(2), ints(HUGE, (1 << 63) - 1)], {}, LimitError, ("element count",)),
    Bad("Pad", [f32(2, 0), ints(0, 0, 0, 1)], {"mode": "reflect"}, ShapeError, ("empty", "reflect")),
    Bad("Pad", [f32(2), ints(0, HUGE)], {"mode": "wrap"}, LimitError, ("pads per element",)),
    Bad("Pad", [f32(2), ints(0, 1)], {"mode": "mirror"}, AttributeValueError, ("mode", "wrap")),
    Bad("Expand", [f32(2), ints(3)], {}, ShapeError, ("'input'", "[2]", "[3]")),
    Bad("Expand", [f32(1), ints(-3)], {}, ShapeError, ("'shape'", "negative")),
    Bad("Expand", [f32(1), ints(HUGE, HUGE)], {}, LimitError, ("element count",)),
    Bad("Tile", [f32(2), ints(1, 2)], {}, ShapeError, ("'repeats'", "[2]")),
    Bad("Tile", [f32(2), ints(-1)], {}, ShapeError, ("negative",)),
    Bad("Tile", [f32(HUGE), ints(HUGE)], {}, LimitError, ("element count",)),
    Bad("Squeeze", [f32(2, 1), ints(0)], {}, ShapeError, ("'axes'", "axis 0", "[2, 1]")),
    Bad("Squeeze", [f32(2, 1), ints(3)], {}, AttributeValueError, ("axes", "rank 2")),
    Bad("Unsqueeze", [f32(2), ints(0, 0)], {}, AttributeValueError, ("axes", "twice")),
    Bad("Unsqueeze", [f32(2), ints(2)], {}, AttributeValueError, ("axes", "rank 2")),
    Bad("ConstantOfShape", [ints(-1)], {}, ShapeError, ("'input'", "negative")),
    Bad("ConstantOfShape", [ints(HUGE, HUGE)], {}, LimitError, ("element count",)),
    Bad("ConstantOfShape", [ints(1)], {"value": np.zeros(2)}, AttributeValueError, ("value", "one element")),
    Bad("umd.Fill", [], {"shape": [-1]}, AttributeValueError, ("shape", "negative")),
    Bad("umd.Fill", [], {"shape": [1], "dtype": "i8", "value": 200}, AttributeValueError, ("value", "int8")),
    Bad("umd.Fill", [], {"shape": [1], "dtype": "i8", "value": 0.5}, AttributeValueError, ("value", "int8")),
    Bad("umd.Fill", [], {"shape": [1], "dtype": "f16", "value": 1e6}, AttributeValueError, ("value", "float16")),
    Bad("umd.Fill", [], {"shape": [1], "dtype": "i8", "value": "NaN"}, AttributeValueError, ("value", "int8")),
    Bad("umd.Fill", [], {"shape": [1], "value": "seven"}, AttributeValueError, ("value", "number")),
    Bad("umd.Fill", [], {}, AttributeValueError, ("shape", "missing")),
    Bad("Range", [np.int64(0), np.int64(5), np.int64(0)], {}, ShapeError, ("never ends",)),
    Bad("Range", [np.float32(0), np.float32(np.nan), np.float32(1)], {}, ShapeError, ("nan",)),
    Bad("Range", [np.float64(0), np.float64(1e300), np.float64(1)], {}, LimitError, ("element count",)),
    Bad("Range", [np.float64(-1e308), np.float64(1e308), np.float64(1e-3)], {}, LimitError, ("element count",)),
    Bad("Range", [np.zeros(2), np.float64(1), np.float64(1)], {}, ShapeError, ("'start'", "[2]")),
    Bad("Trilu", [f32(2)], {}, ShapeError, ("'input'", "[2]")),
    Bad("Trilu", [f32(2, 2), ints(1, 2)], {}, ShapeError, ("'k'", "[2]")),
    Bad("Ad", [f32(2)], {}, UnknownOpError, ("'Ad'", "Add")),
]


@pytest.mark.parametrize("bad", [pytest.param(bad, id=f"{number}-{bad.op}") for number, bad in enumerate(BAD)])
def test_what_does_not_fit_is_refused_by_name(bad: Bad) -> None:
    with pytest.raises(bad.error) as caught:
        translate(bad.op, bad.inputs, **bad.attributes)
    message = str(caught.value)
    assert all(word in message for word in bad.words), message
    if bad.error in (ShapeError, AttributeValueError, InputCountError, DTypeError):
        assert caught.value.facts()["op"] == bad.op


@pytest.mark.parametrize("index", [5, -6, 2**40])
def test_an_index_out_of_range_is_left_to_the_device(index: int) -> None:
    x, where = np.zeros((5, 2), np.float32), np.array([0, index])
    for op, inputs in (
        ("Gather", [x, where]),
        ("GatherElements", [x, where[:, None]]),
        ("ScatterElements", [x, where[:, None], np.zeros((2, 1), np.float32)]),
        ("umd.EmbeddingGrad", [np.zeros((2, 3), np.float32), where]),
    ):
        attributes = {"num_weights": 5} if op == "umd.EmbeddingGrad" else {}
        with pytest.raises(IndexRangeError) as caught:
            run_op(op, inputs, attributes)
        assert (caught.value.facts()["value"], caught.value.facts()["extent"]) == (index, 5)


def test_the_files_and_the_table_agree() -> None:
    import importlib
    import pkgutil

    found: list[str] = []
    for module in pkgutil.iter_modules(ops.__path__):
        templates = importlib.import_module(f"umd_core.ops.{module.name}").TEMPLATES
        assert templates, f"{module.name} lists no template"
        assert all(isinstance(t, OpTemplate) for t in templates)
        found += [t.name for t in templates]
    assert sorted(found) == sorted(OPS), "one op in two files"
    assert len(found) == len(set(found))


@pytest.mark.parametrize("op", sorted(OPS))
def test_every_op_describes_itself(op: str) -> None:
    template = op_template(op)
    assert template.doc.endswith("."), "a line of doc"
    assert template.domain == ("umd" if op.startswith("umd.") else "ai.onnx")
    names = [i.name for i in template.inputs] + [a.name for a in template.attributes]
    assert len(names) == len(set(names)), "a static input may be given as an attribute of its name"
    for attribute in template.attributes:
        assert attribute.required or attribute.default is None or attribute.kind


@pytest.mark.parametrize("op", sorted(name for name in OPS if not name.startswith("umd.")))
def test_the_signature_is_that_of_onnx(op: str) -> None:
    import onnx.defs

    schema, template = onnx.defs.get_schema(op), op_template(op)
    assert [a.name for a in template.attributes if a.name not in schema.attributes] == []
    required = {name for name, a in schema.attributes.items() if a.required}
    assert {a.name for a in template.attributes if a.required} == required
    options = [str(i.option).rpartition(".")[2] for i in schema.inputs]
    ours = ["Variadic" if i.variadic else "Optional" if i.optional else "Single" for i in template.inputs]
    assert ours == options
    assert len(template.results) == len(schema.outputs)


def test_many_operands_are_a_chain() -> None:
    x = np.zeros(3, np.float32)
    assert launches("Sum", [x] * 100) == ["elementwise_add_kernel"] * 99
