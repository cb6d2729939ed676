"""Lowers a traced graph whose arguments lie on the device."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
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

    Nodes in `hosted` are not lowered: each comes as an argument, or where that is None, nothing needs it.

    Attributes:
        returned: per result, the node or what it is else.
        written: by number of tensor argument, what it becomes.
        landing: by placeholder on the host, what it becomes.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        builder: EagerBuilder,
        slots: Sequence[Slot | None],
        bound: Bound | None = None,
        hosted: Mapping[fx.Node, Slot | None] | None = None,
    ) -> None:
        super().__init__(module, bound or {})
        self._builder: EagerBuilder = builder
        self._slots, self._hosted = slots, hosted or {}
        self.returned: list[Any] = []
        self.written: dict[int, Value] = {}
        self.landing: dict[int, Value] = {}

    def placeholder(self, node: fx.Node) -> None:
        """Takes the argument."""
        if node in self._hosted:
            self._placeholders[node] = len(self._placeholders)
            self._take(node)
            return
        slot = self._slots[len(self._placeholders)]
        if slot is None:
            super().placeholder(node)
            return
        self._placeholders[node] = len(self._placeholders)
        if node.users:
            self._values[node] = self._builder.argument(slot)

    def _take(self, node: fx.Node) -> None:
        slot = self._hosted[node]
        if slot is not None:
            self._values[node] = self._builder.argument(slot)

    def call(self, node: fx.Node) -> None:
        """Lowers a call that is not the host's."""
        if node in self._hosted:
            self._take(node)
        else:
            super().call(node)

    def attribute(self, node: fx.Node) -> None:
        """Takes in what the graph holds; what lies on the device has to come as an argument."""
        if node in self._hosted:
            self._take(node)
            return
        tensor = operator.attrgetter(str(node.target))(self._module)
        if isinstance(tensor, torch.Tensor) and tensor.device.type != "cpu":
            raise located(UnsupportedError("the graph holds a tensor of the device"), node)
        super().attribute(node)

    def _input(self, node: fx.Node, layout: Layout, position: int, tensor: torch.Tensor | None = None) -> None:
        raise located(UnsupportedError("the graph holds a large tensor"), node)

    def overwrite(self, node: fx.Node) -> None:
        """Notes what an argument becomes; the node itself stands for it."""
        target, source = node.args[:2]
        value = self._values.get(source)  # type: ignore[arg-type]  # a node
        position = self._placeholders.get(target)  # type: ignore[arg-type]  # a node
        if position is None or not isinstance(value, Value):
            raise located(UnsupportedError("it overwrites what is no argument"), node)
        slot = self._slots[position]
        if slot is None:
            self.landing[position] = value
        else:
            self.written[slot.index] = value
        self._placeholders[node], self._values[node] = position, value

    def output(self, node: fx.Node) -> None:
        """Notes the results."""
        returned: Any = node.args[0]
        self.returned = list(returned) if isinstance(returned, (tuple, list)) else [returned]

    def value_of(self, item: Any) -> Any:
        """Returns the value of a result."""
        return self._values[item] if isinstance(item, fx.Node) else item

    def position_of(self, item: Any) -> int | None:
        """Returns the position of the argument that a result is, None when it is another."""
        return self._placeholders.get(item) if isinstance(item, fx.Node) else None
