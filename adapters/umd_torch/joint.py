"""A whole training step as one Graph: forward, backward and update."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from traceback import extract_tb
from typing import Any

import torch
from torch import fx
from torch.fx import traceback
from torch.overrides import TorchFunctionMode

from umd_core.dtypes import float32, float64
from umd_core.errors import ShapeError, UnsupportedError
from umd_core.ir import Graph, TensorDesc
from umd_torch.builder import Builder, Value
from umd_torch.graphs import TORCH, Lowering
from umd_torch.layouts import Layout, layout_of
from umd_torch.lowering.common import accumulating
from umd_torch.optimizers import Emit, Operands
from umd_torch.torch_private import (
    DEPENDS_ON_DATA,
    aot_export_joint_with_descriptors,
    compiling,
    descriptors,
    refresh_recurrent_layers,
)
from umd_torch.tracing import decompositions, tracing

LossFunction = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True)
class Update:
    """How one parameter is updated.

    Attributes:
        parameter: name of the program's input that holds it.
        state: names of the inputs that hold the optimizer's state of it, and how each lies.
        lr, step: names of the 0-d inputs that hold the learning rate and the number of this update.
        emit: adds the update to the graph.
    """

    parameter: str
    state: dict[str, Layout]
    lr: str
    step: str
    emit: Emit


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


NUMBER = Layout(torch.float64, (), ())
"""How a learning rate, or the number of a step, lies."""


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
    """Returns forward and backward as one graph of ATen calls, whose placeholders and results say what they are.

    Raises:
        UnsupportedError: a tensor is used that is neither the module's nor in the batch, or what is computed depends on
            what tensors hold.
    """
    contexts = (torch.enable_grad(), tracing(), compiling(), traceback.preserve_node_meta())
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        try:
            joint = aot_export_joint_with_descriptors(stack, objective, tuple(batch), decompositions=decompositions())
        except AssertionError as error:
            if "FakeTensor" not in str(error):
                raise
            reason = "the model or the loss uses a tensor that is no parameter, no buffer and not in the batch"
            raise UnsupportedError(f"{reason}; register it as a buffer, or pass it", op="train_step") from error
        except DEPENDS_ON_DATA as error:
            reason = "a shape, or a branch of the model's or the loss's own code, depends on what a tensor holds"
            raise UnsupportedError(reason, op="train_step").at(source=_raised_at(error)) from error
        finally:
            refresh_recurrent_layers(objective)
    return joint.graph_module


def _raised_at(error: BaseException) -> str:
    """Returns "file:line" of the innermost frame that is neither torch's nor the adapter's, "" where there is none."""
    frames = extract_tb(error.__traceback__)
    folder = os.path.dirname(__file__)
    own = [frame for frame in frames if not frame.filename.startswith((TORCH, folder))]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


class StepLowering(Lowering):
    """Lowers a joint graph and appends the updates.

    `names` gives each parameter and buffer of the module the name of its input; a tied one has one name. `clip_norm` is
    what the norm of all gradients together is at most, None for any.
    """

    def __init__(
        self, module: fx.GraphModule, names: dict[str, str], updates: dict[str, Update], clip_norm: float | None
    ) -> None:
        super().__init__(module, {})
        self._names, self._updates, self._clip_norm = names, updates, clip_norm
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
        if self._clip_norm is not None:
            self._clip(self._clip_norm)
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

    def _clip(self, most: float) -> None:
        """Scales the gradients of the parameters that are updated as `torch.nn.utils.clip_grad_norm_` does."""
        b = self._builder
        b.at("clip_norm", "", ())
        gradients = [self._gradients[name] for name in self.step.updated]
        wide = [b.cast(g, accumulating(g.dtype)) for g in gradients]
        dtype = float64 if any(g.dtype is float64 for g in wide) else float32
        squares = [b.cast(b.op("ReduceSum", b.op("Mul", g, g), keepdims=0), dtype) for g in wide]
        total = b.op("Sqrt", functools.reduce(lambda x, y: b.op("Add", x, y), squares))
        factor = b.op("Div", b.scalar(most, dtype), b.op("Add", total, b.scalar(1e-6, dtype)))
        factor = b.op("Min", factor, b.scalar(1.0, dtype))
        for name, gradient in zip(self.step.updated, gradients, strict=True):
            self._gradients[name] = b.op("Mul", gradient, b.cast(factor, gradient.dtype))

    def _update(self, update: Update, gradient: Value) -> list[tuple[str, Value]]:
        """Returns the new parameter and state, by the names of the inputs that they overwrite."""
        self._builder.at(f"update of {update.parameter}", "", ())
        kept = self._descs[update.parameter]
        parameter = Value(update.parameter, kept.dtype, kept.shape)
        state = tuple(self._named(name, layout) for name, layout in update.state.items())
        scalars = (self._scalar(update.lr), self._scalar(update.step))
        results = update.emit(self, Operands(parameter, gradient, state, *scalars))
        changed = zip((update.parameter, *update.state), results, strict=True)
        return [(name, value) for name, value in changed if value.name != name]

    def inline(self, module: fx.GraphModule, inputs: Sequence[Value]) -> list[Value]:
        """Returns the results of a graph of ATen calls on these inputs, its nodes added to this graph."""
        given = iter(inputs)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                self._values[node] = next(given)
            elif node.op == "get_attr":
                self.attribute(node)
            elif node.op == "call_function":
                self.call(node)
        results: Any = module.graph.output_node().args[0]
        return [self._values[item] for item in results]

    @property
    def builder(self) -> Builder:
        """The ops of the graph under construction."""
        return self._builder

    def _scalar(self, name: str) -> Value:
        return self._named(name, NUMBER)
