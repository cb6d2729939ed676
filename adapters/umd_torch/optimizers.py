"""Torch's optimizers on a device: one op of the core where there is one, else torch's own formula, traced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import fx
from torch.optim import SGD, Adam, AdamW, Optimizer

from umd_core.errors import UnsupportedError
from umd_torch.builder import Builder, Value
from umd_torch.formula import trace_update
from umd_torch.torch_private import initial_state, step_hooks

Group = Mapping[str, Any]
Attributes = dict[str, float | bool]
State = dict[str, torch.Tensor]
STEP = "step"
"""What torch calls the number of updates in a parameter's state; it has a place of its own here."""
_NOT_SETTINGS = ("params", "lr", "foreach", "fused", "capturable")


class Inliner(Protocol):
    """What a rule writes its ops with: a builder, and a traced graph's nodes as ops."""

    @property
    def builder(self) -> Builder:
        """The ops of the graph under construction."""
        ...

    def inline(self, module: fx.GraphModule, inputs: Sequence[Value]) -> list[Value]:
        """Returns a traced graph's results on these inputs."""
        ...


@dataclass(frozen=True, slots=True)
class Operands:
    """What one parameter's update is computed from; lr and step are 0-d, step is the number of the coming update."""

    parameter: Value
    gradient: Value
    state: tuple[Value, ...]
    lr: Value
    step: Value


Emit = Callable[[Inliner, Operands], Sequence[Value]]
"""Adds an update to a graph; returns the new parameter and the new state."""


class Rule(Protocol):
    """How an optimizer updates."""

    def settings(self, group: Group) -> tuple[Any, ...]:
        """Returns what a program depends on of a parameter group: everything but the learning rate."""
        ...

    def initial(self, group: Group, parameter: torch.Tensor, *, shapes_only: bool = False) -> State:
        """Returns the state that the next update of a parameter starts from, without the number of steps.

        It is torch's own where the optimizer has it, else what torch would make at the first step.
        """
        ...

    def emit(self, group: Group, parameter: torch.Tensor) -> Emit:
        """Returns what adds the update of parameters like this one."""
        ...

    def steps(self, group: Group, parameter: torch.Tensor) -> int:
        """Returns how many updates a parameter has had, as far as it matters to the next one."""
        ...

    @property
    def counts(self) -> bool:
        """Whether torch keeps the number of steps per parameter."""
        ...


def _sgd(group: Group) -> Attributes:
    return {
        "momentum": float(group["momentum"]),
        "dampening": float(group["dampening"]),
        "weight_decay": float(group["weight_decay"]),
        "nesterov": bool(group["nesterov"]),
    }


def _adam(group: Group) -> Attributes:
    beta1, beta2 = group["betas"]
    return {
        "beta1": float(beta1),
        "beta2": float(beta2),
        "epsilon": float(group["eps"]),
        "weight_decay": float(group["weight_decay"]),
        "decoupled": bool(group["decoupled_weight_decay"]),
    }


@dataclass(frozen=True)
class Fused:
    """An update that is one op of the core, whose lr and step are float32.

    Attributes:
        op: the core's op.
        attributes: of one parameter group; lr is no attribute but an input, so that it may change every step.
        names: of the tensors in torch's optimizer state, in the order of the op's inputs.
        counts: whether torch keeps the number of steps per parameter.
    """

    optimizer: Optimizer
    op: str
    attributes: Callable[[Group], Attributes]
    names: Callable[[Group], tuple[str, ...]]
    counts: bool

    def settings(self, group: Group) -> tuple[Any, ...]:
        return (*self.attributes(group).items(), bool(group["maximize"]))

    def initial(self, group: Group, parameter: torch.Tensor, *, shapes_only: bool = False) -> State:
        found = self.optimizer.state.get(parameter, {})
        like = parameter.to("meta") if shapes_only else parameter
        return {n: torch.zeros_like(like) if found.get(n) is None else found[n] for n in self.names(group)}

    def emit(self, group: Group, parameter: torch.Tensor) -> Emit:
        attributes, ascends = dict(self.attributes(group)), bool(group["maximize"])

        def emit(inliner: Inliner, operands: Operands) -> Sequence[Value]:
            b = inliner.builder
            gradient = b.op("Neg", operands.gradient) if ascends else operands.gradient
            slots: list[Value | None] = [*operands.state] or [None]
            inputs = (operands.parameter, gradient, *slots, operands.lr, operands.step)
            return b.ops(self.op, inputs, (True,) * (1 + len(operands.state)), attributes)

        return emit

    def steps(self, group: Group, parameter: torch.Tensor) -> int:
        state = self.optimizer.state.get(parameter, {})
        if self.counts:
            return int(state.get(STEP, 0))
        return int(any(state.get(name) is not None for name in self.names(group)))


class Traced:
    """Torch's own formula of an update, traced once for each kind of parameter; lr and step are float64."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self._formulas: dict[Any, fx.GraphModule] = {}
        first = optimizer.param_groups[0]
        self.counts = STEP in self._state(first, first["params"][0], True)

    def settings(self, group: Group) -> tuple[Any, ...]:
        return tuple((name, repr(group[name])) for name in self.optimizer.defaults if name not in _NOT_SETTINGS)

    def initial(self, group: Group, parameter: torch.Tensor, *, shapes_only: bool = False) -> State:
        state = self._state(group, parameter, shapes_only)
        strange = [name for name, value in state.items() if not isinstance(value, torch.Tensor)]
        if strange:
            name = type(self.optimizer).__name__
            raise UnsupportedError(f"{name} keeps {strange[0]!r}, which is no tensor", op="train_step")
        return {name: value for name, value in state.items() if name != STEP}

    def _state(self, group: Group, parameter: torch.Tensor, shapes_only: bool) -> dict[str, Any]:
        found = self.optimizer.state.get(parameter)
        if found:
            return dict(found)
        return initial_state(self.optimizer, group, parameter.to("meta") if shapes_only else parameter)

    def emit(self, group: Group, parameter: torch.Tensor) -> Emit:
        state = self.initial(group, parameter)
        like = [(t.dtype, t.shape, t.stride()) for t in (parameter, *state.values())]
        key = (self.settings(group), *like)
        formula = self._formulas.get(key)
        if formula is None:
            formula = self._formulas[key] = trace_update(self.optimizer, group, parameter, state, counts=self.counts)

        def emit(inliner: Inliner, operands: Operands) -> Sequence[Value]:
            scalars = (operands.lr, operands.step)
            return inliner.inline(formula, (operands.parameter, operands.gradient, *scalars, *operands.state))

        return emit

    def steps(self, group: Group, parameter: torch.Tensor) -> int:
        return int(self.optimizer.state.get(parameter, {}).get(STEP, 0))


def _momentum(group: Group) -> tuple[str, ...]:
    return ("momentum_buffer",) if group["momentum"] else ()


def _fused_sgd(optimizer: Optimizer) -> Fused:
    return Fused(optimizer, "umd.SGD", _sgd, _momentum, counts=False)


def _fused_adam(optimizer: Optimizer) -> Fused:
    return Fused(optimizer, "umd.AdamW", _adam, lambda _: ("exp_avg", "exp_avg_sq"), counts=True)


FUSED: dict[type[Optimizer], Callable[[Optimizer], Fused]] = {SGD: _fused_sgd, Adam: _fused_adam, AdamW: _fused_adam}
"""The optimizers that one op of the core each stands for."""


def _is_plain(optimizer: Optimizer) -> bool:
    """Returns whether the core's op does all that is asked: no amsgrad, and float32's precision of lr suffices."""
    groups = optimizer.param_groups
    doubles = any(p.dtype is torch.float64 for group in groups for p in group["params"])
    return not doubles and not any(group.get("amsgrad") for group in groups)


def rule_of(optimizer: Optimizer) -> Rule:
    """Returns how an optimizer updates.

    Raises:
        UnsupportedError: it is not one of torch's kind, or an option of it is not there.
    """
    name = type(optimizer).__name__
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise UnsupportedError("differentiable=True is not there", op="train_step")
    if step_hooks(optimizer):
        raise UnsupportedError(f"{name} has hooks around its step, which would not run", op="train_step")
    fused = FUSED.get(type(optimizer))
    if fused is not None and _is_plain(optimizer):
        return fused(optimizer)
    if not hasattr(optimizer, "_init_group"):
        reason = f"optimizer {name} does not say what state it starts from; those of torch.optim do"
        raise UnsupportedError(reason, op="train_step")
    if type(optimizer) is SGD and any(g["momentum"] and g["dampening"] for g in optimizer.param_groups):
        raise UnsupportedError("dampening of float64 parameters is not there", op="train_step")
    return Traced(optimizer)
