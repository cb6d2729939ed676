"""Dropout and umd.Dropout: elements set to 0 with a chance, the others scaled so that the mean stays."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.dtypes import FLOATS, bool_, float32, int64
from umd_core.recorder import Recorder
from umd_core.shaping import accumulator, compute, widen
from umd_core.template import Call, Input, OpTemplate, Result, Shape
from umd_core.views import View

_RATIO = 0.5


def _drop(
    recorder: Recorder, x: View, chance: tuple[View, View], results: tuple[View, View], keys: tuple[View, View]
) -> None:
    """Records mask = u < keep, out = x · (scale where mask, else 0).

    Args:
        recorder: what records.
        x: the data.
        chance: keep and scale = 1 / keep, 0-d, in the type in which x is computed.
        results: out and mask.
        keys: seed and offset.
    """
    (keep, scale), (out, mask) = chance, results
    recorder.random("bernoulli", *keys, mask, p=widen(recorder, keep, float32).expand(mask.shape))
    factors = recorder.new(scale.dtype, x.shape)
    recorder.expression("select", (mask, scale, recorder.scalar(0, scale.dtype)), factors)
    compute(recorder, "mul", (widen(recorder, x), factors), out)


def _trains(call: Call) -> bool:
    mode = call.static(2)
    return mode is not None and bool(mode.reshape(-1)[0])


def _shape(call: Call) -> tuple[Shape, Shape]:
    for index in (1, 2):
        if call.has(index) and call.desc(index).element_count != 1:
            name = call.template.inputs[index].name
            raise call.error(f"has shape {list(call.desc(index).shape)}; one number would be right", input=name)
    ratio = call.static(1)
    if _trains(call) and call.attr("seed") is None and (ratio is None or ratio.reshape(-1)[0] != 0):
        detail = "is missing: the program would drop the same elements at each run"
        raise call.bad_attribute("seed", detail, "a seed, or umd.Dropout")
    return (call.desc(0).shape, call.desc(0).shape)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> tuple[View, View | None]:
    x, ratio = views[0], views[1] if len(views) > 1 else None
    known = call.static(1)
    if not _trains(call) or (known is not None and known.reshape(-1)[0] == 0):
        return (x, recorder.scalar(True, bool_).expand(x.shape) if call.wants(1) else None)
    out, mask = recorder.out(call), recorder.out(call, 1)
    keys = (recorder.scalar(call.attr("seed"), int64), recorder.scalar(0, int64))
    wide = accumulator(x.dtype)
    given = View(ratio.buffer, ratio.dtype, (), (), ratio.offset) if ratio else recorder.scalar(_RATIO, wide)
    keep = recorder.new(wide, ())
    recorder.expression("sub", (recorder.scalar(1, wide), widen(recorder, given, wide)), keep)
    scale = recorder.expression("reciprocal", (keep,), recorder.new(wide, ()))
    _drop(recorder, x, (keep, scale), (out, mask), keys)
    return (out, mask if call.wants(1) else None)


def _own_shape(call: Call) -> tuple[Shape, Shape]:
    if not 0 <= call.attr("ratio") <= 1:
        raise call.bad_attribute("ratio", f"{call.attr('ratio')} is no chance", "0 to 1")
    for index in (1, 2):
        if call.desc(index).element_count != 1:
            name = call.template.inputs[index].name
            raise call.error(f"has shape {list(call.desc(index).shape)}; one number would be right", input=name)
    return (call.desc(0).shape, call.desc(0).shape)


def _emit_own(recorder: Recorder, call: Call, views: tuple[View, ...]) -> tuple[View, View | None]:
    x, seed, offset = views
    out, mask, keep = recorder.out(call), recorder.out(call, 1), 1 - call.attr("ratio")
    wide = accumulator(x.dtype)
    if keep == 0:
        recorder.fill(out, 0)
        recorder.fill(mask, False)
    else:
        _drop(recorder, x, (recorder.scalar(keep, wide), recorder.scalar(1 / keep, wide)), (out, mask), (seed, offset))
    return (out, mask if call.wants(1) else None)


TEMPLATES = (
    OpTemplate(
        "Dropout",
        (Input("data"), Input("ratio", "T1", optional=True), Input("training_mode", "bool", True, True)),
        (Result("output"), Result("mask", "bool", optional=True)),
        _shape,
        _emit,
        {"T": FLOATS, "T1": FLOATS},
        (Attribute("seed", "int"),),
        doc="In training mode data / (1 - ratio) where mask, else 0; mask is false with chance ratio, by seed, the "
        "same at each run. Otherwise data, and a mask that is true.",
    ),
    OpTemplate(
        "umd.Dropout",
        (Input("X"), Input("seed", "int64"), Input("offset", "int64")),
        (Result("Y"), Result("mask", "bool", optional=True)),
        _own_shape,
        _emit_own,
        {"T": FLOATS},
        (Attribute("ratio", "float", _RATIO),),
        doc="X / (1 - ratio) where mask, else 0; mask is false with chance ratio, by seed and offset. Element i of "
        "mask depends on seed, offset and i (row-major) alone, on every device.",
        source="Srivastava et al., Dropout: A Simple Way to Prevent Neural Networks from Overfitting, 2014",
    ),
)
