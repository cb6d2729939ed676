"""A whole training step as one Graph: forward, backward and update."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.fx import traceback
from torch.overrides import TorchFunctionMode

from umd_core.errors import ShapeError, UnsupportedError
from umd_core.ir import Graph, TensorDesc
from umd_torch.builder import Value
from umd_torch.graphs import TORCH, Layout, Lowering, layout_of
from umd_torch.torch_private import aot_export_joint_with_descriptors, descriptors
from umd_torch.tracing import decompositions, tracing

LossFunction = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True)
class Update:
    """How one parameter is updated.

    Attributes:
        parameter: name of the program's input that holds it.
        state: names of the inputs that hold the optimizer's state of it.
        op, attributes: the core's op.
        lr, step: names of the 0-d inputs that hold the learning rate and the number of this update.
        ascends: whether the gradient is followed rather than descended.
    """

    parameter: str
    state: tuple[str, ...]
    op: str
    attributes: dict[str, Any]
    lr: str
    step: str
    ascends: bool = False


@dataclass(slots=True)
class Step:
    """A step as a graph, before translation.

    Attributes:
        graph: its first output is the loss, the others overwrite inputs.
        batch: for each part of the batch that the graph reads, by position, how it lies; its input is `batch_input`.
        updated: names of the parameters that have a gradient.
        aliases: names of the inputs that the outputs after the loss overwrite.
    """

    graph: Graph
    batch: dict[int, Layout] = field(default_factory=dict)
    updated: tuple[str, ...] = ()
    aliases: list[str] = field(default_factory=list)


def batch_input(position: int) -> str:
    """Returns the name of the input that holds a part of the batch; no parameter's name has a colon."""
    return f"batch:{position}"


class Lines(TorchFunctionMode):
    """Notes, while tracing, the line of the model's code that each node comes from."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        frame = inspect.currentframe()
        while frame is not None and frame.f_code.co_filename.startswith((TORCH, __file__)):
            frame = frame.f_back
        if frame is None:
            return func(*args, **(kwargs or {}))
        traceback.current_meta["stack_trace"] = f'File "{frame.f_code.co_filename}", line {frame.f_lineno}'
        try:
            return func(*args, **(kwargs or {}))
        finally:
            traceback.current_meta.pop("stack_trace", None)


class Objective(torch.nn.Module):
    """Model and loss as one module: the last argument is the target, what comes before goes to the model."""

    def __init__(self, model: torch.nn.Module, loss: LossFunction) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *batch: torch.Tensor) -> tuple[torch.Tensor]:
        """Returns the loss.

        Raises:
            ShapeError: it is not a single number.
        """
        with Lines():
            value = self.loss(self.model(*batch[:-1]), batch[-1])
        if value.dim():
            raise ShapeError("train_step", "the loss is not a single number", input="loss", shapes=[value.shape])
        return (value,)


def trace(objective: Objective, batch: Sequence[torch.Tensor]) -> fx.GraphModule:
    """Returns forward and backward as one graph of ATen calls, whose placeholders and results say what they are."""
    with tracing(), contextlib.ExitStack() as stack, traceback.preserve_node_meta():
        joint = aot_export_joint_with_descriptors(stack, objective, tuple(batch), decompositions=decompositions())
    return joint.graph_module


class StepLowering(Lowering):
    """Lowers a joint graph and appends the updates.

    `names` gives each parameter and buffer of the module the name of its input; a tied one has one name.
    """

    def __init__(self, module: fx.GraphModule, names: dict[str, str], updates: dict[str, Update]) -> None:
        super().__init__(module, {})
        self._names, self._updates = names, updates
        self._descs: dict[str, TensorDesc] = {}
        self._gradients: dict[str, Value] = {}
        self.step = Step(self._lowered.graph)
        self.loss_dtype = torch.float32

    def placeholder(self, node: fx.Node) -> None:
        """Declares an input by what it means."""
        position = self._placeholders[node] = len(self._placeholders)
        meaning = node.meta["desc"]
        if isinstance(meaning, descriptors.TangentAOTInput):
            layout = layout_of(node.meta["val"], {})
            desc = layout.desc
            self._values[node] = self._builder.full(1, desc.dtype, desc.shape)
        elif isinstance(meaning, (descriptors.ParamAOTInput, descriptors.BufferAOTInput)):
            self._values[node] = self._named(self._names[meaning.target], layout_of(node.meta["val"], {}))
        elif isinstance(meaning, descriptors.PlainAOTInput):
            layout = layout_of(node.meta["val"], {})
            if node.users:
                self._values[node] = self._named(batch_input(meaning.idx), layout)
                self.step.batch[meaning.idx] = layout
        else:
            raise UnsupportedError(f"input {position} is {meaning.expr()}", op="train_step")

    def _named(self, name: str, layout: Layout) -> Value:
        desc = self._descs.get(name)
        if desc is None:
            desc = self._descs[name] = layout.desc
            return self._builder.input(name, desc)
        return Value(name, desc.dtype, desc.shape)

    def output(self, node: fx.Node) -> None:
        """Declares the loss, the buffers that the model changed and the parameters that the optimizer changed."""
        graph = self._lowered.graph
        changed: list[tuple[str, Value]] = []
        for item, meaning in zip(node.args[0], node.meta["desc"], strict=True):  # type: ignore[arg-type]  # one tuple
            if item is None:
                continue
            value = self._values[item]
            if isinstance(meaning, descriptors.PlainAOTOutput):
                graph.output(value.name, TensorDesc(value.dtype, value.shape))
                self.loss_dtype = item.meta["val"].dtype
            elif isinstance(meaning, descriptors.InputMutationAOTOutput):
                changed.append((self._target(meaning.mutated_input), value))
            elif isinstance(meaning, descriptors.GradAOTOutput):
                self._add_gradient(meaning.grad_of, value)
            else:
                raise UnsupportedError(f"a result is {meaning.expr()}", op="train_step")
        self.step.updated = tuple(name for name in self._updates if name in self._gradients)
        for name in self.step.updated:
            changed += self._update(self._updates[name], self._gradients[name])
        for name, value in changed:
            if name in self.step.aliases:
                raise UnsupportedError(f"{name!r} is changed by the model and by the optimizer", op="train_step")
            graph.output(value.name, self._descs[name], alias=name)
            self.step.aliases.append(name)

    def _target(self, meaning: Any) -> str:
        if isinstance(meaning, (descriptors.ParamAOTInput, descriptors.BufferAOTInput)):
            return self._names[meaning.target]
        raise UnsupportedError(f"the model changes {meaning.expr()} in place", op="train_step")

    def _add_gradient(self, meaning: Any, value: Value) -> None:
        if not isinstance(meaning, descriptors.ParamAOTInput):
            return
        name = self._names[meaning.target]
        before = self._gradients.get(name)
        self._gradients[name] = value if before is None else self._builder.op("Add", before, value)

    def _update(self, update: Update, gradient: Value) -> list[tuple[str, Value]]:
        """Returns the new parameter and state, by the names of the inputs that they overwrite."""
        self._builder.at(f"update of {update.parameter}", "", ())
        kept = self._descs[update.parameter]
        parameter = Value(update.parameter, kept.dtype, kept.shape)
        if update.ascends:
            gradient = self._builder.op("Neg", gradient)
        state = []
        for name in update.state:
            self._descs[name] = kept
            state.append(self._builder.input(name, kept))
        scalars = [self._scalar(update.lr), self._scalar(update.step)]
        slots: list[Value | None] = [*state] or [None]
        inputs = (parameter, gradient, *slots, *scalars)
        results = self._builder.ops(update.op, inputs, (True,) * (1 + len(state)), dict(update.attributes))
        return list(zip((update.parameter, *update.state), results, strict=True))

    def _scalar(self, name: str) -> Value:
        return self._named(name, Layout(torch.float32, (), ()))
