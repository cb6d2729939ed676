"""Optimizer steps by elementwise expressions, in place on the parameter and its state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from umd_core.dtypes import bool_
from umd_core.recorder import Recorder
from umd_core.shaping import accumulator, widen
from umd_core.views import View

_STATE = ("p", "m", "v")


def sgd(
    recorder: Recorder, extents: Mapping[str, Any], operands: Mapping[str, View], fields: Mapping[str, Any]
) -> None:
    """Records p -= lr · (g + weight_decay · p)."""
    step = _Step(recorder, operands)
    step.descend(step.decayed(fields["weight_decay"]), step.scalar("lr"))
    step.store()


def sgd_momentum(
    recorder: Recorder, extents: Mapping[str, Any], operands: Mapping[str, View], fields: Mapping[str, Any]
) -> None:
    """Records m = momentum · m + (1 - dampening) · d, or d at step 1; p -= lr · (d + momentum · m, or m)."""
    step = _Step(recorder, operands)
    d, m = step.decayed(fields["weight_decay"]), step.wide["m"]
    momentum = step.constant(fields["momentum"])
    later = step.new("mul", d, step.constant(1.0 - fields["dampening"]))
    recorder.expression("multiply_add", (m, momentum, later), later)
    is_first = recorder.expression("eq", (step.scalar("step"), step.constant(1.0)), recorder.new(bool_, ()))
    recorder.expression("select", (is_first, d, later), m)
    step.descend(step.new("multiply_add", m, momentum, d) if fields["nesterov"] else m, step.scalar("lr"))
    step.store()


def adamw(
    recorder: Recorder, extents: Mapping[str, Any], operands: Mapping[str, View], fields: Mapping[str, Any]
) -> None:
    """Records the moments, then p -= lr / (1 - beta1^step) · m / (sqrt(v) / sqrt(1 - beta2^step) + epsilon)."""
    step = _Step(recorder, operands)
    p, m, v, lr = step.wide["p"], step.wide["m"], step.wide["v"], step.scalar("lr")
    decay = fields["weight_decay"]
    if fields["decoupled"]:
        kept = step.new("multiply_add", lr, step.constant(-decay), step.constant(1.0))
        recorder.expression("mul", (p, kept), p)
        decay = 0.0
    g = step.decayed(decay)
    _average(step, m, g, fields["beta1"])
    _average(step, v, step.new("mul", g, g), fields["beta2"])
    scale = step.correction(fields["beta2"])
    recorder.expression("sqrt", (scale,), scale)
    divisor = step.new("sqrt", v)
    recorder.expression("div", (divisor, scale), divisor)
    recorder.expression("add", (divisor, step.constant(fields["epsilon"])), divisor)
    recorder.expression("div", (m, divisor), divisor)
    step.descend(divisor, step.new("div", lr, step.correction(fields["beta1"])))
    step.store()


def _average(step: _Step, average: View, value: View, beta: float) -> None:
    """Records average = beta · average + (1 - beta) · value."""
    share = step.new("mul", value, step.constant(1.0 - beta))
    step.recorder.expression("multiply_add", (average, step.constant(beta), share), average)


class _Step:
    """One update in the accumulator type: state of that type changes in place, other state is stored at the end."""

    def __init__(self, recorder: Recorder, operands: Mapping[str, View]) -> None:
        self.recorder = recorder
        self._operands = operands
        self._dtype = accumulator(operands["p"].dtype)
        self.wide = {name: widen(recorder, operands[name]) for name in _STATE if name in operands}

    def constant(self, value: float) -> View:
        """Returns a 0-d constant."""
        return self.recorder.scalar(value, self._dtype)

    def scalar(self, name: str) -> View:
        """Returns a 0-d operand in the accumulator type."""
        return widen(self.recorder, self._operands[name], self._dtype)

    def new(self, name: str, *inputs: View) -> View:
        """Returns an expression, shaped like its first input, as a new tensor."""
        return self.recorder.expression(name, inputs, self.recorder.new(self._dtype, inputs[0].shape))

    def decayed(self, decay: float) -> View:
        """Returns g + decay · p."""
        g = widen(self.recorder, self._operands["g"])
        return self.new("multiply_add", self.wide["p"], self.constant(decay), g) if decay else g

    def correction(self, beta: float) -> View:
        """Returns 1 - beta^step, formed so that no digits cancel."""
        logarithm = math.log(beta) if beta > 0 else -math.inf
        power = self.new("mul", self.scalar("step"), self.constant(logarithm))
        self.recorder.expression("expm1", (power,), power)
        return self.recorder.expression("neg", (power,), power)

    def descend(self, direction: View, rate: View) -> None:
        """Records p -= rate · direction."""
        p = self.wide["p"]
        self.recorder.expression("multiply_add", (direction, self.new("neg", rate), p), p)

    def store(self) -> None:
        """Brings state that was widened back into its operand."""
        for name, view in self.wide.items():
            if view is not self._operands[name]:
                self.recorder.copy(view, self._operands[name])
