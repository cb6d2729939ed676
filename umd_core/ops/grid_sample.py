"""GridSample: a tensor read at places that a grid holds, by nearest, linear or cubic interpolation."""

from __future__ import annotations

import itertools
import math

from umd_core.attributes import Attribute
from umd_core.dtypes import ALL, FLOATS, float32, float64
from umd_core.errors import UnsupportedError
from umd_core.recorder import Recorder
from umd_core.sampling import Tap, linear_weights, number, position, read, within
from umd_core.shaping import widen
from umd_core.template import Call, Input, OpTemplate, Result, Shape
from umd_core.views import View

_CUBIC = -0.75


def _shape(call: Call) -> tuple[Shape]:
    x, grid, rank = call.desc(0).shape, call.desc(1).shape, call.desc(0).rank - 2
    if rank < 1 or len(grid) != rank + 2 or grid[0] != x[0] or grid[-1] != rank:
        detail = f"has shape {list(grid)}; (N, …, {rank}) with X's rank, {rank + 2}, would be right"
        raise call.error(detail, input="grid")
    if 0 in x[2:] and 0 not in grid:
        raise call.error(f"has shape {list(x)} and nothing to read", input="X")
    if call.attr("mode") != "nearest" and call.types["T1"] not in FLOATS:
        raise UnsupportedError(f"mode {call.attr('mode')!r} of {call.types['T1']}; a float would be right", op=call.op)
    return ((*x[:2], *grid[1:-1]),)


class _Sampler:
    """Records the steps of one call over places (N, L) along one axis after the other."""

    def __init__(self, recorder: Recorder, call: Call) -> None:
        self.recorder, self.mode, self.padding = recorder, call.attr("mode"), call.attr("padding_mode")
        self.align = call.attr("align_corners")

    def do(self, name: str, x: View, *others: float | View) -> View:
        """Returns an expression of x and numbers or views of its type, as a new tensor of x's shape."""
        return number(self.recorder, name, x, *others)

    def taps(self, place: View, extent: int) -> list[Tap]:
        """Returns the elements of an axis that a place between -1 and 1 is made of."""
        at = self._padded(self._denormal(place, extent), extent)
        if self.mode == "nearest":
            return [self._tap(at, None, extent)]
        base = self.do("floor", at)
        rest = self.do("sub", at, base)
        weights = linear_weights(self.recorder, rest) if self.mode == "linear" else _cubic(self, rest)
        first = 0 if self.mode == "linear" else -1
        return [self._tap(self.do("add", base, first + k), weight, extent) for k, weight in enumerate(weights)]

    def _denormal(self, place: View, extent: int) -> View:
        """Returns the place in elements; rounded when only the nearest counts."""
        at = self.do("add", place, 1.0)
        scale, shift = ((extent - 1) / 2, 0.0) if self.align else (extent / 2, -0.5)
        at = self.do("multiply_add", at, scale, shift)
        return self.do("round", at) if self.mode == "nearest" else at

    def _padded(self, at: View, extent: int) -> View:
        if self.padding == "border":
            return self.do("clip", at, 0, extent - 1)
        return self._reflected(at, extent) if self.padding == "reflection" else at

    def _reflected(self, at: View, extent: int) -> View:
        """Returns the place mirrored at the borders until it lies between them."""
        low = 0.0 if self.align else -0.5
        span = extent - 1.0 if self.align else float(extent)
        if span == 0:
            return self.do("mul", at, 0.0)
        folded = self.do("fmod", self.do("abs", self.do("sub", at, low)), 2 * span)
        back = self.do("sub", self.do("neg", folded), -2 * span)
        return self.do("add", self.do("min", folded, back), low)

    def _tap(self, at: View, weight: View | None, extent: int) -> Tap:
        inside = within(self.recorder, at, 0, extent - 1) if self.padding == "zeros" else None
        if self.padding == "reflection":
            at = self._reflected(at, extent)
        return Tap(position(self.recorder, at, extent), weight, inside)


def _cubic(sampler: _Sampler, rest: View) -> list[View]:
    """Returns the weights of the elements at -1, 0, 1 and 2.

    Source: Keys, Cubic convolution interpolation, 1981, with a = -0.75.
    """
    a = _CUBIC
    other = sampler.do("sub", sampler.do("neg", rest), -1.0)

    def near(d: View) -> View:
        inner = sampler.do("multiply_add", d, a + 2, -(a + 3))
        return sampler.do("multiply_add", sampler.do("mul", inner, d), d, 1.0)

    def far(d: View) -> View:
        inner = sampler.do("multiply_add", sampler.do("multiply_add", d, a, -5 * a), d, 8 * a)
        return sampler.do("multiply_add", inner, d, -4 * a)

    return [far(sampler.do("add", rest, 1.0)), near(rest), near(other), far(sampler.do("add", other, 1.0))]


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    x, out = views[0], recorder.out(call)
    if 0 in out.shape:
        return out
    grid = widen(recorder, views[1], float64 if float64 in (x.dtype, views[1].dtype) else float32)
    spatial, sampler = x.shape[2:], _Sampler(recorder, call)
    batch, channels, places = out.shape[0], out.shape[1], math.prod(out.shape[2:])
    flat = recorder.reshape(grid, (batch, places, len(spatial)))
    taps = [
        sampler.taps(flat.slice(2, len(spatial) - 1 - axis, 1).squeeze(2), extent)
        for axis, extent in enumerate(spatial)
    ]
    nearest = call.attr("mode") == "nearest"
    source = x if nearest else widen(recorder, x, grid.dtype)
    rows = recorder.reshape(source, (batch, channels, math.prod(spatial)))
    total: View | None = None
    for chosen in itertools.product(*taps):
        part = read(recorder, rows, chosen, spatial)
        total = part if total is None else recorder.expression("add", (total, part), total)
    return out if total is None else recorder.copy(recorder.reshape(total, out.shape), out)


TEMPLATES = (
    OpTemplate(
        "GridSample",
        (Input("X", "T1"), Input("grid", "T2")),
        (Result("Y", "T1"),),
        _shape,
        _emit,
        {"T1": ALL, "T2": FLOATS},
        (
            Attribute("align_corners", "bool", False),
            Attribute("mode", "string", "linear", choices=("linear", "nearest", "cubic")),
            Attribute("padding_mode", "string", "zeros", choices=("zeros", "border", "reflection")),
        ),
        flops=lambda call: 8 * call.outputs[0].element_count,
        doc="X (N, C, …) at the places of grid (N, …, spatial axes), whose last axis holds x first, -1 to 1 between "
        "the outer edges, or the outer centres where align_corners; what is outside is 0, the border, or a reflection.",
        source="Jaderberg et al., Spatial transformer networks, arXiv:1506.02025",
    ),
)
