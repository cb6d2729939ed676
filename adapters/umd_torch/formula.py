"""An optimizer's own code as a graph: what one update makes of a parameter, its gradient and its state."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.func import functionalize
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from umd_core.errors import UnsupportedError
from umd_torch.torch_private import UNDECIDED, compiling, make_fx, plain_step
from umd_torch.tracing import decompositions, tracing

_PLAIN = {"foreach": False, "fused": False, "capturable": True}
"""How a group is set so that its update is ops on one tensor each, and numbers stay on the device."""


class Numbers(TorchFunctionMode):
    """Within the block, a factor may be a 0-d tensor where torch wants a number; one that is read stays a tensor."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "item":
            return args[0]
        keyword = _FACTORS.get(name.rstrip("_"), "")
        if not isinstance(kwargs.get(keyword), torch.Tensor):
            return func(*args, **kwargs)
        term = _TERMS[name.rstrip("_")](kwargs.pop(keyword), *args[1:])
        return (torch.Tensor.add_ if name.endswith("_") else torch.add)(args[0], term)


_FACTORS = {"add": "alpha", "sub": "alpha", "addcmul": "value", "addcdiv": "value"}
_TERMS: dict[str, Callable[..., torch.Tensor]] = {
    "add": lambda factor, x: x * factor,
    "sub": lambda factor, x: x * -factor,
    "addcmul": lambda factor, x, y: x * y * factor,
    "addcdiv": lambda factor, x, y: x / y * factor,
}


def trace_update(
    optimizer: Optimizer,
    group: Mapping[str, Any],
    parameter: torch.Tensor,
    state: Mapping[str, torch.Tensor],
    *,
    counts: bool,
) -> fx.GraphModule:
    """Returns a graph: parameter, gradient, lr, number of this update, state → new parameter, new state.

    lr and the number are 0-d float64, so that what torch computes in Python's numbers is as precise here.

    Raises:
        UnsupportedError: the optimizer decides by numbers that only the device knows.
    """
    names = list(state)

    def update(p: Any, gradient: Any, lr: Any, number: Any, *values: Any) -> tuple[Any, ...]:
        p = p.clone()
        p.grad = gradient
        own = {name: value.clone() for name, value in zip(names, values, strict=True)}
        if counts:
            own["step"] = number - 1
        clone = copy.copy(optimizer)
        plain = {key: value for key, value in _PLAIN.items() if key in group}
        clone.param_groups = [{**group, **plain, "params": [p], "lr": lr}]
        clone.state = defaultdict(dict, {p: own})
        with torch.no_grad(), Numbers():
            plain_step(clone)
        return (p, *(own[name] for name in names))

    numbers = (torch.zeros((), dtype=torch.float64) for _ in range(2))
    examples = (parameter.detach(), parameter.detach(), *numbers, *state.values())
    with tracing(), compiling():
        traced = make_fx(functionalize(update, remove="mutations_and_views"), decompositions(), tracing_mode="fake")
        try:
            return traced(*examples)
        except UNDECIDED as error:
            reason = f"{type(optimizer).__name__} decides by numbers that only the device knows"
            raise UnsupportedError(reason, op="train_step") from error
