"""Modules that move to the device or away: parameters stay the same objects, so tied weights stay tied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from umd_torch.eager.devices import NAME

Convert = Callable[[Tensor], Tensor]


def swapping(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what moves modules, which swaps tensors where a move is to the device or away from it.

    Torch would make new parameters there, one for each place where a tied one is. Between other devices nothing
    changes: swapping is refused while a graph that the module made is alive.
    """

    def move(module: nn.Module, function: Convert, recurse: bool = True) -> Any:
        future: Any = torch.__future__
        if future.get_swap_module_params_on_conversion() or not _crosses(module, function):
            return original(module, function, recurse)
        future.set_swap_module_params_on_conversion(True)
        try:
            return original(module, function, recurse)
        finally:
            future.set_swap_module_params_on_conversion(False)

    return move


def _crosses(module: nn.Module, function: Convert) -> bool:
    """Returns whether a conversion moves a module's parameters to the device or away, by what it does to nothing."""
    first = next(module.parameters(), None)
    if first is None:
        return False
    there = function(first.detach().new_empty(0))
    return (first.device.type == NAME) != (there.device.type == NAME)
