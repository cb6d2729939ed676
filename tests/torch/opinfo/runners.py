"""The ways in which a problem reaches a device: the lowering alone, all of torch.compile, or the eager device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition

from tests.torch.opinfo.problems import Problem
from umd_torch.compiled import CompiledGraph, boxed
from umd_torch.runtime import Roles
from umd_torch.session import Session
from umd_torch.tracing import decompositions, tracing

Solution = tuple[list[Tensor], list[Tensor]]
"""Results, and gradients of the inputs that want one."""
Runner = Callable[[Problem, bool], Solution]
"""`runner(problem, backward)` solves a problem on a device, where nothing may run on the CPU."""


def direct(session: Session) -> Runner:
    """Returns a runner that does what the backend does with a graph of Dynamo's: AOTAutograd, lowering, a program."""

    def compiler(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return boxed(CompiledGraph(session, gm, Roles(), strict=True))

    def run(problem: Problem, backward: bool) -> Solution:
        with tracing():
            function = aot_function(
                lambda *given: tuple(problem.function(*given)),
                fw_compiler=compiler,
                bw_compiler=compiler,
                partition_fn=min_cut_rematerialization_partition,
                decompositions=decompositions(),
            )
            return solve(function, problem, backward)

    return run


def compiled(device: str) -> Runner:
    """Returns a runner that takes the user's way: torch.compile, then backward."""

    def run(problem: Problem, backward: bool) -> Solution:
        torch._dynamo.reset()
        function = torch.compile(
            problem.function, backend="umd", options={"device": device, "strict": True}, dynamic=False
        )
        return solve(function, problem, backward)

    return run


def eager(device: str) -> Runner:
    """Returns a runner that works with tensors on the eager device, forward and backward."""
    from umd_torch.eager import connect  # it makes a device type of torch

    def run(problem: Problem, backward: bool) -> Solution:
        place = connect(device, strict=True)
        there = replace(problem, inputs=[t.to(place) for t in problem.inputs])
        results, gradients = solve(problem.function, there, backward)
        return [r.cpu() for r in results], [g.cpu() for g in gradients]

    return run


def solve(function: Callable[..., Any], problem: Problem, backward: bool) -> Solution:
    """Returns what a function gives for a problem, and with `backward` its gradients."""
    given = [t.detach().requires_grad_(backward and i in problem.sources) for i, t in enumerate(problem.inputs)]
    results = list(function(*given))
    if not backward:
        return [r.detach() for r in results], []
    gradients = torch.autograd.grad(
        [results[i] for i in problem.targets],
        [given[i] for i in problem.sources],
        [slope.to(results[i].device) for i, slope in zip(problem.targets, problem.cotangents, strict=True)],
        allow_unused=True,
        materialize_grads=True,
    )
    return [r.detach() for r in results], list(gradients)
