"""Resize: a tensor scaled along some axes by nearest, linear or cubic interpolation, one axis after the other.

Every position is known at translation: nearest neighbours become slices, repeats or gathers by a constant index, the
others a weighted sum of gathers, or a product with a constant matrix where many elements count.
"""

from __future__ import annotations

import math

import numpy as np

from umd_core import dtypes, resampling
from umd_core.attributes import Attribute
from umd_core.dtypes import ALL, BOOL, FLOATS
from umd_core.ir import Array, contiguous_strides
from umd_core.recorder import Recorder
from umd_core.resampling import AxisScale
from umd_core.shaping import accumulator, take, trailing, widen
from umd_core.template import Call, Input, OpTemplate, Result, Shape, normal_axes
from umd_core.views import View

_MOST_TAPS = 4
"""With more elements per output element than this, a matrix product costs less than passes over the tensor."""


def _given(call: Call, index: int, axes: int) -> list[float] | None:
    """Returns the numbers of scales or sizes, None when left out or empty."""
    value = call.static(index)
    if value is None or not value.size:
        return None
    numbers = value.reshape(-1).tolist()
    if len(numbers) != axes:
        detail = f"has {len(numbers)} entries; one for each of {axes} axes would be right"
        raise call.error(detail, input=call.template.inputs[index].name)
    return numbers


def _axes(call: Call) -> dict[int, AxisScale]:
    """Returns each axis that changes."""
    shape, given = call.desc(0).shape, call.attr("axes")
    axes = tuple(range(len(shape))) if given is None else normal_axes(call, given, len(shape))
    scales, sizes = _given(call, 2, len(axes)), _given(call, 3, len(axes))
    if (scales is None) == (sizes is None):
        raise call.error("either scales or sizes would be right, and not both")
    extents = [shape[axis] for axis in axes]
    if scales is not None:
        if not all(scale > 0 and math.isfinite(scale) for scale in scales):
            raise call.error(f"{scales} are not scales; positive numbers would be right", input="scales")
        outputs = [int(scale * extent) for scale, extent in zip(scales, extents, strict=True)]
    else:
        scales, outputs = _from_sizes(call, extents, [int(size) for size in sizes or ()])
    roi = _roi(call, len(axes))
    found = {a: AxisScale(*each) for a, *each in zip(axes, extents, outputs, scales, *roi, strict=True)}
    if any(not a.extent and a.output for a in found.values()):
        raise call.error(f"has shape {list(shape)}; nothing can be made of an empty axis", input="X")
    return {a: s for a, s in found.items() if s.scale != 1 or s.output != s.extent or (s.start, s.end) != (0, 1)}


def _from_sizes(call: Call, extents: list[int], sizes: list[int]) -> tuple[list[float], list[int]]:
    """Returns the scales and extents that sizes mean under the aspect ratio policy."""
    if min(sizes, default=0) < 0:
        raise call.error(f"{sizes} has a negative extent", input="sizes")
    scales = [size / extent if extent else 1.0 for size, extent in zip(sizes, extents, strict=True)]
    policy = call.attr("keep_aspect_ratio_policy")
    if policy == "stretch" or not scales:
        return scales, sizes
    scale = min(scales) if policy == "not_larger" else max(scales)
    return [scale] * len(scales), [int(scale * extent + 0.5) for extent in extents]


def _roi(call: Call, axes: int) -> tuple[list[float], list[float]]:
    """Returns where the part that is wanted starts and ends, per axis, in 0 to 1."""
    if call.attr("coordinate_transformation_mode") != "tf_crop_and_resize":
        return [0.0] * axes, [1.0] * axes
    roi = call.static(1)
    if roi is None or roi.size != 2 * axes:
        raise call.error(f"tf_crop_and_resize wants {2 * axes} numbers, a start and an end for each axis", input="roi")
    numbers = [float(v) for v in roi.reshape(-1)]
    return numbers[:axes], numbers[axes:]


def _shape(call: Call) -> tuple[Shape]:
    if call.attr("mode") == "nearest" and call.attr("antialias"):
        raise call.bad_attribute("antialias", "1 goes with linear and cubic only", "0")
    if call.types["T1"] in BOOL and call.attr("mode") != "nearest":
        raise call.bad_attribute("mode", f"{call.attr('mode')} of bool is not defined", "nearest")
    axes = _axes(call)
    return (tuple(axes[a].output if a in axes else extent for a, extent in enumerate(call.desc(0).shape)),)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    axes, x, way = _axes(call), views[0], call.attr("coordinate_transformation_mode")
    if 0 in call.outputs[0].shape or not axes:
        return x if not axes else recorder.out(call)
    cropped = way == "tf_crop_and_resize"
    if call.attr("mode") == "nearest":
        for axis, scale in axes.items():
            x = _pick(recorder, x, axis, resampling.nearest(scale, way, call.attr("nearest_mode")))
        return _extrapolated(recorder, call, x, axes) if cropped else x
    wide = accumulator(x.dtype) if x.dtype in FLOATS else dtypes.float64
    y = widen(recorder, x, wide)
    for axis, scale in axes.items():
        y = _weighed(recorder, call, y, axis, scale)
    if x.dtype not in FLOATS:
        y = recorder.expression("round", (y,), recorder.like(y))
    y = _extrapolated(recorder, call, y, axes) if cropped else y
    return y if y.dtype is x.dtype else recorder.copy(y, recorder.out(call))


def _pick(recorder: Recorder, x: View, axis: int, index: Array) -> View:
    """Returns x[.., index[i], ..]: a slice where steps are equal, a repeat where elements come equally often."""
    count, extent = len(index), x.shape[axis]
    steps = np.diff(index)
    if not steps.size or (steps == steps[0]).all():
        return x.slice(axis, int(index[0]), count, int(steps[0]) if steps.size else 1)
    out = recorder.new(x.dtype, (*x.shape[:axis], count, *x.shape[axis + 1 :]))
    if count % extent == 0 and (index == np.arange(count) // (count // extent)).all():
        spread = (*x.shape[: axis + 1], count // extent, *x.shape[axis + 1 :])
        repeated = View(out.buffer, out.dtype, spread, contiguous_strides(spread))
        recorder.copy(x.unsqueeze(axis + 1), repeated)
        return out
    return take(recorder, x, axis, recorder.constant(index), out)


def _weighed(recorder: Recorder, call: Call, x: View, axis: int, scale: AxisScale) -> View:
    """Returns the sum of x's elements along an axis by their weights."""
    index, weights = resampling.taps(
        scale,
        call.attr("coordinate_transformation_mode"),
        call.attr("mode"),
        cubic_a=call.attr("cubic_coeff_a"),
        antialias=call.attr("antialias"),
        exclude_outside=call.attr("exclude_outside"),
    )
    out = recorder.new(x.dtype, (*x.shape[:axis], scale.output, *x.shape[axis + 1 :]))
    if index.shape[1] > _MOST_TAPS:
        return _product(recorder, x, axis, index, weights, out)
    for tap in range(index.shape[1]):
        each = trailing(recorder.constant(weights[:, tap].astype(x.dtype.numpy)), x.rank - axis - 1)
        part = take(recorder, x, axis, recorder.constant(index[:, tap]), recorder.like(out) if tap else out)
        operands = (part, each, out) if tap else (part, each)
        recorder.expression("multiply_add" if tap else "mul", operands, out)
    return out


def _product(recorder: Recorder, x: View, axis: int, index: Array, weights: Array, out: View) -> View:
    matrix = np.zeros((x.shape[axis], len(index)))
    np.add.at(matrix, (index, np.arange(len(index))[:, None]), weights)
    if x.rank == 1:
        recorder.gemm(x.unsqueeze(0), recorder.constant(matrix.astype(x.dtype.numpy)), out.unsqueeze(0))
        return out
    order = [*(a for a in range(x.rank) if a != axis), axis]
    recorder.gemm(x.permute(order), recorder.constant(matrix.astype(x.dtype.numpy)), out.permute(order))
    return out


def _extrapolated(recorder: Recorder, call: Call, y: View, axes: dict[int, AxisScale]) -> View:
    """Returns y with extrapolation_value wherever the position is outside the input along some axis."""
    value = recorder.scalar(call.attr("extrapolation_value"), y.dtype)
    for axis, scale in axes.items():
        mask = resampling.outside(scale)
        if mask.any():
            where = trailing(recorder.constant(mask), y.rank - axis - 1)
            y = recorder.expression("select", (where, value, y), recorder.like(y))
    return y


TEMPLATES = (
    OpTemplate(
        "Resize",
        (
            Input("X", "T1"),
            Input("roi", "T2", optional=True, static=True),
            Input("scales", "float32", optional=True, static=True),
            Input("sizes", "int64", optional=True, static=True),
        ),
        (Result("Y", "T1"),),
        _shape,
        _emit,
        {"T1": ALL, "T2": (dtypes.float16, dtypes.float32, dtypes.float64)},
        (
            Attribute("antialias", "bool", False),
            Attribute("axes", "ints"),
            Attribute("coordinate_transformation_mode", "string", "half_pixel", choices=resampling.TRANSFORMATIONS),
            Attribute("cubic_coeff_a", "float", -0.75),
            Attribute("exclude_outside", "bool", False),
            Attribute("extrapolation_value", "float", 0.0),
            Attribute(
                "keep_aspect_ratio_policy", "string", "stretch", choices=("stretch", "not_larger", "not_smaller")
            ),
            Attribute("mode", "string", "nearest", choices=("nearest", "linear", "cubic")),
            Attribute("nearest_mode", "string", "round_prefer_floor", choices=tuple(resampling.NEAREST)),
        ),
        flops=lambda call: 0 if call.attr("mode") == "nearest" else 8 * call.outputs[0].element_count,
        doc="X scaled along axes by scales, or to sizes. Integers are rounded, halves to even, and saturate.",
    ),
)
