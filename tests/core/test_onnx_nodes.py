"""ONNX's own node tests for every op of the table, through launches, command buffers and the simulator."""

from __future__ import annotations

import functools
import warnings
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.core import op_arrays
from tests.core.op_arrays import run_translated
from umd_core import dtypes
from umd_core.errors import DTypeError, UmdError
from umd_core.ops import OPS

LEDGER = {
    **dict.fromkeys(
        (
            "test_bernoulli",
            "test_bernoulli_double",
            "test_bernoulli_seed",
            "test_training_dropout",
            "test_training_dropout_default",
            "test_training_dropout_default_mask",
            "test_training_dropout_mask",
        ),
        "the expected numbers are of NumPy's generator, not of Philox; without a seed the op says what is missing",
    ),
    **dict.fromkeys(
        (
            "test_attention_3d_causal_bf16",
            "test_attention_4d_attn_mask_causal_bf16",
            "test_attention_4d_causal_bf16",
            "test_attention_4d_causal_padded_kv_bf16",
            "test_attention_4d_padded_kv_bf16",
        ),
        "the expected numbers are rounded to 16 bits after every step of the softmax, ours after the last one",
    ),
    **dict.fromkeys(
        ("test_dft_inverse", "test_dft_inverse_opset19"),
        "parts that should be 0 are expected to be the rounding errors of a fast transform; ours are smaller",
    ),
    "test_dropout_random_old": "the ratio was an attribute before opset 12; the op says that it has none",
}
"""Cases that do not pass, and why. One that passes after all fails its test."""


class Case(NamedTuple):
    """A node with the arrays it takes and gives; None stands for an input or output left out."""

    op: str
    attributes: dict[str, Any]
    inputs: list[Any]
    outputs: list[Any]
    rtol: float
    atol: float


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def _attribute(attribute: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _is_ours(value: Any) -> bool:
    """Returns whether the value is a tensor of a dtype that umd has."""
    if isinstance(value, (list, tuple)) or value is None:
        return False
    try:
        dtypes.dtype(_array(value).dtype)
    except DTypeError:
        return False
    return True


def _case(test: Any, inputs: Any, outputs: Any) -> Case:
    graph, node = test.model.graph, test.model.graph.node[0]
    given = dict(zip([i.name for i in graph.input], map(_array, inputs), strict=True))
    wanted = dict(zip([o.name for o in graph.output], map(_array, outputs), strict=True))
    attributes = {a.name: _attribute(a) for a in node.attribute}
    taken, made = [given[i] if i else None for i in node.input], [wanted[o] if o else None for o in node.output]
    for index, spec in enumerate(OPS[node.op_type].inputs):  # what is an input now was an attribute in older opsets
        if spec.static and spec.name in attributes:
            taken += [None] * (index + 1 - len(taken))
            taken[index] = np.asarray(attributes.pop(spec.name))
    return Case(node.op_type, attributes, taken, made, test.rtol, test.atol)


@functools.cache
def _cases() -> dict[str, Case]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite overflows on purpose while it makes its data
        from onnx.backend.test.loader import load_model_tests

        tests: list[Any] = load_model_tests(kind="node")
    found = {}
    for test in tests:
        graph = test.model.graph
        if len(graph.node) != 1 or graph.node[0].domain or graph.node[0].op_type not in OPS:
            continue
        for number, (inputs, outputs) in enumerate(test.data_sets):
            if all(map(_is_ours, (*inputs, *outputs))):
                found[test.name + (f"_{number}" if number else "")] = _case(test, inputs, outputs)
    return found


CASES = _cases()
PATHS = {**op_arrays.PATHS, "program": run_translated}


def _check(case: Case, path: str) -> None:
    results = PATHS[path](case.op, case.inputs, case.attributes, len(case.outputs))
    for got, want in zip(results, case.outputs, strict=True):
        if want is None:
            continue
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if want.dtype.kind in "iub":
            np.testing.assert_array_equal(got, want)
        else:
            np.testing.assert_allclose(got.astype("f8"), want.astype("f8"), rtol=case.rtol, atol=case.atol)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", [name for name in sorted(CASES) if name not in LEDGER])
def test_node(name: str, path: str) -> None:
    _check(CASES[name], path)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", sorted(LEDGER))
def test_node_in_the_ledger_still_fails(name: str, path: str) -> None:
    with pytest.raises((UmdError, AssertionError)):
        _check(CASES[name], path)


def test_every_op_that_has_node_tests_passes_one() -> None:
    with_tests = {case.op for case in CASES.values()}
    passing = {case.op for name, case in CASES.items() if name not in LEDGER}
    assert with_tests - passing == {"Bernoulli"}
    assert len(with_tests) > 60
