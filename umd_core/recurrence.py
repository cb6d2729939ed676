"""What RNN, GRU and LSTM share: shapes, directions, activations, and the loop over time, unrolled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from umd_core.attributes import Attribute
from umd_core.dtypes import bool_, int32
from umd_core.recorder import Recorder
from umd_core.shaping import widen
from umd_core.template import Call, Input, Result, Shape
from umd_core.views import View

ATTRIBUTES = (
    Attribute("activation_alpha", "floats"),
    Attribute("activation_beta", "floats"),
    Attribute("activations", "strings"),
    Attribute("clip", "float"),
    Attribute("direction", "string", "forward", choices=("forward", "reverse", "bidirectional")),
    Attribute("hidden_size", "int"),
    Attribute("layout", "int", 0, choices=(0, 1)),
)
INPUTS = (
    Input("X"),
    Input("W"),
    Input("R"),
    Input("B", optional=True),
    Input("sequence_lens", "int32", optional=True),
    Input("initial_h", optional=True),
)
RESULTS = (Result("Y", optional=True), Result("Y_h", optional=True))
_PARAMETERS: dict[str, tuple[str, tuple[float, ...]]] = {
    "relu": ("relu", ()),
    "tanh": ("tanh", ()),
    "sigmoid": ("sigmoid", ()),
    "softsign": ("softsign", ()),
    "softplus": ("softplus", ()),
    "elu": ("elu", (1.0,)),
    "leakyrelu": ("leaky_relu", (0.01,)),
    "hardsigmoid": ("hard_sigmoid", (0.2, 0.5)),
    "affine": ("multiply_add", (1.0, 0.0)),
    "scaledtanh": ("", (1.0, 1.0)),
    "thresholdedrelu": ("", (1.0,)),
}
"""By the name of an activation in lower case: its kernel, where it is one, and the defaults of alpha and beta."""


class Sizes(NamedTuple):
    """Extents of a recurrent layer."""

    steps: int
    batch: int
    directions: int
    hidden: int


class Activation(NamedTuple):
    """An activation with its alpha and beta."""

    name: str
    parameters: tuple[float, ...]

    def __call__(self, recorder: Recorder, x: View, out: View) -> View:
        """Records out = activation of x; `out` may be x."""
        scalars = [recorder.scalar(parameter, x.dtype) for parameter in self.parameters]
        if self.name == "scaledtanh":
            recorder.expression("tanh", (recorder.expression("mul", (x, scalars[1]), out),), out)
            return recorder.expression("mul", (out, scalars[0]), out)
        if self.name == "thresholdedrelu":
            kept = recorder.expression("gt", (x, scalars[0]), recorder.new(bool_, x.shape))
            return recorder.expression("select", (kept, x, recorder.scalar(0, x.dtype)), out)
        return recorder.expression(_PARAMETERS[self.name][0], (x, *scalars), out)


@dataclass(frozen=True, slots=True)
class Lane:
    """One direction of a layer: what a cell works with.

    Attributes:
        r: (gates · hidden, hidden) recurrent weights.
        w_bias, r_bias: (gates · hidden,) each, or both absent.
        activations: of this direction.
        direction: 0, or 1 for the second direction.
    """

    recorder: Recorder
    hidden: int
    r: View
    w_bias: View | None
    r_bias: View | None
    activations: tuple[Activation, ...]
    clip: float | None
    direction: int

    def recurrent(self, state: View, first: int, count: int) -> View:
        """Returns state · r^T for `count` gates from `first` on, (batch, count · hidden)."""
        rows = self.r.slice(0, first * self.hidden, count * self.hidden).permute((1, 0))
        return self.recorder.gemm(state, rows, self.recorder.new(state.dtype, (state.shape[0], rows.shape[1])))

    def gate(self, gates: View, index: int, count: int = 1) -> View:
        """Returns the part of (…, gates · hidden) that belongs to `count` gates."""
        return gates.slice(gates.rank - 1, index * self.hidden, count * self.hidden)

    def activate(self, index: int, x: View, out: View | None = None) -> View:
        """Records activation number `index` of x, clipped before where the layer clips; in place without `out`."""
        out = out or x
        if self.clip is not None:
            bounds = [self.recorder.scalar(bound, x.dtype) for bound in (-self.clip, self.clip)]
            x = self.recorder.expression("clip", (x, *bounds), out)
        return self.activations[index](self.recorder, x, out)

    def biases(self) -> View | None:
        """Returns the sum of both biases, (gates · hidden,)."""
        if self.w_bias is None or self.r_bias is None:
            return None
        return self.recorder.expression("add", (self.w_bias, self.r_bias), self.recorder.like(self.w_bias))


Step = Callable[[View, Sequence[View], View], list[View]]
"""Records one step: (batch, gates · hidden) of the projected input, the states before, where the first state goes.

Returns the states after it.
"""
Cell = Callable[[Lane], tuple[View | None, Step]]
"""Returns the bias that is added to the projected input of all steps at once, and the step."""


def sizes(call: Call, gates: int, states: int) -> Sizes:
    """Returns the layer's extents after checking every input against them; `states` is how many initial ones follow.

    Raises:
        ShapeError, AttributeValueError: what does not fit.
    """
    x, r = call.desc(0).shape, call.desc(2).shape
    directions = 2 if call.attr("direction") == "bidirectional" else 1
    if len(x) != 3 or len(r) != 3:
        raise call.error(f"X {list(x)} and R {list(r)}; three axes each would be right")
    steps, batch = x[:2] if call.attr("layout") == 0 else (x[1], x[0])
    found = Sizes(steps, batch, directions, r[2])
    if call.attr("hidden_size") not in (None, found.hidden):
        raise call.bad_attribute("hidden_size", f"is {call.attr('hidden_size')}, R's is {found.hidden}", "R's")
    state = (batch, directions, found.hidden) if call.attr("layout") else (directions, batch, found.hidden)
    wanted: dict[int, Shape] = {
        1: (directions, gates * found.hidden, x[2]), 2: (directions, gates * found.hidden, found.hidden),
        3: (directions, 2 * gates * found.hidden), 4: (batch,), **{5 + i: state for i in range(states)},
    }  # fmt: skip
    for index, shape in wanted.items():
        if call.has(index) and call.desc(index).shape != shape:
            name = call.template.input_spec(index).name
            raise call.error(f"has shape {list(call.desc(index).shape)}; {list(shape)} would be right", input=name)
    return found


def flops(call: Call, gates: int, states: int) -> int:
    """Returns the multiplications and additions of the layer's products; the activations are few beside them."""
    found = sizes(call, gates, states)
    each = gates * found.hidden * (found.hidden + call.desc(0).shape[2])
    return 2 * found.steps * found.batch * found.directions * each


def output_shapes(call: Call, found: Sizes, states: int) -> list[Shape]:
    """Returns the shapes of Y and of each final state."""
    steps, batch, directions, hidden = found
    if call.attr("layout"):
        return [(batch, steps, directions, hidden), *[(batch, directions, hidden)] * states]
    return [(steps, directions, batch, hidden), *[(directions, batch, hidden)] * states]


def activations(call: Call, defaults: Sequence[str]) -> list[tuple[Activation, ...]]:
    """Returns the activations of each direction; alphas and betas go to those that have them, in order.

    Raises:
        AttributeValueError: an unknown name, or another number of names than the directions need.
    """
    directions = 2 if call.attr("direction") == "bidirectional" else 1
    names = call.attr("activations") or tuple(defaults) * directions
    if len(names) < len(defaults) * directions:
        raise call.bad_attribute("activations", f"has {len(names)} names", f"{len(defaults) * directions}")
    given = [list(call.attr(name) or ()) for name in ("activation_alpha", "activation_beta")]
    found = []
    for name in names[: len(defaults) * directions]:
        if name.lower() not in _PARAMETERS:
            raise call.bad_attribute("activations", f"{name!r} is unknown", "one of " + ", ".join(_PARAMETERS))
        default = _PARAMETERS[name.lower()][1]
        parameters = tuple(g.pop(0) if g else d for g, d in zip(given, default, strict=False))
        found.append(Activation(name.lower(), parameters))
    return [tuple(found[i : i + len(defaults)]) for i in range(0, len(found), len(defaults))]


def unroll(
    recorder: Recorder, call: Call, views: Sequence[View], gates: int, cell: Cell, names: Sequence[str], states: int
) -> list[View | None]:
    """Records the whole layer: Y, then each final state.

    Positions from sequence_lens on are 0 in Y, and leave the states as they are.
    """
    found, layout = sizes(call, gates, states), call.attr("layout")
    x, w, r = (widen(recorder, v) for v in views[:3])
    x = x.permute((1, 0, 2)) if layout else x
    outs = [recorder.out(call, i) if call.wants(i) else None for i in range(1 + states)]
    y = outs[0]
    if y is None or y.dtype is not x.dtype:
        y = recorder.new(x.dtype, output_shapes(call, found, states)[0])
    rows = y.permute((1, 2, 0, 3)) if layout else y  # steps, directions, batch, hidden
    bias = widen(recorder, views[3]) if call.has(3) else None
    masks = _masks(recorder, views[4], found.steps) if call.has(4) else None
    parts, width = activations(call, names), gates * found.hidden
    for d in range(found.directions):
        w_bias, r_bias = (
            bias.slice(0, d, 1).squeeze(0).slice(0, first, width) if bias else None for first in (0, width)
        )
        own_r = r.slice(0, d, 1).squeeze(0)
        lane = Lane(recorder, found.hidden, own_r, w_bias, r_bias, parts[d], call.attr("clip"), d)
        before = [_initial(recorder, call, views, 5 + i, d, found, x) for i in range(states)]
        backwards = d == 1 or call.attr("direction") == "reverse"
        own = rows.slice(1, d, 1).squeeze(1)
        after = _loop(lane, cell, _projected(recorder, x, w.slice(0, d, 1).squeeze(0)), before, own, masks, backwards)
        for out, state in zip(outs[1:], after, strict=True):
            if out is not None:
                recorder.copy(state, out.slice(1 if layout else 0, d, 1).squeeze(1 if layout else 0))
    if outs[0] is not None and outs[0] is not y:
        recorder.copy(y, outs[0])
    return list(outs)


def _projected(recorder: Recorder, x: View, w: View) -> View:
    """Returns x · w^T for all steps at once, (steps, batch, gates · hidden)."""
    steps, batch, inputs = x.shape
    flat = recorder.reshape(x, (steps * batch, inputs))
    out = recorder.new(x.dtype, (steps, batch, w.shape[0]))
    recorder.gemm(flat, w.permute((1, 0)), recorder.reshape(out, (steps * batch, w.shape[0])))
    return out


def _masks(recorder: Recorder, lengths: View, steps: int) -> list[View]:
    """Returns, for each step, (batch, 1) whether it is before the batch's length."""
    shape = (*lengths.shape, 1)
    column = lengths.unsqueeze(1)
    return [
        recorder.expression("gt", (column, recorder.scalar(t, int32)), recorder.new(bool_, shape)) for t in range(steps)
    ]


def _initial(
    recorder: Recorder, call: Call, views: Sequence[View], index: int, direction: int, found: Sizes, x: View
) -> View:
    if not call.has(index):
        return recorder.fill(recorder.new(x.dtype, (found.batch, found.hidden)), 0)
    axis = 1 if call.attr("layout") else 0
    return widen(recorder, views[index].slice(axis, direction, 1).squeeze(axis))


def _loop(
    lane: Lane, cell: Cell, projected: View, states: list[View], rows: View, masks: list[View] | None, backwards: bool
) -> list[View]:
    """Records every step of one direction; `rows` is Y of this direction. Returns the final states."""
    recorder, (bias, step) = lane.recorder, cell(lane)
    if bias is not None:
        recorder.expression("add", (projected, bias), projected)
    order = range(projected.shape[0])
    for t in reversed(order) if backwards else order:
        row, now = rows.slice(0, t, 1).squeeze(0), projected.slice(0, t, 1).squeeze(0)
        if masks is None:
            states = step(now, states, row)
            continue
        after = step(now, states, recorder.new(row.dtype, row.shape))
        kept = [
            recorder.expression("select", (masks[t], new, old), recorder.like(old))
            for new, old in zip(after, states, strict=True)
        ]
        recorder.expression("select", (masks[t], after[0], recorder.scalar(0, row.dtype)), row)
        states = kept
    return states
