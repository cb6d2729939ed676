"""Torch's optimizers as ops of the core: which op, which attributes, which state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from umd_core.errors import UnsupportedError

Group = Mapping[str, Any]
Attributes = dict[str, float | bool]


@dataclass(frozen=True, slots=True)
class Rule:
    """How one optimizer updates.

    Attributes:
        op: the core's op.
        attributes: of one parameter group; lr is no attribute but an input, so that it may change every step.
        state: names of the tensors in torch's optimizer state, in the order of the op's inputs.
        counts: whether torch keeps the number of steps per parameter.
    """

    op: str
    attributes: Callable[[Group], Attributes]
    state: Callable[[Group], tuple[str, ...]]
    counts: bool


def _sgd(group: Group) -> Attributes:
    return {
        "momentum": float(group["momentum"]),
        "dampening": float(group["dampening"]),
        "weight_decay": float(group["weight_decay"]),
        "nesterov": bool(group["nesterov"]),
    }


def _adam(group: Group) -> Attributes:
    if group["amsgrad"]:
        raise UnsupportedError("amsgrad=True is not there", op="train_step")
    beta1, beta2 = group["betas"]
    return {
        "beta1": float(beta1),
        "beta2": float(beta2),
        "epsilon": float(group["eps"]),
        "weight_decay": float(group["weight_decay"]),
        "decoupled": bool(group["decoupled_weight_decay"]),
    }


def _momentum(group: Group) -> tuple[str, ...]:
    return ("momentum_buffer",) if group["momentum"] else ()


_ADAM = Rule("umd.AdamW", _adam, lambda _: ("exp_avg", "exp_avg_sq"), counts=True)
RULES: dict[type[Optimizer], Rule] = {
    SGD: Rule("umd.SGD", _sgd, _momentum, counts=False),
    Adam: _ADAM,
    AdamW: _ADAM,
}
"""The optimizers that `train_step` knows."""


def rule_of(optimizer: Optimizer) -> Rule:
    """Returns how an optimizer updates.

    Raises:
        UnsupportedError: its class, or an option of it, is not there; the classes that are there are named.
    """
    rule = RULES.get(type(optimizer))
    if rule is None:
        known = ", ".join(kind.__name__ for kind in RULES)
        raise UnsupportedError(f"optimizer {type(optimizer).__name__} is not there; {known} are", op="train_step")
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            raise UnsupportedError("differentiable=True is not there", op="train_step")
        rule.attributes(group)
    return rule


def steps_taken(rule: Rule, state: Mapping[str, Any], group: Group) -> int:
    """Returns how many updates a parameter has had, as far as it matters to the next one."""
    if rule.counts:
        step = state.get("step", 0)
        return int(step.item() if isinstance(step, torch.Tensor) else step)
    return int(any(state.get(name) is not None for name in rule.state(group)))
