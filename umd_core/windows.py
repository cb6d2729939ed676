"""Sliding windows: what convolutions and pools share of attributes, padding and output extents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from umd_core.attributes import Attribute
from umd_core.errors import UnsupportedError
from umd_core.template import Call, Shape

AUTO_PAD = Attribute("auto_pad", "string", "NOTSET", choices=("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"))
CEIL_MODE = Attribute("ceil_mode", "bool", False)
WINDOW = (Attribute("dilations", "ints"), Attribute("pads", "ints"), Attribute("strides", "ints"))
KERNEL_SHAPE = Attribute("kernel_shape", "ints", required=True)


@dataclass(frozen=True, slots=True)
class Windows:
    """Where windows lie: element k of window o is at input position i = o · stride - pad + k · dilation, per axis."""

    input: Shape
    kernel: Shape
    output: Shape
    strides: Shape
    dilations: Shape
    pads: Shape
    pads_end: Shape

    @property
    def extents(self) -> dict[str, int | Shape]:
        """The spatial extents of a windowed kernel."""
        return {"input": self.input, "kernel": self.kernel, "output": self.output}

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that every windowed kernel has."""
        return {"window_strides": self.strides, "dilations": self.dilations, "pads": self.pads}

    @property
    def kernel_size(self) -> int:
        """Elements of one window."""
        return math.prod(self.kernel)


def windows(call: Call, spatial: Sequence[int], kernel: Sequence[int]) -> Windows:
    """Returns the windows over `spatial` extents that a call's attributes describe, as ONNX defines them.

    Raises:
        UnsupportedError: not 1 to 3 spatial axes.
        AttributeValueError: lists of another length, or numbers out of range.
        ShapeError: the padded input is smaller than a window.
    """
    rank = len(spatial)
    if rank not in (1, 2, 3):
        raise UnsupportedError(f"windows over {rank} axes; 1 to 3 would be right", op=call.op)
    if len(kernel) != rank or min(kernel) < 1:
        raise call.bad_attribute("kernel_shape", f"{list(kernel)} is not a window", f"{rank} positive numbers")
    strides = per_axis(call, "strides", rank, least=1, default=1)
    dilations = per_axis(call, "dilations", rank, least=1, default=1)
    pads = per_axis(call, "pads", 2 * rank, least=0, default=0)
    auto = call.attributes.get("auto_pad", "NOTSET")
    if auto != "NOTSET" and any(pads):
        raise call.bad_attribute("pads", f"{list(pads)} beside auto_pad {auto}", "either of them")
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if auto.startswith("SAME"):
        output = tuple(-(-n // s) for n, s in zip(spatial, strides, strict=True))
        begin, end = _same_pads(spatial, output, strides, spans, upper=auto == "SAME_UPPER")
    else:
        begin, end = pads[:rank], pads[rank:]
        output = _output(call, spatial, begin, end, strides, spans)
    return Windows(tuple(spatial), tuple(kernel), output, strides, dilations, begin, end)


def per_axis(call: Call, name: str, count: int, *, least: int, default: int) -> Shape:
    """Returns an attribute of `count` numbers, `default` everywhere when it was left out.

    Raises:
        AttributeValueError: another count, or a number below `least`.
    """
    value = call.attributes.get(name)
    if value is None:
        return (default,) * count
    if len(value) != count or min(value) < least:
        raise call.bad_attribute(name, f"{list(value)} does not fit", f"{count} numbers of at least {least}")
    return tuple(value)


def _same_pads(
    spatial: Sequence[int], output: Shape, strides: Shape, spans: Sequence[int], *, upper: bool
) -> tuple[Shape, Shape]:
    """Returns the pads in front and behind that make output = ceil(input / stride)."""
    total = [max((o - 1) * s + e - n, 0) for n, o, s, e in zip(spatial, output, strides, spans, strict=True)]
    less, more = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
    return (less, more) if upper else (more, less)


def _output(
    call: Call, spatial: Sequence[int], begin: Shape, end: Shape, strides: Shape, spans: Sequence[int]
) -> Shape:
    ceil = bool(call.attributes.get("ceil_mode", False))
    extents = []
    for n, b, e, s, span in zip(spatial, begin, end, strides, spans, strict=True):
        room = n + b + e - span
        if room < 0:
            raise call.error(f"a window of extent {span} does not fit into {n} padded by {b} and {e}")
        extent = (-(-room // s) if ceil else room // s) + 1
        if ceil and (extent - 1) * s >= n + b:
            extent -= 1  # a window that starts in the padding behind the input does not count
        extents.append(extent)
    return tuple(extents)


def _conv_channels(call: Call, x: Shape, w: Shape) -> int:
    """Returns the group count after checking channels against it; x is (N, C, …), w is (M, C / group, …)."""
    group = call.attr("group")
    if len(x) != len(w) or len(x) < 3:
        raise call.error(f"a tensor of shape {list(x)} and weights {list(w)}; equal ranks of 3 to 5 would be right")
    if group < 1 or x[1] != w[1] * group:
        raise call.error(f"{x[1]} channels, but weights of {w[1]} channels a group and group {group}")
    if w[0] % group:
        raise call.error(f"{w[0]} output channels do not divide into {group} groups")
    return int(group)


def conv_windows(call: Call, x: Shape, w: Shape) -> Windows:
    """Returns the windows of a convolution of x by w.

    Raises:
        ShapeError, AttributeValueError, UnsupportedError: what does not fit.
    """
    _conv_channels(call, x, w)
    given = call.attributes.get("kernel_shape")
    if given is not None and given != w[2:]:
        raise call.bad_attribute("kernel_shape", f"is {list(given)}, the weights' is {list(w[2:])}", "the weights' own")
    return windows(call, x[2:], w[2:])


def pool_windows(call: Call) -> tuple[Shape, Windows]:
    """Returns the axes of the first input that a pool leaves alone, and the windows over the others.

    ONNX's pools leave the first two alone; those of domain umd whatever stands before kernel_shape's axes.

    Raises:
        ShapeError: the rank does not fit the kernel.
        UmdError: what `windows` refuses.
    """
    shape, kernel = call.desc(0).shape, call.attr("kernel_shape")
    lead = len(shape) - len(kernel)
    if lead < 1 or (call.template.domain == "ai.onnx" and lead != 2):
        raise call.error(f"has shape {list(shape)}, which a window {list(kernel)} does not fit", input="X")
    return shape[:lead], windows(call, shape[lead:], kernel)
