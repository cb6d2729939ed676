"""OpInfo's samples as problems: a function of tensors, what torch's CPU gives for it, and what it gives backward."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Function = Callable[..., list[Tensor]]


def tensors_of(tree: Any) -> list[Tensor]:
    """Returns the tensors in nested containers, in order."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


@dataclass(slots=True)
class Problem:
    """A function of tensors, and what torch makes of it.

    Attributes:
        function: takes the inputs and returns every tensor of the result, then each input that it changed in place.
        inputs: what it is called with; none is changed.
        wanted: what it returns on torch's CPU.
        sources: positions of the inputs that a gradient is wanted of.
        targets: positions of the results that have a gradient.
        cotangents: the gradients of the results at `targets`.
        gradients: those of the inputs at `sources`, on torch's CPU; zeros where an input has no part in the results.
    """

    function: Function
    inputs: list[Tensor]
    wanted: list[Tensor] = field(default_factory=list)
    sources: tuple[int, ...] = ()
    targets: tuple[int, ...] = ()
    cotangents: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)

    @property
    def backward(self) -> bool:
        """Whether there is a gradient to compare."""
        return bool(self.sources and self.targets)


def problem_of(function: Callable[..., Any], arguments: Any) -> Problem:
    """Returns the problem of a call; `arguments` is any tree of tensors and other things."""
    leaves, spec = pytree.tree_flatten(arguments)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    changed: list[int] = []

    def call(*tensors: Tensor) -> list[Tensor]:
        given = list(leaves)
        own = [t.clone(memory_format=torch.preserve_format) for t in tensors]
        for place, tensor in zip(places, own, strict=True):
            given[place] = tensor
        results = tensors_of(function(*pytree.tree_unflatten(given, spec)))
        return results + [own[i] for i in changed]

    inputs = [leaves[i] for i in places]
    changed += _changed(function, leaves, spec, places)
    problem = Problem(call, [t.detach() for t in inputs])
    _solve(problem, [i for i, t in enumerate(inputs) if t.requires_grad])
    return problem


def _changed(function: Callable[..., Any], leaves: list[Any], spec: Any, places: list[int]) -> list[int]:
    """Returns which of the tensors the function writes to."""
    given = list(leaves)
    for place in places:
        given[place] = leaves[place].detach().clone()
    before = [given[i]._version for i in places]
    seed()
    with torch.no_grad():
        function(*pytree.tree_unflatten(given, spec))
    return [i for i, (place, version) in enumerate(zip(places, before, strict=True)) if given[place]._version > version]


def cotangent(result: Tensor) -> Tensor:
    """Returns numbers between -1 and 1 that are not all alike, of a result's shape and type."""
    ramp = torch.arange(result.numel(), dtype=torch.float64).reshape(result.shape)
    return torch.sin(ramp + 1).to(result.dtype)


def _solve(problem: Problem, sources: Sequence[int]) -> None:
    given = [t.detach().requires_grad_(i in sources) for i, t in enumerate(problem.inputs)]
    seed()
    results = problem.function(*given)
    problem.wanted = [r.detach() for r in results]
    problem.targets = tuple(i for i, r in enumerate(results) if r.requires_grad)
    problem.sources = tuple(sources)
    if not problem.backward:
        return
    problem.cotangents = [cotangent(results[i].detach()) for i in problem.targets]
    problem.gradients = list(
        torch.autograd.grad(
            [results[i] for i in problem.targets],
            [given[i] for i in sources],
            problem.cotangents,
            allow_unused=True,
            materialize_grads=True,
        )
    )


def exact(problem: Problem) -> Problem:
    """Returns the problem with every float32 input in float64."""
    inputs = [t.double() if t.dtype is torch.float32 else t for t in problem.inputs]
    wider = Problem(problem.function, inputs)
    _solve(wider, problem.sources)
    return wider


# the database


def name_of(entry: Any) -> str:
    """Returns an entry's name with its variant, as "std.unbiased"."""
    return f"{entry.name}.{entry.variant_test_name}" if entry.variant_test_name else str(entry.name)


def entries() -> dict[str, Any]:
    """Returns the entries of op_db that take float32 on the CPU, by name."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {name_of(entry): entry for entry in op_db if torch.float32 in entry.supported_dtypes("cpu")}


def seed() -> None:
    """Makes every generator start anew."""
    random.seed(0)
    np.random.seed(0)  # what torch's samples draw from
    torch.manual_seed(0)


def spread(count: int) -> Iterator[int]:
    """Yields the numbers below `count`, each start of them spread over all: first, last, middle, quarters, …"""
    given = set()
    for parts in (1 << level for level in range(count.bit_length() + 1)):
        for part in range(parts + 1):
            place = part * (count - 1) // parts
            if count and place not in given:
                given.add(place)
                yield place


def samples(entry: Any, count: int | None) -> list[Any]:
    """Returns an entry's samples in float32, or `count` of them, spread over all; the same ones each time."""
    seed()
    found = list(entry.sample_inputs("cpu", torch.float32, requires_grad=entry.supports_autograd))
    return [found[i] for i in itertools.islice(spread(len(found)), count)]


def problem(entry: Any, sample: Any) -> Problem:
    """Returns the problem that a sample poses."""

    def function(arguments: Any, keywords: Any) -> Any:
        return sample.output_process_fn_grad(entry(*arguments, **keywords))

    return problem_of(function, ((sample.input, *sample.args), sample.kwargs))
