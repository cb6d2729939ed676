"""Builders of whole families of op templates: unary, binary, compare."""

from __future__ import annotations

from umd_core import dtypes
from umd_core.dtypes import DType
from umd_core.recorder import Recorder, View
from umd_core.template import Attribute, Call, Emit, Input, OpTemplate, Result, broadcast_shape, same_shape


def expression(kernel: str) -> Emit:
    """Returns an emit function: one expression kernel over all inputs, broadcast."""

    def emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
        return recorder.expression(kernel, views, recorder.out(call))

    return emit


def unary(
    name: str, kernel: str, types: tuple[DType, ...], doc: str, *, out: str = "T", attributes: tuple[Attribute, ...] = ()
) -> OpTemplate:
    """Returns an op of one tensor that one expression kernel computes elementwise."""
    return OpTemplate(
        name, (Input("X"),), (Result("Y", out),), same_shape, expression(kernel), {"T": types}, attributes, doc=doc
    )


def binary(name: str, kernel: str, types: tuple[DType, ...], doc: str, *, out: str = "T") -> OpTemplate:
    """Returns an op of two tensors that broadcast."""
    return OpTemplate(
        name,
        (Input("A"), Input("B")),
        (Result("C", out),),
        broadcast_shape,
        expression(kernel),
        {"T": types},
        doc=doc,
    )


def compare(name: str, kernel: str, doc: str, types: tuple[DType, ...] = dtypes.NUMERIC) -> OpTemplate:
    """Returns an op of two tensors whose result is bool."""
    return binary(name, kernel, types, doc, out="bool")
