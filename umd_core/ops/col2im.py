"""Col2Im and MaxUnpool: windows laid back onto the image that they were taken from."""

from __future__ import annotations

import itertools
import math

from umd_core.dtypes import FLOATS, NUMERIC
from umd_core.errors import UnsupportedError
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape
from umd_core.views import View
from umd_core.windows import KERNEL_SHAPE, WINDOW, Windows, per_axis, windows

MAX_TAPS = 4096
"""Elements of a block: each is a launch of its own."""


def _blocks(call: Call) -> Windows:
    image, block = call.ints(1) or (), call.ints(2) or ()
    if not image or len(image) != len(block) or min(image) < 0:
        raise call.error(
            f"is {list(image)}, block_shape {list(block)}; one extent an axis would be right", input="image_shape"
        )
    if math.prod(block) > MAX_TAPS:
        raise UnsupportedError(f"blocks of {math.prod(block)} elements; up to {MAX_TAPS} would be right", op=call.op)
    return windows(call, image, block)


def _col2im_shape(call: Call) -> tuple[Shape]:
    shape, over = call.desc(0).shape, _blocks(call)
    if len(shape) != 3 or shape[1] % over.kernel_size or shape[2] != math.prod(over.output):
        wanted = f"(N, C · {over.kernel_size}, {math.prod(over.output)})"
        raise call.error(f"has shape {list(shape)}; {wanted} would be right", input="input")
    return ((shape[0], shape[1] // over.kernel_size, *over.input),)


def _emit_col2im(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    """Adds each element of all blocks at once, to every stride-th place of a padded image."""
    over, (batch, channels, *_) = _blocks(call), call.outputs[0].shape
    columns = recorder.reshape(views[0], (batch, channels, over.kernel_size, *over.output))
    rows = zip(over.input, over.output, over.strides, over.kernel, over.dilations, over.pads, strict=True)
    extents = [max((o - 1) * s + (k - 1) * d + 1, p + n) for n, o, s, k, d, p in rows]
    padded = recorder.fill(recorder.new(views[0].dtype, (batch, channels, *extents)), 0)
    for number, tap in enumerate(itertools.product(*map(range, over.kernel))):
        place = padded
        for axis, k in enumerate(tap):
            place = place.slice(axis + 2, k * over.dilations[axis], over.output[axis], over.strides[axis])
        recorder.expression("add", (place, columns.slice(2, number, 1).squeeze(2)), place)
    for axis, (pad, extent) in enumerate(zip(over.pads, over.input, strict=True)):
        padded = padded.slice(axis + 2, pad, extent)
    return padded


def _unpooled(call: Call) -> Shape:
    """Returns the extents that the pool had, from its attributes."""
    shape, kernel = call.desc(0).shape, call.attr("kernel_shape")
    rank = len(kernel)
    if len(shape) != rank + 2:
        raise call.error(f"has shape {list(shape)}, which a window {list(kernel)} does not fit", input="X")
    strides = per_axis(call, "strides", rank, least=1, default=1)
    pads = per_axis(call, "pads", 2 * rank, least=0, default=0)
    rows = zip(shape[2:], strides, kernel, pads[:rank], pads[rank:], strict=True)
    return (*shape[:2], *((n - 1) * s - before - after + k for n, s, k, before, after in rows))


def _unpool_shape(call: Call) -> tuple[Shape]:
    inner, wanted = _unpooled(call), call.ints(2)
    if call.desc(1).shape != call.desc(0).shape:
        raise call.error(f"has shape {list(call.desc(1).shape)}; X's would be right", input="I")
    if min(inner) < 0:
        raise call.bad_attribute("pads", f"leave nothing of {list(call.desc(0).shape)}", "smaller pads")
    if wanted is None:
        return (inner,)
    if len(wanted) != len(inner) or any(w < n for w, n in zip(wanted, inner, strict=True)):
        raise call.error(f"is {list(wanted)}; at least {list(inner)} would be right", input="output_shape")
    return (wanted,)


def _emit_unpool(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    """Scatters into the pool's input as one row, which lies at the beginning of a larger output."""
    x, index = views[:2]
    inner, out = _unpooled(call), recorder.out(call)
    count, total = x.size, math.prod(inner)
    plain = recorder.fill(recorder.new(x.dtype, inner), 0)
    if count and total:
        target = View(plain.buffer, plain.dtype, (count, total), (0, 1), plain.offset)
        recorder.scatter(recorder.reshape(x, (count,)), recorder.reshape(index, (count,)), target, total)
    if inner == out.shape:
        return plain
    place = recorder.fill(out, 0)
    for axis, extent in enumerate(inner):
        place = place.slice(axis, 0, extent)
    recorder.copy(plain, place)
    return out


TEMPLATES = (
    OpTemplate(
        "Col2Im",
        (Input("input"), Input("image_shape", "int64", static=True), Input("block_shape", "int64", static=True)),
        (Result("output"),),
        _col2im_shape,
        _emit_col2im,
        {"T": NUMERIC},
        WINDOW,
        flops=lambda call: call.desc(0).element_count,
        doc="The image whose blocks are the columns of input (N, C · elements of a block, blocks); where blocks "
        "overlap they add up.",
    ),
    OpTemplate(
        "MaxUnpool",
        (Input("X", "T1"), Input("I", "int64"), Input("output_shape", "int64", optional=True, static=True)),
        (Result("output", "T1"),),
        _unpool_shape,
        _emit_unpool,
        {"T1": FLOATS},
        (KERNEL_SHAPE, *(attribute for attribute in WINDOW if attribute.name != "dilations")),
        flops=lambda call: 0,
        doc="0, but X at the positions I, which count over the whole tensor that MaxPool took.",
    ),
)
