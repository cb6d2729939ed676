"""RoiAlign: each region of a plane as a small plane, the mean or maximum of points in its cells."""

from __future__ import annotations

import itertools

import numpy as np

from umd_core.attributes import Attribute
from umd_core.builders import check_indexable
from umd_core.dtypes import FLOATS, int64
from umd_core.errors import UnsupportedError
from umd_core.recorder import Recorder
from umd_core.sampling import Tap, linear_weights, number, position, read, within
from umd_core.shaping import widen
from umd_core.template import Call, Input, OpTemplate, Result, Shape
from umd_core.views import View


def _shape(call: Call) -> tuple[Shape]:
    x, rois, batches = (call.desc(i).shape for i in range(3))
    if len(x) != 4 or 0 in x[2:]:
        raise call.error(f"has shape {list(x)}; (N, C, H, W), and something in it, would be right", input="X")
    if len(rois) != 2 or rois[1] != 4:
        raise call.error(f"has shape {list(rois)}; (regions, 4) would be right", input="rois")
    if batches != rois[:1]:
        raise call.error(f"has shape {list(batches)}; {list(rois[:1])} would be right", input="batch_indices")
    check_indexable(call, x[0], 2)
    for name in ("output_height", "output_width"):
        if call.attr(name) < 1:
            raise call.bad_attribute(name, f"{call.attr(name)} cells", "1 or more")
    if call.attr("sampling_ratio") < 1:
        raise UnsupportedError(
            "sampling_ratio 0, as many points as the region is large; 1 or more would be right", op=call.op
        )
    return ((rois[0], x[1], call.attr("output_height"), call.attr("output_width")),)


def _places(recorder: Recorder, call: Call, rois: View, axis: int, cells: int) -> View:
    """Returns (regions, cells · points) places along an axis, in elements of X."""
    half, ratio = call.attr("coordinate_transformation_mode") == "half_pixel", call.attr("sampling_ratio")
    scale, shift = call.attr("spatial_scale"), -0.5 if half else 0.0
    start, end = (
        number(recorder, "multiply_add", rois.slice(1, 1 - axis + 2 * side, 1), scale, shift) for side in (0, 1)
    )
    size = number(recorder, "sub", end, start)
    if not half:
        size = number(recorder, "max", size, 1.0)
    points = (np.arange(cells * ratio) + 0.5) / (cells * ratio)
    out = recorder.new(rois.dtype, (rois.shape[0], cells * ratio))
    return recorder.expression("multiply_add", (size, recorder.constant(points.astype(rois.dtype.numpy)), start), out)


def _taps(recorder: Recorder, at: View, extent: int) -> list[Tap]:
    """Returns the elements around each place; up to one element outside is the border, beyond it nothing."""
    inside = within(recorder, at, -1, extent)
    at = number(recorder, "clip", at, 0, extent - 1)
    base = number(recorder, "floor", at)
    weights = linear_weights(recorder, number(recorder, "sub", at, base))
    steps = [base, number(recorder, "add", base, 1.0)]
    return [Tap(position(recorder, s, extent), w, inside) for s, w in zip(steps, weights, strict=True)]


def _crossed(recorder: Recorder, tap: Tap, axis: int, shape: Shape) -> Tap:
    """Returns a tap of rows or columns for every point of the grid that both make, (regions, rows · columns)."""
    views = []
    for view in tap:
        wide = view.unsqueeze(2 - axis).expand(shape) if view else view
        views.append(recorder.reshape(wide, (shape[0], shape[1] * shape[2])) if wide else wide)
    where, weight, inside = views
    return Tap(where or tap.where, weight, inside)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    x, rois, out = widen(recorder, views[0]), widen(recorder, views[1]), recorder.out(call)
    if 0 in out.shape:
        return out
    (images, channels, height, width), ratio = x.shape, call.attr("sampling_ratio")
    shape = (out.shape[0], out.shape[2] * ratio, out.shape[3] * ratio)
    taps = [
        [
            _crossed(recorder, tap, axis, shape)
            for tap in _taps(recorder, _places(recorder, call, rois, axis, n), extent)
        ]
        for axis, (n, extent) in enumerate(zip(out.shape[2:], (height, width), strict=True))
    ]
    plane = recorder.contiguous(x)
    # Every image at once: the index of a point counts from the first plane of its channel in the first image.
    reach = (images - 1) * channels * height * width + height * width
    rows = View(plane.buffer, x.dtype, (shape[0], channels, reach), (0, height * width, 1), plane.offset)
    first = number(recorder, "mul", recorder.copy(views[2], recorder.new(int64, views[2].shape)), channels * height)
    total: View | None = None
    for row, column in itertools.product(*taps):
        where = recorder.expression("add", (row.where, first.unsqueeze(1)), recorder.like(row.where))
        part = read(recorder, rows, (row._replace(where=where), column), (height, width))
        name = "add" if call.attr("mode") == "avg" else "max"
        total = part if total is None else recorder.expression(name, (total, part), total)
    if total is None:
        return out
    cells = recorder.reshape(total, (*out.shape[:2], out.shape[2], ratio, out.shape[3], ratio))
    pooled = recorder.new(x.dtype, out.shape)
    recorder.reduce("mean" if call.attr("mode") == "avg" else "max", cells, (3, 5), pooled)
    return recorder.copy(pooled, out)


TEMPLATES = (
    OpTemplate(
        "RoiAlign",
        (Input("X", "T1"), Input("rois", "T1"), Input("batch_indices", "int64")),
        (Result("Y", "T1"),),
        _shape,
        _emit,
        {"T1": FLOATS},
        (
            Attribute(
                "coordinate_transformation_mode", "string", "half_pixel", choices=("half_pixel", "output_half_pixel")
            ),
            Attribute("mode", "string", "avg", choices=("avg", "max")),
            Attribute("output_height", "int", 1),
            Attribute("output_width", "int", 1),
            Attribute("sampling_ratio", "int", 0),
            Attribute("spatial_scale", "float", 1.0),
        ),
        flops=lambda call: 8 * call.outputs[0].element_count * max(call.attr("sampling_ratio"), 1) ** 2,
        doc="Each region (x, y to x, y) of an image of X in output_height by output_width cells: the mean, or the "
        "largest weighted element, of sampling_ratio² points of each cell, read by linear interpolation. The number of "
        "points has to be given.",
        source="He et al., Mask R-CNN, arXiv:1703.06870",
    ),
)
