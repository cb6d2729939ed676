"""CumSum, CumProd: running sums and products along an axis."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.builders import input_flops
from umd_core.dtypes import INDEX, NUMERIC
from umd_core.recorder import Recorder
from umd_core.template import Call, Emit, Input, OpTemplate, Result, Shape, normal_axis
from umd_core.views import View


def _axis(call: Call) -> int:
    shape, axis = call.desc(0).shape, call.ints(1) or ()
    if not shape:
        raise call.error("is 0-d; one axis or more would be right", input="x")
    if len(axis) != 1:
        raise call.error(f"has shape {list(call.desc(1).shape)}; a 0-d tensor would be right", input="axis")
    return normal_axis(call, axis[0], len(shape))


def _shape(call: Call) -> tuple[Shape]:
    _axis(call)
    return (call.desc(0).shape,)


def _scan(kernel: str) -> Emit:
    def emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
        x, out, axis = views[0], recorder.out(call), _axis(call)
        order = [*(a for a in range(x.rank) if a != axis), axis]
        recorder.launch(
            kernel,
            {"outer": tuple(x.shape[a] for a in order[:-1]), "length": x.shape[axis]},
            {"x": x.permute(order), "out": out.permute(order)},
            {name: int(call.attr(name)) for name in ("exclusive", "reverse")},
        )
        return out

    return emit


def _template(name: str, kernel: str, what: str) -> OpTemplate:
    return OpTemplate(
        name,
        (Input("x"), Input("axis", "Taxis", static=True)),
        (Result("y"),),
        _shape,
        _scan(kernel),
        {"T": NUMERIC, "Taxis": INDEX},
        (Attribute("exclusive", "bool", False), Attribute("reverse", "bool", False)),
        flops=input_flops,
        doc=f"Running {what} along axis; without the element itself if exclusive, from the end on if reverse. "
        "Integers wrap.",
    )


TEMPLATES = (_template("CumSum", "scan_sum_kernel", "sum"), _template("CumProd", "scan_prod_kernel", "product"))
