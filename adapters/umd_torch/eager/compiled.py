"""Compiled graphs over tensors of the device: one program that reads them where they lie."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import fx

from umd_core.errors import UmdError
from umd_core.ir import Graph
from umd_core.passes import DEFAULT, optimise
from umd_torch.builder import Value
from umd_torch.eager.builders import EagerBuilder, Finish, own_layout
from umd_torch.eager.devices import NAME, EagerDevice, device_of
from umd_torch.eager.plans import Plan
from umd_torch.eager.slots import Geometry, Slot
from umd_torch.eager.traced import TracedLowering
from umd_torch.eager.transfers import to_device, to_host
from umd_torch.layouts import layout_of
from umd_torch.symbols import Bound

Runner = Callable[[list[Any]], list[Any]]


def home_of_graph(module: fx.GraphModule) -> EagerDevice | None:
    """Returns the device that a traced graph works on, None when it is none of ours."""
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.device.type == NAME:
            return device_of(value.device)
    return None


def runner(module: fx.GraphModule, bound: Bound, strict: bool, passes: Collection[str] = DEFAULT) -> Runner | None:
    """Returns what runs a graph for one set of sizes; None where it has no tensor of the device.

    What cannot be one program runs op by op.

    Raises:
        UmdError: with `strict`, what the device cannot run.
    """
    home = home_of_graph(module)
    if home is None:
        return None
    try:
        return GraphOnDevice(home, module, bound, passes)
    except UmdError:
        if strict:
            raise
        return lambda arguments: list(module(*arguments))


class GraphOnDevice:
    """A graph as one program. Its results stay on the device; those that torch wants on the CPU are read."""

    def __init__(self, home: EagerDevice, module: fx.GraphModule, bound: Bound, passes: Collection[str]) -> None:
        self._home = home
        self._positions: list[int] = []
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        slots = [self._slot(position, node.meta.get("val"), bound) for position, node in enumerate(placeholders)]
        geometries = {slot.index: slot.geometry for slot in slots if slot is not None}
        builder = EagerBuilder(Graph("compiled"))
        lowering = TracedLowering(module, builder, slots, bound)
        lowering.run()
        finish = Finish(builder, lowering.written, geometries)
        self._on_host: list[int] = []
        for position, item in enumerate(lowering.returned):
            self._result(finish, lowering, position, item, bound)
        draft = finish.draft(single=False)
        if passes:
            draft = dataclasses.replace(draft, graph=optimise(draft.graph, passes, descs=builder.descs).graph)
        self._plan = Plan(home, draft)

    def _slot(self, position: int, value: Any, bound: Bound) -> Slot | None:
        if not isinstance(value, torch.Tensor):
            return None
        layout = layout_of(value, bound)
        self._positions.append(position)
        return Slot(len(self._positions) - 1, Geometry(layout.dtype, layout.shape, layout.strides))

    def _result(self, finish: Finish, lowering: TracedLowering, position: int, item: Any, bound: Bound) -> None:
        slot, value = lowering.slot_of(item), lowering.value_of(item)
        if slot is not None:
            finish.target(slot.index)
        elif isinstance(value, Value):
            layout = layout_of(item.meta["val"], bound)
            finish.tensor(value, own_layout(layout.shape, layout.strides, layout.dtype))
            if item.meta["val"].device.type != NAME:
                self._on_host.append(position)
        else:
            finish.value(value)

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """Returns the graph's results."""
        with torch.no_grad():
            tensors = [self._placed(arguments[position]) for position in self._positions]
            results = list(self._plan(tensors, ()))
            for position in self._on_host:
                results[position] = to_host(results[position])
        return results

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.get_device() >= 0 else to_device(tensor.detach(), self._home)
