"""ConvTranspose: what Conv's gradient does for its input, as an op of its own, over 1 to 3 spatial axes."""

from __future__ import annotations

import math
from typing import NamedTuple

from umd_core.attributes import Attribute
from umd_core.dtypes import FLOATS
from umd_core.errors import UnsupportedError
from umd_core.recorder import Recorder
from umd_core.shaping import split_axis, trailing
from umd_core.template import Call, Input, OpTemplate, Result, Shape
from umd_core.views import View
from umd_core.windows import AUTO_PAD, WINDOW, per_axis


class _Layout(NamedTuple):
    """Where the windows lie over the output: input element o adds to output o · stride - pad + k · dilation."""

    group: int
    kernel: Shape
    output: Shape
    strides: Shape
    dilations: Shape
    pads: Shape


def _check_channels(call: Call, x: Shape, w: Shape) -> int:
    group = call.attr("group")
    if len(x) != len(w) or len(x) < 3:
        raise call.error(f"a tensor of shape {list(x)} and weights {list(w)}; equal ranks of 3 to 5 would be right")
    if len(x) > 5:
        raise UnsupportedError(f"windows over {len(x) - 2} axes; 1 to 3 would be right", op=call.op)
    if x[1] != w[0] or group < 1 or x[1] % group:
        raise call.error(f"{x[1]} channels, but weights of {w[0]} in {group} groups")
    if call.has(2) and call.desc(2).shape != (w[1] * group,):
        detail = f"has shape {list(call.desc(2).shape)}; [{w[1] * group}], one number an output channel, would be right"
        raise call.error(detail, input="B")
    given = call.attr("kernel_shape")
    if given is not None and given != w[2:]:
        raise call.bad_attribute("kernel_shape", f"is {list(given)}, the weights' is {list(w[2:])}", "the weights' own")
    return int(group)


def _layout(call: Call) -> _Layout:
    x, w = call.desc(0).shape, call.desc(1).shape
    group, rank, kernel = _check_channels(call, x, w), len(x) - 2, w[2:]
    if min(kernel) < 1:
        raise call.error(f"has shape {list(w)}; a window of one element or more would be right", input="W")
    strides = per_axis(call, "strides", rank, least=1, default=1)
    dilations = per_axis(call, "dilations", rank, least=1, default=1)
    pads = per_axis(call, "pads", 2 * rank, least=0, default=0)
    more = per_axis(call, "output_padding", rank, least=0, default=0)
    rows = zip(x[2:], strides, kernel, dilations, more, strict=True)
    full = [stride * (n - 1) + (k - 1) * d + 1 + m for n, stride, k, d, m in rows]
    output, begin = _placed(call, full, pads, [n * stride for n, stride in zip(x[2:], strides, strict=True)])
    if min(output) < 0:
        raise call.bad_attribute("pads", f"{list(pads)} take more than the {full} that there are", "smaller pads")
    return _Layout(group, kernel, output, strides, dilations, begin)


def _placed(call: Call, full: list[int], pads: Shape, same: list[int]) -> tuple[Shape, Shape]:
    """Returns the output's extents and how much of `full` lies in front of it."""
    auto, rank = call.attr("auto_pad"), len(full)
    if call.attr("output_shape") is None and not auto.startswith("SAME"):
        ends = zip(full, pads[:rank], pads[rank:], strict=True)
        return tuple(n - before - after for n, before, after in ends), pads[:rank]
    output = tuple(same)
    if call.attr("output_shape") is not None:
        output = per_axis(call, "output_shape", rank, least=0, default=0)
    total = [max(n - o, 0) for n, o in zip(full, output, strict=True)]
    return output, tuple(t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in total)


def _shape(call: Call) -> tuple[Shape]:
    layout = _layout(call)
    return ((call.desc(0).shape[0], call.desc(1).shape[1] * layout.group, *layout.output),)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    x, w = views[:2]
    layout, y = _layout(call), recorder.out(call)
    extents: dict[str, int | Shape] = {
        "batch": x.shape[0], "groups": layout.group, "out_channels": x.shape[1] // layout.group,
        "in_channels": w.shape[1], "output": x.shape[2:], "kernel": layout.kernel, "input": layout.output,
    }  # fmt: skip
    operands = {
        "dy": split_axis(x, 1, layout.group),
        "w": split_axis(w, 0, layout.group),
        "dx": split_axis(y, 1, layout.group),
    }
    fields = {"window_strides": layout.strides, "dilations": layout.dilations, "pads": layout.pads}
    recorder.launch("conv_input_grad_kernel", extents, operands, fields)
    if call.has(2):
        recorder.expression("add", (y, trailing(views[2], y.rank - 2)), y)
    return y


def _flops(call: Call) -> int:
    return 2 * call.desc(0).element_count * math.prod(call.desc(1).shape[1:])


TEMPLATES = (
    OpTemplate(
        "ConvTranspose",
        (Input("X"), Input("W"), Input("B", optional=True)),
        (Result("Y"),),
        _shape,
        _emit,
        {"T": FLOATS},
        (
            AUTO_PAD,
            Attribute("group", "int", 1),
            Attribute("kernel_shape", "ints"),
            Attribute("output_padding", "ints"),
            Attribute("output_shape", "ints"),
            *WINDOW,
        ),
        flops=_flops,
        doc="Transposed convolution of X (N, C, …) by W (C, M / group, …): each element of X adds W to a window of Y, "
        "from which pads are cut; plus B per output channel.",
    ),
)
