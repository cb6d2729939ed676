"""Cast and CastLike: the same numbers as another dtype."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.dtypes import ALL
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, same_shape
from umd_core.views import View


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    view = views[0]
    return view if view.dtype is call.outputs[0].dtype else recorder.copy(view, recorder.out(call))


_OF_8_BITS = (Attribute("saturate", "bool", True), Attribute("round_mode", "string", "up"))
TEMPLATES = (
    OpTemplate(
        "Cast",
        (Input("input"),),
        (Result("output", "@to"),),
        same_shape,
        _emit,
        {"T": ALL},
        (Attribute("to", "dtype", required=True), *_OF_8_BITS),
        doc="input as dtype to. Floats become integers toward zero, saturating, NaN as 0; integers wrap; to bool is "
        "!= 0. saturate and round_mode concern 8-bit floats only, which are not supported.",
    ),
    OpTemplate(
        "CastLike",
        (Input("input", "T1"), Input("target_type", "T2")),
        (Result("output", "T2"),),
        same_shape,
        _emit,
        {"T1": ALL, "T2": ALL},
        _OF_8_BITS,
        doc="input as target_type's dtype, as Cast makes it; target_type's numbers are not read.",
    ),
)
