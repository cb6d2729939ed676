"""Elements of a tensor read between its places: what GridSample, DeformConv and RoiAlign share."""

from __future__ import annotations

from typing import NamedTuple

from umd_core.dtypes import bool_, int64
from umd_core.recorder import Recorder
from umd_core.template import Shape
from umd_core.views import View


class Tap(NamedTuple):
    """One of the elements along an axis that make up a result.

    Attributes:
        where: int64 position.
        weight: of the position's type; None for 1.
        inside: bool, whether the element counts; None where it always does.
    """

    where: View
    weight: View | None
    inside: View | None


def number(recorder: Recorder, name: str, x: View, *others: float | View) -> View:
    """Returns an expression of x and numbers or views of its type, as a new tensor of x's shape."""
    operands = [o if isinstance(o, View) else recorder.scalar(o, x.dtype) for o in others]
    return recorder.expression(name, (x, *operands), recorder.like(x))


def within(recorder: Recorder, at: View, low: float, high: float) -> View:
    """Returns whether each place is from `low` to `high`."""
    truth = [
        recorder.expression(name, (at, recorder.scalar(edge, at.dtype)), recorder.new(bool_, at.shape))
        for name, edge in (("ge", low), ("le", high))
    ]
    return recorder.expression("and", truth, truth[0])


def position(recorder: Recorder, at: View, extent: int) -> View:
    """Returns whole places as int64, brought into the axis."""
    bounded = number(recorder, "clip", at, 0, extent - 1)
    return recorder.copy(bounded, recorder.new(int64, at.shape))


def linear_weights(recorder: Recorder, rest: View) -> list[View]:
    """Returns the weights of the element before a place and of the one after it, `rest` behind the first."""
    return [number(recorder, "sub", number(recorder, "neg", rest), -1.0), rest]


def linear_taps(recorder: Recorder, at: View, extent: int) -> list[Tap]:
    """Returns the two elements that a place lies between; those outside the axis do not count."""
    base = number(recorder, "floor", at)
    weights = linear_weights(recorder, number(recorder, "sub", at, base))
    steps = [base, number(recorder, "add", base, 1.0)]
    return [
        Tap(position(recorder, step, extent), weight, within(recorder, step, 0, extent - 1))
        for step, weight in zip(steps, weights, strict=True)
    ]


def read(recorder: Recorder, rows: View, chosen: tuple[Tap, ...], spatial: Shape) -> View:
    """Returns (batch, channels, places): weight · the element that a tap of each axis names; 0 where it is outside.

    `rows` is (batch, channels, elements of a plane), a plane row-major over `spatial`; the taps are (batch, places).
    """
    index, weight, inside = chosen[0]
    for extent, tap in zip(spatial[1:], chosen[1:], strict=True):
        size = recorder.scalar(extent, int64)
        index = recorder.expression("multiply_add", (index, size, tap.where), recorder.new(int64, index.shape))
        if weight is not None and tap.weight is not None:
            weight = recorder.expression("mul", (weight, tap.weight), recorder.like(weight))
        if inside is not None and tap.inside is not None:
            inside = recorder.expression("and", (inside, tap.inside), recorder.new(bool_, inside.shape))
    shape = (index.shape[0], rows.shape[1], index.shape[1])
    source = View(
        rows.buffer, rows.dtype, (*shape, rows.shape[2]), (*rows.strides[:2], 0, rows.strides[2]), rows.offset
    )
    part = recorder.gather(source, index.unsqueeze(1).expand(shape), recorder.new(rows.dtype, shape), rows.shape[2])
    if inside is not None:
        recorder.expression("select", (inside.unsqueeze(1), part, recorder.scalar(0, part.dtype)), part)
    if weight is not None:
        recorder.expression("mul", (part, weight.unsqueeze(1)), part)
    return part
