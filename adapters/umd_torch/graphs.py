"""From torch's graph of ATen calls to a Graph of umd's ops."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx

from umd_core.errors import InternalError, UmdError, UnsupportedError
from umd_core.ir import Graph, TensorDesc
from umd_torch.builder import SEED, Builder, Promise, Value, from_torch
from umd_torch.emissions import Emission, Emissions
from umd_torch.layouts import Layout, is_dense, layout_of
from umd_torch.lowering import lowering_of
from umd_torch.mutations import Replay, joined_of, replay_of
from umd_torch.nodes import TORCH, Facts, holds_keys, promises, saves_keys, source_line
from umd_torch.symbols import Bound, evaluate, is_symbolic
from umd_torch.torch_private import map_aggregate, unset_fake_temporarily

MAX_CONSTANT = 1 << 16
"""Bytes up to which a tensor that the graph holds becomes part of the program."""
KEYS = Layout(torch.int64, (2,), (1,))
"""Seed and offset as one tensor: what a graph has for torch's state of the generator."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An input of the program: the graph's placeholder number `position`, or a tensor that the graph holds.

    One that `draws` is the seed of the program's random numbers, another in each call.
    """

    position: int
    layout: Layout
    tensor: torch.Tensor | None = None
    draws: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """One thing that the graph returns.

    `output` is the number of the program's output, `argument` that of a placeholder that is returned as it is; where
    both are -1 it is `value` (None or a size). `joined` is how the host can make the output from less than the whole.
    """

    output: int = -1
    argument: int = -1
    value: Any = None
    layout: Layout | None = None
    joined: Replay | None = None


@dataclass(frozen=True, slots=True)
class Mutation:
    """A placeholder that the graph overwrites: number `position` becomes `value`.

    `replay` does the same on the host from less than the whole tensor, where that is possible.
    """

    position: int
    name: str
    value: Value
    layout: Layout
    replay: Replay | None = None


@dataclass(slots=True)
class Lowered:
    """A graph of umd's ops, and how it fits what torch calls; `descs` says what its values are."""

    graph: Graph
    descs: Mapping[str, TensorDesc] = field(default_factory=dict)
    arguments: list[Argument] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    mutations: list[Mutation] = field(default_factory=list)


class Lowering:
    """Lowers one graph for one set of sizes. `emissions` is what was kept when it was lowered for others."""

    def __init__(self, module: fx.GraphModule, bound: Bound, emissions: Emissions | None = None) -> None:
        self._module, self._bound = module, bound
        self._emissions = emissions or Emissions()
        self._keeps = emissions is not None
        graph = Graph(type(module).__name__)
        graph.kin = None if emissions is None else emissions.kin
        self._builder = Builder(graph, self._seed, self._emissions.interned)
        self._lowered = Lowered(graph, self._builder.descs)
        self._values: dict[fx.Node, Any] = {}
        self._placeholders: dict[fx.Node, int] = {}
        self._outputs: dict[tuple[str, TensorDesc], int] = {}

    def keep_open(self, open_sizes: bool) -> None:
        """Says whether the graph has to have the same ops for other sizes."""
        self._builder.open_sizes = open_sizes

    def run(self) -> Lowered:
        """Returns the whole graph.

        Raises:
            UmdError: a node cannot be lowered; the error names it.
        """
        for node in self._module.graph.nodes:
            _STEPS[node.op](self, node)
        return self._lowered

    def placeholder(self, node: fx.Node) -> None:
        """Declares an input, or notes a size."""
        position = self._placeholders[node] = len(self._placeholders)
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            if node.users:
                self._input(node, KEYS if holds_keys(node) else self._layout(node), position)
        elif value is not None and not isinstance(value, (int, float)) and not is_symbolic(value):
            raise UnsupportedError(f"an argument is a {type(value).__name__}", op=node.name)
        else:
            self._values[node] = evaluate(value, self._bound)

    def _input(self, node: fx.Node, layout: Layout, position: int, tensor: torch.Tensor | None = None) -> None:
        self._values[node] = self._builder.input(node.name, layout.desc)
        self._lowered.arguments.append(Argument(position, layout, tensor))

    def _layout(self, node: fx.Node) -> Layout:
        return self._emissions.layout(node, self._bound)

    def _seed(self) -> Value:
        """Declares the input that holds the seed of the program's random numbers."""
        layout = Layout(torch.int64, (), ())
        self._lowered.arguments.append(Argument(-1, layout, draws=True))
        return self._builder.input(SEED, layout.desc)

    def attribute(self, node: fx.Node) -> None:
        """Takes in a tensor that the graph holds."""
        tensor = operator.attrgetter(str(node.target))(self._module)
        if not isinstance(tensor, torch.Tensor):
            self._values[node] = tensor
            return
        with unset_fake_temporarily():
            tensor = tensor.detach()
            elements = to_numpy(tensor) if tensor.numel() * tensor.element_size() <= MAX_CONSTANT else None
        if elements is None:
            self._input(node, layout_of(tensor, {}), -1, tensor)
        else:
            self._values[node] = self._builder.constant(elements)

    def call(self, node: fx.Node) -> None:
        """Lowers a call."""
        try:
            facts = self._emissions.facts(node)
            if facts.kind == "op":
                self._values[node] = self.emit(node, facts)
                return
        except UmdError as error:
            raise located(error, node) from error
        if facts.kind == "item":
            self._values[node] = self._values[node.args[0]][node.args[1]]  # type: ignore[index]  # an index by name
        elif facts.kind == "number":
            self._values[node] = evaluate(node.meta["val"], self._bound)
        else:
            self.overwrite(node)

    def overwrite(self, node: fx.Node) -> None:
        """Notes that a placeholder gets another value; the node itself stands for the placeholder's tensor."""
        target, source = node.args[:2]
        value = self._values.get(source)  # type: ignore[arg-type]  # a node
        if not isinstance(target, fx.Node) or target not in self._placeholders or not isinstance(value, Value):
            raise located(UnsupportedError("it overwrites what is no input"), node)
        position = self._placeholders[node] = self._placeholders[target]
        self._values[node] = value
        if value.name == target.name:
            return
        layout = self._layout(target)
        replay = replay_of(target, source, self._values, self._placeholders, self._bound)  # type: ignore[arg-type]  # nodes
        self._lowered.mutations.append(Mutation(position, target.name, value, layout, replay))

    def emit(self, node: fx.Node, facts: Facts) -> Any:
        """Returns what a node's emitter returns, and notes it for other sizes.

        Raises:
            UmdError: there is no emitter, or it refuses its arguments.
        """
        builder, known = self._builder, self._emissions.of.get(node)
        promised = facts.promises(self._bound)
        leaves = tuple(map(self._argument, facts.leaves))
        builder.at(node.name, facts.source, promised, row_major=facts.row_major)
        if known is not None and known.fits(leaves, promised) and builder.repeat(known.record):
            return known.result
        if not self._keeps:
            return self._emitted(node, promised)
        builder.begin()
        result = self._emitted(node, promised)
        self._emissions.of[node] = Emission(leaves, promised, builder.end(), result)
        return result

    def _emitted(self, node: fx.Node, promised: tuple[Promise, ...]) -> Any:
        """Returns what a node's emitter returns, checked against what torch promised."""
        if isinstance(node.meta.get("val"), torch.Tensor) and 0 in promised[0].shape:
            return self._builder.full(0, *promised[0])
        emitter = lowering_of(node.target)
        if emitter is None:
            raise UnsupportedError("there is no lowering for it")
        args, kwargs = map_aggregate((node.args, node.kwargs), self._argument)
        result = emitter(self._builder, *args, **kwargs)
        for value, promise in zip((result,) if isinstance(result, Value) else result, promised, strict=False):
            if value is not None and (value.shape != promise.shape or value.dtype is not promise.dtype):
                raise InternalError(
                    f"{node.target} became {value.dtype}{list(value.shape)}, torch promised "
                    f"{promise.dtype}{list(promise.shape)}"
                )
        return result

    def _argument(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            return self._values[value]
        return evaluate(value, self._bound)

    def output(self, node: fx.Node) -> None:
        """Declares what the graph returns."""
        returned = node.args[0]
        for item in returned if isinstance(returned, (tuple, list)) else (returned,):
            self._lowered.results.append(self._result(item))

    def _result(self, item: Any) -> Result:
        if not isinstance(item, fx.Node):
            return Result(value=item)
        if item in self._placeholders:
            return Result(argument=self._placeholders[item])
        value = self._values[item]
        if isinstance(value, tuple) and not isinstance(value, Value):
            raise UnsupportedError(f"result {item.name!r} is a tuple of tensors")
        if not isinstance(value, Value):
            return Result(value=value)
        layout = KEYS if saves_keys(item) else self._layout(item)
        key = (value.name, layout.desc)
        number = self._outputs.get(key)
        if number is None:
            number = self._outputs[key] = len(self._lowered.graph.outputs)
            self._lowered.graph.output(value.name, layout.desc)
        joined = joined_of(item, self._values, self._placeholders, self._bound)
        return Result(output=number, layout=layout, joined=joined)


_STEPS: Mapping[str, Callable[[Lowering, fx.Node], None]] = {
    "placeholder": lambda lowering, node: lowering.placeholder(node),
    "get_attr": lambda lowering, node: lowering.attribute(node),
    "call_function": lambda lowering, node: lowering.call(node),
    "output": lambda lowering, node: lowering.output(node),
}


def located(error: UmdError, node: fx.Node) -> UmdError:
    """Returns the error with the node, its op and its source line, in facts and message."""
    source = source_line(node)
    where = f"node {node.name!r}" + (f" from {source}" if source else "")
    if isinstance(error, UnsupportedError):
        reason = error.facts().get("reason") or str(error)
        inner = error.facts()
        found: UmdError = UnsupportedError(
            f"{reason} ({where})",
            op=str(node.target),
            kernel=inner.get("kernel", ""),
            types=inner.get("types", ()),
            device=inner.get("device", ""),
        )
        found.at(why=reason)
    else:
        error.args = (f"{error} ({where})",)
        found = error
    return found.at(node=node.name, source=source)


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Returns a copy of a CPU tensor's elements, bfloat16 included."""
    dtype = from_torch(tensor.dtype).numpy
    if tensor.dtype is torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().copy().view(dtype)
    return tensor.contiguous().numpy().copy()


def lower(
    module: fx.GraphModule,
    bound: Bound | None = None,
    *,
    open_sizes: bool = False,
    emissions: Emissions | None = None,
) -> Lowered:
    """Returns the graph of umd's ops for one set of sizes.

    With `open_sizes` the graph of another set has the same ops: what could be computed from the sizes stays an op.
    `emissions` is the graph's own, given each time that it is lowered; what sizes do not change is then not done again.

    Raises:
        UmdError: a node cannot be lowered; the error names the node, its op and the line of the model.
    """
    with contextlib.nullcontext() if emissions is None else emissions.lowering():
        lowering = Lowering(module, bound or {}, emissions)
        lowering.keep_open(open_sizes)
        return lowering.run()


__all__ = [
    "TORCH", "Argument", "Layout", "Lowered", "Lowering", "Mutation", "Result", "is_dense", "layout_of", "located",
    "lower", "promises", "source_line", "to_numpy",
]  # fmt: skip
