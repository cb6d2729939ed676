"""ReverseSequence: the first elements along one axis in reverse, as many as each batch's length says."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.builders import no_flops
from umd_core.dtypes import ALL, bool_, int64
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape, normal_axis
from umd_core.views import View


def _axes(call: Call) -> tuple[int, int]:
    shape = call.desc(0).shape
    if len(shape) < 2:
        raise call.error(f"has shape {list(shape)}; two axes or more would be right", input="input")
    batch, time = (normal_axis(call, call.attr(name), len(shape), name) for name in ("batch_axis", "time_axis"))
    if batch == time:
        raise call.bad_attribute("time_axis", f"is axis {time}, and so is batch_axis", "two axes")
    return batch, time


def _shape(call: Call) -> tuple[Shape]:
    shape, (batch, _) = call.desc(0).shape, _axes(call)
    if call.desc(1).shape != (shape[batch],):
        detail = f"has shape {list(call.desc(1).shape)}; [{shape[batch]}], one length a batch, would be right"
        raise call.error(detail, input="sequence_lens")
    return (shape,)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    """Gathers along time, at length - 1 - t where t is before the length."""
    x, lengths = views
    batch, time = _axes(call)
    out, extent = recorder.out(call), x.shape[time]
    if 0 in out.shape:
        return out
    at = recorder.new(int64, (extent,))
    operands = {"start": recorder.scalar(0, int64), "step": recorder.scalar(1, int64), "out": at}
    recorder.launch("iota_kernel", {"count": extent}, operands)
    shape = (x.shape[batch], extent)
    index = recorder.expression("sub", (lengths.unsqueeze(1), at), recorder.new(int64, shape))
    before = recorder.expression("gt", (index, recorder.scalar(0, int64)), recorder.new(bool_, shape))
    recorder.expression("sub", (index, recorder.scalar(1, int64)), index)
    recorder.expression("select", (before, index, at), index)
    steps = [0] * x.rank
    steps[batch], steps[time] = index.strides
    strides = (*(0 if a == time else s for a, s in enumerate(x.strides)), x.strides[time])
    source = View(x.buffer, x.dtype, (*out.shape, extent), strides, x.offset)
    return recorder.gather(source, View(index.buffer, int64, out.shape, tuple(steps)), out, extent)


TEMPLATES = (
    OpTemplate(
        "ReverseSequence",
        (Input("input"), Input("sequence_lens", "int64")),
        (Result("Y"),),
        _shape,
        _emit,
        {"T": ALL},
        (Attribute("batch_axis", "int", 1), Attribute("time_axis", "int", 0)),
        flops=no_flops,
        doc="input with the first sequence_lens[b] elements along time_axis in reverse, at each place b of batch_axis. "
        "A length beyond the axis is an error when the program runs.",
    ),
)
