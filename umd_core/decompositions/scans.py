"""Scans by doubling: after step k every element holds the combination of the 2^k elements that end with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from umd_core.dtypes import DType
from umd_core.recorder import Recorder
from umd_core.shaping import accumulator
from umd_core.views import View


def scan(combine: str) -> Callable[..., None]:
    """Returns the decomposition of a scan whose combiner is the elementwise kernel `combine`."""

    def record(
        recorder: Recorder, extents: Mapping[str, Any], operands: Mapping[str, View], fields: Mapping[str, Any]
    ) -> None:
        """Records 2 · log2(length) elementwise steps: each brings in what lies 1, 2, 4 … elements before."""
        x, out, length = operands["x"], operands["out"], extents["length"]
        if fields["reverse"]:
            x, out = _backwards(x), _backwards(out)
        lead = 1 if fields["exclusive"] else 0
        part, axis = _first(x, length - lead), x.rank - 1
        wide = part.dtype if combine in _COMPARE or part.dtype.is_integer else accumulator(part.dtype)
        held = recorder.copy(part, recorder.new(wide, part.shape))
        apart = 1
        while apart < length - lead:
            held = _step(recorder, combine, held, apart)
            apart *= 2
        recorder.copy(held, out.slice(axis, lead, length - lead))
        if lead:
            recorder.fill(_first(out, 1), identity(combine, out.dtype))

    return record


_COMPARE = ("max", "min")


def identity(combine: str, dtype: DType) -> Any:
    """Returns what a combiner gives over nothing."""
    if combine not in _COMPARE:
        return int(combine == "mul")
    least = combine == "max"
    if dtype.is_float:
        return -np.inf if least else np.inf
    limits = np.iinfo(dtype.numpy)
    return limits.min if least else limits.max


def _step(recorder: Recorder, combine: str, held: View, apart: int) -> View:
    """Records one doubling, into a new buffer."""
    axis, rest = held.rank - 1, held.shape[-1] - apart
    out = recorder.like(held)
    recorder.copy(_first(held, apart), _first(out, apart))
    recorder.expression(combine, (_first(held, rest), held.slice(axis, apart, rest)), out.slice(axis, apart, rest))
    return out


def _first(view: View, count: int) -> View:
    """Returns the first elements along the last axis."""
    return view.slice(view.rank - 1, 0, count)


def _backwards(view: View) -> View:
    """Returns the view with its last axis the other way round."""
    count = view.shape[-1]
    return view.slice(view.rank - 1, count - 1, count, -1)
