"""Lowers a traced graph whose arguments lie on the device."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from umd_core.errors import UnsupportedError
from umd_torch.builder import Value
from umd_torch.eager.builders import EagerBuilder
from umd_torch.eager.slots import Slot
from umd_torch.graphs import Lowering, located
from umd_torch.layouts import Layout
from umd_torch.symbols import Bound


class TracedLowering(Lowering):
    """Lowers into a builder that is there already. `slots` has one entry a placeholder, None where it is no tensor.

    Attributes:
        returned: per result, the node or what it is else.
        written: by number of tensor argument, what it becomes.
    """

    def __init__(
        self, module: fx.GraphModule, builder: EagerBuilder, slots: Sequence[Slot | None], bound: Bound | None = None
    ) -> None:
        super().__init__(module, bound or {})
        self._builder: EagerBuilder = builder
        self._slots = slots
        self.returned: list[Any] = []
        self.written: dict[int, Value] = {}

    def placeholder(self, node: fx.Node) -> None:
        """Takes the argument."""
        slot = self._slots[len(self._placeholders)]
        if slot is None:
            super().placeholder(node)
            return
        self._placeholders[node] = len(self._placeholders)
        if node.users:
            self._values[node] = self._builder.argument(slot)

    def attribute(self, node: fx.Node) -> None:
        """Takes in what the graph holds; not what lies on the device."""
        tensor = operator.attrgetter(str(node.target))(self._module)
        if isinstance(tensor, torch.Tensor) and tensor.device.type != "cpu":
            raise located(UnsupportedError("the graph holds a tensor of the device"), node)
        super().attribute(node)

    def _input(self, node: fx.Node, layout: Layout, position: int, tensor: torch.Tensor | None = None) -> None:
        raise located(UnsupportedError("the graph holds a large tensor"), node)

    def overwrite(self, node: fx.Node) -> None:
        """Notes what an argument becomes."""
        target, source = node.args[:2]
        value = self._values.get(source)  # type: ignore[arg-type]  # a node
        position = self._placeholders.get(target)  # type: ignore[arg-type]  # a node
        slot = None if position is None else self._slots[position]
        if slot is None or not isinstance(value, Value):
            raise located(UnsupportedError("it overwrites what is no argument"), node)
        self.written[slot.index] = self._values[node] = value

    def output(self, node: fx.Node) -> None:
        """Notes the results."""
        returned: Any = node.args[0]
        self.returned = list(returned) if isinstance(returned, (tuple, list)) else [returned]

    def value_of(self, item: Any) -> Any:
        """Returns the value of a result."""
        return self._values[item] if isinstance(item, fx.Node) else item

    def slot_of(self, item: Any) -> Slot | None:
        """Returns the argument that a result is, None when it is another."""
        return self._slots[self._placeholders[item]] if item in self._placeholders else None
