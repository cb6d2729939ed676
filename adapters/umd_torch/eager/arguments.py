"""What the programs of a compiled graph are given: tensors of the device as they are, and what comes from the host."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from umd_torch.eager.builders import kept_layout, own_layout
from umd_torch.eager.devices import NAME, EagerDevice
from umd_torch.eager.hosted import HostPart
from umd_torch.eager.slots import Geometry, Slot
from umd_torch.eager.transfers import to_device
from umd_torch.graphs import KEYS
from umd_torch.inputs import Roles
from umd_torch.layouts import Layout, layout_of
from umd_torch.nodes import holds_keys
from umd_torch.symbols import Bound
from umd_torch.torch_private import unset_fake_temporarily

Strides = tuple[tuple[int, ...], ...]
_STATE = torch.uint8
"""The element type of what torch itself saves of the generator."""


def is_state(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is a state of torch's generator; programs leave seed and offset in its place."""
    return tensor.dtype is _STATE


class Arguments:
    """The arguments of a graph: its tensors of the device, those that it holds, those of the host that are no numbers.

    Attributes:
        strides: of the tensors, as torch has said.
    """

    def __init__(self, home: EagerDevice, module: fx.GraphModule, roles: Roles, bound: Bound, host: HostPart) -> None:
        self._home, self._roles, self._left = home, roles, host.left
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        self._layouts = [self._layout(node, bound) for node in placeholders]
        self._positions = [i for i, n in enumerate(placeholders) if self._layouts[i] is not None and n not in host.left]
        self._states = [position for position in self._positions if self._layouts[position] is KEYS]
        held = [node for node in module.graph.nodes if node.op == "get_attr" and _is_there(node)]
        with unset_fake_temporarily():
            self._held = [(node, operator.attrgetter(str(node.target))(module).detach()) for node in held]
        given = [(node, _own(layout_of(node.meta["val"], bound))) for node in host.given]
        self._is_number = [not layout.shape for _, layout in given]
        self._numbers = [(node, layout) for node, layout in given if not layout.shape]
        self._sent = [(node, layout) for node, layout in given if layout.shape]
        layouts = [self.layout_at(position) for position in self._positions]
        lying = [Layout(tensor.dtype, tuple(tensor.shape), tensor.stride()) for _, tensor in self._held]
        self._tensors = [*layouts, *lying, *(layout for _, layout in self._sent)]
        self.strides: Strides = tuple([layout.strides for layout in self._tensors])

    def _layout(self, node: fx.Node, bound: Bound) -> Layout | None:
        """Returns how a placeholder lies. What a forward graph saved lies as it leaves it."""
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return None
        layout = KEYS if holds_keys(node) else layout_of(value, bound)
        return layout if self._roles.plain or node in self._left else kept_layout(layout)

    def layout_at(self, position: int) -> Layout:
        """Returns how a tensor among the placeholders lies."""
        layout = self._layouts[position]
        assert layout is not None  # asked of tensors only
        return layout

    # what a program is made for

    def geometries(self, strides: Strides) -> list[Geometry]:
        """Returns how the tensors lie that have these strides."""
        return [Geometry(layout.dtype, layout.shape, s) for layout, s in zip(self._tensors, strides, strict=True)]

    def slots(self, geometries: Sequence[Geometry]) -> list[Slot | None]:
        """Returns what stands for each placeholder; None for those that are no tensor of the device."""
        slots: list[Slot | None] = [None] * len(self._layouts)
        for index, position in enumerate(self._positions):
            slots[position] = Slot(index, geometries[index])
        return slots

    def hosted(self, geometries: Sequence[Geometry]) -> Mapping[fx.Node, Slot | None]:
        """Returns what stands for what the graph holds, and for each node of the host; None where nothing needs it."""
        found: dict[fx.Node, Slot | None] = dict.fromkeys(self._left)
        for index, (node, _) in enumerate([*self._held, *self._sent], len(self._positions)):
            found[node] = Slot(index, geometries[index])
        for index, (node, layout) in enumerate(self._numbers):
            found[node] = Slot(index, Geometry(layout.dtype, (), ()), on_host=True)
        return found

    # what a call gives

    def hold_states(self, arguments: Sequence[Any]) -> bool:
        """Returns whether the caller has states of torch's generator, where programs take seed and offset."""
        return bool(self._states) and any(is_state(arguments[position]) for position in self._states)

    def placed(
        self, arguments: Sequence[Any], given: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[bool | int | float]]:
        """Returns the tensors, all of them on the device, and the numbers; `given` is the host's part."""
        here, numbers = self._home.ordinal, []
        tensors = [arguments[position] for position in self._positions]
        tensors = [tensor if tensor.get_device() == here else self._moved(tensor) for tensor in tensors]
        tensors += [tensor for _, tensor in self._held]
        for tensor, is_number in zip(given, self._is_number, strict=True):
            if is_number:
                numbers.append(tensor.item())
            else:
                tensors.append(self._moved(tensor))
        return tensors, numbers

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a copy on the device. Hooks of what is saved for backward may have moved a tensor off it."""
        return to_device(tensor.detach().cpu(), self._home)

    # what it costs

    @property
    def bytes_kept(self) -> int:
        """Bytes of parameters and buffers that lie on the device."""
        return sum(self.layout_at(p).desc.byte_size for p in self._positions if p in self._roles.static)

    @property
    def bytes_up(self) -> int:
        """Bytes of what is sent with every call."""
        return sum(layout.desc.byte_size for _, layout in (*self._sent, *self._numbers))


def _is_there(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.device.type == NAME


def _own(layout: Layout) -> Layout:
    return own_layout(layout.shape, layout.strides, layout.dtype)
