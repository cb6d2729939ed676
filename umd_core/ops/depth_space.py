"""DepthToSpace and SpaceToDepth: channels laid out as blocks of a plane, and back."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.builders import no_flops
from umd_core.dtypes import ALL
from umd_core.recorder import Recorder
from umd_core.template import Call, Emit, Input, OpTemplate, Result, Shape, ShapeRule
from umd_core.views import View


def _checked(call: Call) -> tuple[Shape, int]:
    shape, block = call.desc(0).shape, call.attr("blocksize")
    if len(shape) != 4:
        raise call.error(f"has shape {list(shape)}; (N, C, H, W) would be right", input="input")
    if block < 1:
        raise call.bad_attribute("blocksize", f"{block} is no block", "1 or more")
    return shape, block


def _to_space(call: Call) -> tuple[Shape]:
    (n, c, h, w), b = _checked(call)
    if c % (b * b):
        raise call.error(f"has {c} channels, which do not divide by blocks of {b} by {b}", input="input")
    return ((n, c // (b * b), h * b, w * b),)


def _to_depth(call: Call) -> tuple[Shape]:
    (n, c, h, w), b = _checked(call)
    if h % b or w % b:
        raise call.error(f"has planes of {h} by {w}, which do not divide into blocks of {b}", input="input")
    return ((n, c * b * b, h // b, w // b),)


def _emit_space(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    (n, c, h, w), b = _checked(call)
    depth = c // (b * b)
    if call.attr("mode") == "DCR":
        x = recorder.reshape(views[0], (n, b, b, depth, h, w)).permute((0, 3, 4, 1, 5, 2))
    else:
        x = recorder.reshape(views[0], (n, depth, b, b, h, w)).permute((0, 1, 4, 2, 5, 3))
    return recorder.reshape(x, (n, depth, h * b, w * b))


def _emit_depth(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    (n, c, h, w), b = _checked(call)
    x = recorder.reshape(views[0], (n, c, h // b, b, w // b, b))
    order = (0, 3, 5, 1, 2, 4) if call.attr("mode") == "DCR" else (0, 1, 3, 5, 2, 4)
    return recorder.reshape(x.permute(order), (n, c * b * b, h // b, w // b))


def _template(name: str, shape: ShapeRule, emit: Emit, doc: str) -> OpTemplate:
    return OpTemplate(
        name,
        (Input("input"),),
        (Result("output"),),
        shape,
        emit,
        {"T": ALL},
        (Attribute("blocksize", "int", required=True), Attribute("mode", "string", "DCR", choices=("DCR", "CRD"))),
        flops=no_flops,
        doc=doc + " In mode DCR the channel is the faster index of the depth, in CRD the place in the block.",
    )


TEMPLATES = (
    _template("DepthToSpace", _to_space, _emit_space, "Each blocksize² channels become a block of the plane."),
    _template("SpaceToDepth", _to_depth, _emit_depth, "Each block of the plane becomes blocksize² channels."),
)
