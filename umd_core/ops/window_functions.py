"""HannWindow, HammingWindow, BlackmanWindow and MelWeightMatrix: constants that are worked out at translation."""

from __future__ import annotations

from typing import Any

import numpy as np

from umd_core.attributes import Attribute
from umd_core.builders import no_flops
from umd_core.dtypes import FLOATS, INDEX, float32
from umd_core.errors import LimitError
from umd_core.ir import Array
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape
from umd_core.views import View

_COSINES = {
    "HannWindow": (0.5, -0.5, 0.0),
    "HammingWindow": (25 / 46, -21 / 46, 0.0),
    "BlackmanWindow": (0.42, -0.5, 0.08),
}
"""Coefficients of 1, cos(2πn / N) and cos(4πn / N)."""
LARGEST = 1 << 24
"""Elements that are worked out at translation, at most."""
_PERIODIC, _TYPE = Attribute("periodic", "bool", True), Attribute("output_datatype", "dtype", float32)


def _number(call: Call, index: int) -> Any:
    value = call.static(index)
    if value is None or value.size != 1:
        name = call.template.inputs[index].name
        raise call.error(f"has shape {list(call.desc(index).shape)}; one number would be right", input=name)
    return value.reshape(-1)[0]


def _window_shape(call: Call) -> tuple[Shape]:
    size = int(_number(call, 0))
    if size < 0:
        raise call.error(f"is {size}; 0 or more would be right", input="size")
    if size > LARGEST:
        raise LimitError("elements of a window", size, LARGEST)
    return ((size,),)


def _emit_window(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    size, (one, two, four) = call.outputs[0].shape[0], _COSINES[call.op]
    turn = 2 * np.pi * np.arange(size) / max(size if call.attr("periodic") else size - 1, 1)
    return recorder.constant((one + two * np.cos(turn) + four * np.cos(2 * turn)).astype(call.outputs[0].dtype.numpy))


def _mel_shape(call: Call) -> tuple[Shape]:
    bins, length, rate = (int(_number(call, i)) for i in range(3))
    low, high = (float(_number(call, i)) for i in (3, 4))
    if min(bins, length, rate) < 1:
        raise call.error(f"{bins} bins, length {length} and rate {rate}; positive numbers would be right")
    if bins * (length // 2 + 1) > LARGEST:
        raise LimitError("elements of a weight matrix", bins * (length // 2 + 1), LARGEST)
    if not 0 <= low < high <= rate / 2:
        raise call.error(f"{low} to {high} Hz; within 0 and half the rate, {rate / 2}, would be right")
    return ((length // 2 + 1, bins),)


def _mel(bins: int, length: int, rate: int, low: float, high: float) -> Array:
    """Returns (length // 2 + 1, bins) weights: triangles between neighbouring centres, equally far apart in mel.

    Source: ONNX, operator MelWeightMatrix.
    """
    ends = 2595 * np.log10(1 + np.array([low, high]) / 700)
    mels = ends[0] + np.arange(bins + 2) * (ends[1] - ends[0]) / (bins + 2)
    places = ((length + 1) * (700 * (10 ** (mels / 2595) - 1)) // rate).astype(int)
    weights = np.zeros((length // 2 + 1, bins))
    for i in range(bins):
        left, centre, right = places[i : i + 3]
        weights[left : centre + 1, i] = np.arange(centre - left + 1) / (centre - left) if centre > left else 1
        if right > centre:
            weights[centre:right, i] = np.arange(right - centre, 0, -1) / (right - centre)
    return weights


def _emit_mel(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    bins, length, rate = (int(_number(call, i)) for i in range(3))
    weights = _mel(bins, length, rate, float(_number(call, 3)), float(_number(call, 4)))
    return recorder.constant(weights.astype(call.outputs[0].dtype.numpy))


TEMPLATES = (
    *(
        OpTemplate(
            name,
            (Input("size", "T1", static=True),),
            (Result("output", "@output_datatype"),),
            _window_shape,
            _emit_window,
            {"T1": INDEX},
            (_TYPE, _PERIODIC),
            flops=no_flops,
            doc=f"{one:.4g} {two:+.4g} · cos(2πn / N)"
            + (f" {four:+.4g} · cos(4πn / N)" if four else "")
            + "; N is size, or size - 1 unless periodic.",
        )
        for name, (one, two, four) in _COSINES.items()
    ),
    OpTemplate(
        "MelWeightMatrix",
        (
            Input("num_mel_bins", "T1", static=True),
            Input("dft_length", "T1", static=True),
            Input("sample_rate", "T1", static=True),
            Input("lower_edge_hertz", "T2", static=True),
            Input("upper_edge_hertz", "T2", static=True),
        ),
        (Result("output", "@output_datatype"),),
        _mel_shape,
        _emit_mel,
        {"T1": INDEX, "T2": FLOATS},
        (_TYPE,),
        flops=no_flops,
        doc="Weights that turn a spectrum of dft_length // 2 + 1 bins into num_mel_bins of equal width in mel.",
    ),
)
