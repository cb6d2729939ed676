"""Torch's module_db and optim_db as problems: layers with their parameters, and steps of optimizers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tests.torch.opinfo.problems import Problem, problem_of, seed, spread

STEPS = 3


def layers() -> dict[str, Any]:
    """Returns the entries of module_db that take float32, by name."""
    from torch.testing._internal.common_modules import module_db

    return {info.name: info for info in module_db if torch.float32 in info.dtypes}


def layer_problems(info: Any, count: int | None) -> Iterator[Problem | Exception]:
    """Yields the problems of an entry's inputs, or `count` of them, in training and in evaluation.

    What torch cannot pose is the error that says why.
    """
    for training in (True, False):
        seed()
        make = info.module_inputs_func
        given = list(make(info, device="cpu", dtype=torch.float32, requires_grad=True, training=training))
        for place in itertools.islice(spread(len(given)), count):
            try:
                yield _layer_problem(info, given[place], training)
            except Exception as error:  # noqa: BLE001  # torch refuses its own input
                yield error


def _layer_problem(info: Any, entry: Any, training: bool) -> Problem:
    seed()
    module: nn.Module = info.module_cls(*entry.constructor_input.args, **entry.constructor_input.kwargs)
    module.train(training)
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def function(values: dict[str, Tensor], arguments: Any, keywords: Any) -> Any:
        return functional_call(module, values, arguments, keywords)

    return problem_of(function, (state, entry.forward_input.args, entry.forward_input.kwargs))


# optimizers


def optimizers() -> dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]]:
    """Returns the classes and settings of optim_db whose step needs nothing but dense gradients, by name."""
    from torch.testing._internal.common_optimizers import optim_db

    found: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {}
    for info in optim_db:
        if info.step_requires_closure or info.only_supports_sparse_grads:
            continue
        kind: Any = info.optim_cls
        for entry in info.optim_inputs_func(device="cpu"):
            found[f"{kind.__name__} {entry.desc}"] = (kind, dict(entry.kwargs))
    return found


def stepped(
    kind: type[torch.optim.Optimizer], settings: dict[str, Any], wrap: Callable[[Callable[[], Any]], Callable[[], Any]]
) -> list[Tensor]:
    """Returns two parameters after STEPS steps along gradients that are the same each time."""
    seed()
    parameters = [nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(5, 4))]
    optimizer: Any = kind(parameters, **settings)

    def update() -> None:
        optimizer.step()

    step = wrap(update)
    for _ in range(STEPS):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        step()
    return [p.detach() for p in parameters]
