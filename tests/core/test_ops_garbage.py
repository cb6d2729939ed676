"""Every op, given inputs and attributes at random, translates or refuses with a typed error; it does nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.core.op_arrays import LEVEL_0
from umd_core import dtypes
from umd_core.attributes import Attribute
from umd_core.errors import UmdError
from umd_core.ir import TensorDesc
from umd_core.ops import OPS
from umd_core.template import Input, OpTemplate
from umd_core.translate import Translator

NUMBERS = st.one_of(st.integers(-5, 8), st.sampled_from([2**31, -(2**31), 2**62, 2**63 - 1, -(2**63), 2**64]))
FEW = st.lists(NUMBERS, max_size=6)
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "int": NUMBERS, "bool": st.sampled_from([0, 1, 2, True, "false"]), "ints": FEW,
    "float": st.one_of(st.floats(), st.sampled_from(["1e3", "", "x"])),
    "number": st.one_of(st.floats(), NUMBERS, st.sampled_from(["1", "-inf", "x"])),
    "floats": st.lists(st.floats(), max_size=3),
    "string": st.sampled_from(["", "none", "SAME_UPPER"]), "strings": st.lists(st.text(max_size=3), max_size=2),
    "dtype": st.sampled_from(["f32", 1, 16, "torch.int8", "complex64", 99, None]),
    "tensor": st.sampled_from([np.zeros(1), np.ones((1, 1), np.int8), np.zeros(2), np.array("x"), 3]),
}  # fmt: skip


def extents() -> st.SearchStrategy[list[int]]:
    ordinary = st.lists(st.integers(0, 4), max_size=5)
    return st.one_of(ordinary, ordinary, ordinary, st.lists(st.sampled_from([0, 1, 3, 2**31, 2**40]), max_size=9))


@st.composite
def tensors(draw: st.DrawFn, spec: Input, template: OpTemplate, shape: list[int]) -> Any:
    """A description, or for a static input its value; mostly of an allowed dtype."""
    allowed = template.types.get(spec.type) or (dtypes.dtype(spec.type),)
    dtype = draw(st.sampled_from([allowed[0], allowed[-1], *[allowed[0]] * 5]))
    dtype = draw(st.sampled_from(dtypes.ALL)) if draw(st.integers(0, 9)) == 0 else dtype
    if spec.static:
        if dtype.is_integer:
            limits = np.iinfo(dtype.numpy)
            numbers = [max(limits.min, min(limits.max, n)) for n in draw(FEW)]
        else:
            numbers = draw(st.lists(st.sampled_from([0.0, 1.0, -2.0, 1e30, float("inf")]), max_size=3))
        with np.errstate(over="ignore"):
            array = np.array(numbers, np.float64 if dtype.is_float else dtype.numpy).astype(dtype.numpy)
        return array.reshape(()) if array.size == 1 and draw(st.booleans()) else array
    return TensorDesc(dtype, shape)


def attribute_value(attribute: Attribute) -> st.SearchStrategy[Any]:
    choices = [st.sampled_from(attribute.choices)] if attribute.choices else []
    return st.one_of(KINDS[attribute.kind], *choices, *choices)


@st.composite
def calls(draw: st.DrawFn, op: str) -> tuple[list[Any], dict[str, Any]]:
    """Inputs and attributes for an op, some of which fit."""
    template = OPS[op]
    shape = draw(extents())
    inputs: list[Any] = []
    for spec in template.inputs:
        for _ in range(draw(st.integers(0, 3)) if spec.variadic else 1):
            if draw(st.integers(0, 9)) == 0:
                inputs.append(None)
                continue
            own = shape if draw(st.integers(0, 2)) else draw(extents())
            try:
                inputs.append(draw(tensors(spec, template, own)))
            except UmdError:  # no such tensor
                inputs.append(None)
    attributes = {a.name: draw(attribute_value(a)) for a in template.attributes if a.required or draw(st.booleans())}
    if draw(st.integers(0, 19)) == 0:
        attributes["unheard_of"] = 1
    if draw(st.integers(0, 19)) == 0:
        inputs.append(TensorDesc("f32", ()))
    return inputs, attributes


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("op", sorted(OPS))
@settings(max_examples=15)
@given(data=st.data())
def test_garbage_is_refused_with_a_typed_error(op: str, data: st.DataObject) -> None:
    inputs, attributes = data.draw(calls(op))
    try:
        buffer = Translator(LEVEL_0).op(op, inputs, attributes)
        encoded = bytes(buffer)
    except UmdError as error:
        event(type(error).__name__)
        assert str(error)
        assert error.facts()
    else:
        event("translated")
        assert len(encoded) > 64
