"""Softmax and its kin, and normalisation, by reductions and elementwise steps over rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from umd_core.dtypes import float32, float64
from umd_core.recorder import Recorder
from umd_core.shaping import accumulator, compute, trailing, widen
from umd_core.views import View


def softmax(
    recorder: Recorder, extents: Mapping[str, Any], operands: Mapping[str, View], fields: Mapping[str, Any]
) -> None:
    """Records y = exp(x - max) / sum of exp(x - max)."""
    rows = _Rows(recorder, extents)
    shifted, y = rows.shifted(operands["x"]), operands["y"]
    recorder.expression("exp", (shifted,), shifted)
    compute(recorder, "div", (shifted, rows.reduce("sum", shifted)), y)


def log_softmax(
    recorder: Recorder, extents: Mapping[str, Any], operands: Mapping[str, View], fields: Mapping[str, Any]
) -> None:
    """Records y = x - max - log(sum of exp(x - max))."""
    rows = _Rows(recorder, extents)
    shifted, y = rows.shifted(operands["x"]), operands["y"]
    total = rows.reduce("sum", recorder.expression("exp", (shifted,), recorder.like(shifted)))
    compute(recorder, "sub", (shifted, recorder.expression("log", (total,), total)), y)


def softmax_grad(
    recorder: Recorder, extents: Mapping[str, Any], operands: Mapping[str, View], fields: Mapping[str, Any]
) -> None:
    """Records dx = y · (dy - sum of dy · y)."""
    rows = _Rows(recorder, extents)
    dy, y, dx = widen(recorder, operands["dy"]), widen(recorder, operands["y"]), operands["dx"]
    work = recorder.expression("mul", (dy, y), recorder.new(dy.dtype, dy.shape))
    total = rows.reduce("sum", work)
    recorder.expression("sub", (dy, total), work)
    compute(recorder, "mul", (y, work), dx)


def log_softmax_grad(
    recorder: Recorder, extents: Mapping[str, Any], operands: Mapping[str, View], fields: Mapping[str, Any]
) -> None:
    """Records dx = dy - exp(y) · sum of dy."""
    rows = _Rows(recorder, extents)
    dy, y, dx = widen(recorder, operands["dy"]), widen(recorder, operands["y"]), operands["dx"]
    share = recorder.expression("exp", (y,), recorder.like(y))
    recorder.expression("mul", (share, rows.reduce("sum", dy)), share)
    compute(recorder, "sub", (dy, share), dx)


def normalize(
    recorder: Recorder, extents: Mapping[str, Any], operands: Mapping[str, View], fields: Mapping[str, Any]
) -> None:
    """Records mean and 1 / sqrt(variance + epsilon) of each row; y = (x - mean) · rstd."""
    rows = _Rows(recorder, extents)
    y, types = operands["y"], (operands["x"].dtype, operands["mean"].dtype)
    x = widen(recorder, operands["x"], float64 if float64 in types else float32)
    mean = rows.reduce("mean", x)
    centred = recorder.expression("sub", (x, mean), recorder.like(x))
    squares = recorder.expression("mul", (centred, centred), recorder.like(x))
    rstd = rows.reduce("mean", squares)
    recorder.expression("add", (rstd, recorder.scalar(fields["epsilon"], x.dtype)), rstd)
    recorder.expression("rsqrt", (rstd,), rstd)
    compute(recorder, "mul", (centred, rstd), y)
    recorder.copy(rows.outer_only(mean), operands["mean"])
    recorder.copy(rows.outer_only(rstd), operands["rstd"])


class _Rows:
    """Reductions over the inner axes of views shaped (outer…, inner…)."""

    def __init__(self, recorder: Recorder, extents: Mapping[str, Any]) -> None:
        self._recorder = recorder
        self._outer: Sequence[int] = extents["outer"]
        self._inner: Sequence[int] = extents["inner"]

    def reduce(self, name: str, x: View) -> View:
        """Returns the reduction of each row, to broadcast over (outer…, inner…)."""
        count = len(self._inner)
        axes = range(x.rank - count, x.rank)
        return trailing(self._recorder.reduce(name, x, axes, self._recorder.new(x.dtype, self._outer)), count)

    def shifted(self, x: View) -> View:
        """Returns x minus the largest of its row, in the accumulator type, as a new tensor."""
        wide = widen(self._recorder, x)
        out = self._recorder.new(accumulator(x.dtype), x.shape)
        return self._recorder.expression("sub", (wide, self.reduce("max", wide)), out)

    def outer_only(self, view: View) -> View:
        """Returns a reduction's result without the axes that it broadcasts over."""
        return View(view.buffer, view.dtype, tuple(self._outer), view.strides[: len(self._outer)], view.offset)
