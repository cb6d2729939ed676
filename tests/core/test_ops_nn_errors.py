"""What neural-network ops refuse, by the typed error and its facts."""

from __future__ import annotations

from typing import Any

import onnx
import pytest

from umd_core import dtypes
from umd_core.errors import AttributeValueError, DTypeError, InputCountError, ShapeError, UmdError, UnsupportedError
from umd_core.ir import TensorDesc
from umd_core.ops import OPS
from umd_core.translate import translate

X, W, B = [1, 4, 5, 5], [6, 4, 3, 3], [6]
Facts = dict[str, Any]
REFUSED: list[tuple[str, list[list[int]], Facts, type[UmdError], Facts]] = [
    ("Conv", [[1, 3, 5, 5], W], {}, ShapeError, {"op": "Conv", "shapes": [[1, 3, 5, 5], W]}),
    ("Conv", [X, [6, 4, 3]], {}, ShapeError, {"op": "Conv"}),
    ("Conv", [X, W, [5]], {}, ShapeError, {"input": "B"}),
    ("Conv", [X, [6, 2, 3, 3]], {"group": 4}, ShapeError, {}),
    ("Conv", [X, [3, 2, 3, 3]], {"group": 2}, ShapeError, {}),
    ("Conv", [X, W], {"group": 0}, ShapeError, {}),
    ("Conv", [X, [6, 4, 6, 3]], {}, ShapeError, {}),
    ("Conv", [[1, 4], [6, 4]], {}, ShapeError, {}),
    ("Conv", [[1, 2, 3, 3, 3, 3], [2, 2, 1, 1, 1, 1]], {}, UnsupportedError, {"op": "Conv"}),
    ("Conv", [X, W], {"strides": [1]}, AttributeValueError, {"attribute": "strides"}),
    ("Conv", [X, W], {"strides": [0, 1]}, AttributeValueError, {"attribute": "strides"}),
    ("Conv", [X, W], {"dilations": [1, -1]}, AttributeValueError, {"attribute": "dilations"}),
    ("Conv", [X, W], {"pads": [1, 1]}, AttributeValueError, {"attribute": "pads"}),
    ("Conv", [X, W], {"pads": [-1, 0, 0, 0]}, AttributeValueError, {"attribute": "pads"}),
    ("Conv", [X, W], {"pads": [1] * 4, "auto_pad": "VALID"}, AttributeValueError, {"attribute": "pads"}),
    ("Conv", [X, W], {"auto_pad": "SAME"}, AttributeValueError, {"attribute": "auto_pad"}),
    ("Conv", [X, W], {"kernel_shape": [2, 3]}, AttributeValueError, {"attribute": "kernel_shape"}),
    ("Conv", [X], {}, InputCountError, {"got": 1, "least": 2, "most": 3}),
    ("umd.ConvInputGrad", [[1, 6, 3, 3], W], {}, AttributeValueError, {"attribute": "shape"}),
    ("umd.ConvInputGrad", [[1, 6, 4, 3], W], {"shape": X}, ShapeError, {"input": "dY"}),
    ("umd.ConvWeightGrad", [[1, 6, 3, 3], X], {"kernel_shape": [2, 3]}, ShapeError, {"input": "dY"}),
    ("MaxPool", [X], {}, AttributeValueError, {"attribute": "kernel_shape"}),
    ("MaxPool", [X], {"kernel_shape": [2]}, ShapeError, {"input": "X"}),
    ("MaxPool", [X], {"kernel_shape": [0, 2]}, AttributeValueError, {"attribute": "kernel_shape"}),
    ("MaxPool", [X], {"kernel_shape": [2, 2], "storage_order": 2}, AttributeValueError, {"attribute": "storage_order"}),
    ("umd.MaxPoolWithIndices", [[5]], {"kernel_shape": [2]}, ShapeError, {}),
    ("umd.MaxPoolGrad", [[1, 4, 2, 2], [1, 4, 2, 2]], {"plane_shape": [2] * 4}, AttributeValueError, {}),
    ("umd.MaxPoolGrad", [[1, 4, 2, 2], [1, 4, 2, 1]], {"plane_shape": [4, 4]}, ShapeError, {"input": "indices"}),
    ("umd.AveragePoolGrad", [[1, 4, 2, 2]], {"plane_shape": [4], "kernel_shape": [2, 2]}, AttributeValueError, {}),
    (
        "umd.AveragePoolGrad",
        [[1, 4, 2, 2]],
        {"plane_shape": [4, 4], "kernel_shape": [2] * 2},
        ShapeError,
        {"input": "dY"},
    ),
    ("GlobalMaxPool", [[2, 3]], {}, ShapeError, {"input": "X"}),
    ("Softmax", [X], {"axis": 4}, AttributeValueError, {"attribute": "axis"}),
    ("Softmax", [[]], {}, AttributeValueError, {"attribute": "axis"}),
    ("umd.SoftmaxGrad", [X, W], {}, ShapeError, {"input": "Y"}),
    ("LayerNormalization", [X, [4]], {}, ShapeError, {"input": "Scale"}),
    ("LayerNormalization", [X, [5], [2]], {}, ShapeError, {"input": "B"}),
    ("umd.LayerNorm", [[]], {}, ShapeError, {"input": "X"}),
    ("umd.LayerNormGrad", [X, X, [1, 4, 5], [1, 4, 5]], {}, ShapeError, {"input": "mean"}),
    ("BatchNormalization", [X, [4], [4], [4], [5]], {}, ShapeError, {"input": "input_var"}),
    ("BatchNormalization", [[4]] * 5, {}, ShapeError, {"input": "X"}),
    ("umd.BatchNormGrad", [X, W, [4], [4]], {}, ShapeError, {"input": "X"}),
    ("GroupNormalization", [X, [4], [4]], {"num_groups": 3}, AttributeValueError, {"attribute": "num_groups"}),
    ("InstanceNormalization", [[1, 4], [4], [4]], {}, ShapeError, {"input": "input"}),
    ("umd.AdamW", [[3], [2], [3], [3], [], []], {}, ShapeError, {"input": "G"}),
    ("umd.AdamW", [[3], [3], [3], [3], [2], []], {}, ShapeError, {"input": "lr"}),
    ("umd.AdamW", [[3], [3], [3], [3]], {}, InputCountError, {"got": 4, "least": 6, "most": 6}),
]


@pytest.mark.parametrize(
    ("op", "shapes", "attributes", "error", "facts"), REFUSED, ids=[f"{n}-{case[0]}" for n, case in enumerate(REFUSED)]
)
def test_refused(op: str, shapes: list[list[int]], attributes: Facts, error: type[UmdError], facts: Facts) -> None:
    indices = op == "umd.MaxPoolGrad"
    inputs = [TensorDesc("i64" if indices and i else "f32", shape) for i, shape in enumerate(shapes)]
    with pytest.raises(error) as caught:
        translate(op, inputs, **attributes)
    assert type(caught.value) is error
    assert {name: getattr(caught.value, name) for name in facts} == facts


def test_momentum_needs_its_state() -> None:
    p, number = TensorDesc("f32", [3]), TensorDesc("f32", [])
    with pytest.raises(AttributeValueError) as caught:
        translate("umd.SGD", [p, p, None, number, number], momentum=0.9)
    assert caught.value.attribute == "momentum"
    with pytest.raises(InputCountError):
        translate("umd.SGD", [p, p, number, number])


def test_running_statistics_come_together() -> None:
    x, c = TensorDesc("f32", [2, 3]), TensorDesc("f32", [3])
    with pytest.raises(ShapeError):
        translate("umd.BatchNormTrain", [x, None, None, c])


@pytest.mark.parametrize("op", ["Conv", "AveragePool", "Softmax", "LayerNormalization"])
def test_integers_are_refused_by_name(op: str) -> None:
    attributes: Facts = {"kernel_shape": [1, 1]} if op == "AveragePool" else {}
    x = TensorDesc("i32", X)
    with pytest.raises(DTypeError) as caught:
        translate(op, [x] * OPS[op].input_counts[0], **attributes)
    assert caught.value.allowed == tuple(d.name for d in dtypes.FLOATS)


ONNX_OPS = [
    "Conv", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Softmax", "LogSoftmax",
    "LayerNormalization", "BatchNormalization", "GroupNormalization", "InstanceNormalization",
]  # fmt: skip


@pytest.mark.parametrize("op", ONNX_OPS)
def test_signature_is_onnxs(op: str) -> None:
    schema, template = onnx.defs.get_schema(op), OPS[op]
    assert [i.name for i in template.inputs] == [i.name for i in schema.inputs]
    assert [r.name for r in template.results] == [o.name for o in schema.outputs]
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    assert [i.optional for i in template.inputs] == [i.option == optional for i in schema.inputs]
    assert {a.name: a.required for a in template.attributes} == {a.name: a.required for a in schema.attributes.values()}
    for attribute in template.attributes:
        default = schema.attributes[attribute.name].default_value
        if default.name and attribute.kind != "dtype":
            value = onnx.helper.get_attribute_value(default)
            want = value.decode() if isinstance(value, bytes) else value
            assert attribute.default == (pytest.approx(want) if isinstance(want, float) else want)
