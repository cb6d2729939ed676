"""BitShift and BitCast: integers shifted, elements read as another type of the same size."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.builders import no_flops
from umd_core.dtypes import ALL, BOOL, INTEGERS
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape, broadcast_shape
from umd_core.views import View

_KERNELS = {"LEFT": "shl", "RIGHT": "shr"}


def _emit_shift(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    return recorder.expression(_KERNELS[call.attr("direction")], views, recorder.out(call))


def _cast_shape(call: Call) -> tuple[Shape]:
    source, target = call.types["T1"], call.attr("to")
    if source.size != target.size:
        detail = f"{target} has {8 * target.size} bits, the input's {source} {8 * source.size}"
        raise call.bad_attribute("to", detail, "a type of the same size")
    return (call.desc(0).shape,)


def _emit_cast(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    if {views[0].dtype, call.attr("to")} & set(BOOL):  # whose true may be any byte but 0
        return recorder.copy(views[0], recorder.out(call))
    x = views[0]
    return View(x.buffer, call.attr("to"), x.shape, x.strides, x.offset)


TEMPLATES = (
    OpTemplate(
        "BitShift",
        (Input("X"), Input("Y")),
        (Result("Z"),),
        broadcast_shape,
        _emit_shift,
        {"T": INTEGERS},
        (Attribute("direction", "string", required=True, choices=tuple(_KERNELS)),),
        doc="X shifted by Y bits to the left or right; the sign of a signed integer is kept. By its width or more: 0, "
        "or -1 where the sign is kept.",
    ),
    OpTemplate(
        "BitCast",
        (Input("input", "T1"),),
        (Result("output", "@to"),),
        _cast_shape,
        _emit_cast,
        {"T1": ALL},
        (Attribute("to", "dtype", required=True),),
        flops=no_flops,
        doc="The bits of input read as another type of the same size; no data moves.",
    ),
)
