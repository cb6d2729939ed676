"""umd.EmbeddingGrad: gradient of the table that Gather along axis 0 read."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.builders import check_indexable
from umd_core.dtypes import FLOATS, INDEX
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape
from umd_core.views import View


def _shape(call: Call) -> tuple[Shape]:
    gradient, index = call.desc(0).shape, call.desc(1).shape
    weights = call.attr("num_weights")
    if weights < 0:
        raise call.bad_attribute("num_weights", f"{weights} is negative", "0 or more")
    if call.attr("padding_idx") >= weights:
        raise call.bad_attribute("padding_idx", f"is outside the {weights} rows", "a row, or -1 for none")
    if gradient[: len(index)] != index:
        raise call.error(f"has shape {list(gradient)}, which does not begin like indices, {list(index)}", input="dY")
    check_indexable(call, weights)
    return ((weights, *gradient[len(index) :]),)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    """Adds each row of the gradient to the row of the table that it came from; the padding row stays 0."""
    gradient, index = views
    out = recorder.fill(recorder.out(call), 0)
    rows, inner = out.shape[0], gradient.rank - index.rank
    places = View(index.buffer, index.dtype, gradient.shape, index.strides + (0,) * inner, index.offset)
    strides = (0,) * index.rank + out.strides[1:] + out.strides[:1]
    target = View(out.buffer, out.dtype, (*gradient.shape, rows), strides, out.offset)
    recorder.scatter(gradient, places, target, rows, combine="add")
    if call.attr("padding_idx") >= 0:
        recorder.fill(out.slice(0, call.attr("padding_idx"), 1), 0)
    return out


TEMPLATES = (
    OpTemplate(
        "umd.EmbeddingGrad",
        (Input("dY"), Input("indices", "Tind")),
        (Result("dW"),),
        _shape,
        _emit,
        {"T": FLOATS, "Tind": INDEX},
        (Attribute("num_weights", "int", required=True), Attribute("padding_idx", "int", -1)),
        flops=lambda call: call.desc(0).element_count,
        doc="dW[k] = sum of the dY[i] with indices[i] = k, for num_weights rows; row padding_idx stays 0.",
    ),
)
