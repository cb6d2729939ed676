"""Where: a choice between two tensors, element by element."""

from __future__ import annotations

from umd_core.builders import expression
from umd_core.dtypes import ALL
from umd_core.template import Input, OpTemplate, Result, broadcast_shape

TEMPLATES = (
    OpTemplate(
        "Where",
        (Input("condition", "bool"), Input("X"), Input("Y")),
        (Result("output"),),
        broadcast_shape,
        expression("select"),
        {"T": ALL},
        doc="output = X where condition, else Y; all three broadcast.",
    ),
)
