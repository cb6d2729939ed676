"""What a program's inputs are bound to in one call: host memory, a parameter's copy, bytes sent along, a handle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from umd_torch.graphs import Argument
from umd_torch.handles import DeviceTensor
from umd_torch.host import Bytes, byte_count, copy_from, drawn_seed
from umd_torch.layouts import Layout
from umd_torch.memory import Slab, regions
from umd_torch.session import Session


@dataclass(frozen=True, slots=True)
class Roles:
    """What the positions of a graph mean.

    Attributes:
        static: placeholders that are parameters or buffers of the module, the same tensors in every call.
        resident: results, by position, that only the device needs again.
        counted: placeholders that the graph changes, and whose change torch has counted before the graph is called.
        plain: whether the placeholders are the caller's own tensors, none of them a handle.
        returning: results that have come back as inputs of a later call; found out while the graph is in use.
    """

    static: frozenset[int] = frozenset()
    resident: frozenset[int] = frozenset()
    counted: frozenset[int] = frozenset()
    plain: bool = False
    returning: set[int] = field(default_factory=set, compare=False)


def in_layout(tensor: torch.Tensor, layout: Layout) -> tuple[torch.Tensor, bool]:
    """Returns the tensor, or a copy in the layout that the program takes, and whether it is the tensor itself."""
    if tensor.is_neg():  # its bytes are those of -tensor
        tensor = tensor.resolve_neg()
    if layout.dense:
        if tensor.stride() == layout.strides:
            return tensor, True
        strides: Sequence[int] = layout.strides
    else:
        strides = layout.desc.strides
    packed = torch.empty_strided(layout.shape, strides, dtype=layout.dtype)
    return packed.copy_(tensor.detach()), False


Given = dict[int, tuple[torch.Tensor, bool]]
"""Per input the tensor that the program is given, in its layout, and whether it is the caller's own."""


class Inputs:
    """The inputs of one program.

    Parameters are the same tensors in every call. Where the device sees host memory their bindings are found once, and
    hold as long as the addresses do: torch has checked by then that shapes and strides are what they were.
    """

    def __init__(self, session: Session, arguments: Sequence[Argument], roles: Roles, changed: frozenset[int]) -> None:
        self._session, self._arguments, self._counted = session, arguments, roles.counted
        held = {i for i, a in enumerate(arguments) if a.tensor is not None}
        lasting = {i for i, a in enumerate(arguments) if a.position in roles.static or i in changed} - held
        self._static = lasting | held
        self._lasting = tuple(sorted(lasting)) if session.maps else ()
        self._positions = [arguments[i].position for i in self._lasting]
        self._passing = [i for i in range(len(arguments)) if i not in self._lasting]
        self._known: list[Any] = []
        self._addresses: list[int] = []
        self._evictions = -1

    @property
    def bytes_kept(self) -> int:
        """Bytes of parameters, buffers and other inputs that are sent once and stay."""
        return sum(self._arguments[index].layout.desc.byte_size for index in self._static)

    @property
    def bytes_up(self) -> int:
        """Bytes of what is sent with every call, as far as it is not on the device already."""
        passing = (a for index, a in enumerate(self._arguments) if index not in self._static)
        return sum(argument.layout.desc.byte_size for argument in passing)

    def bind(self, arguments: Sequence[Any]) -> tuple[list[Any], Given, Slab | None]:
        """Returns a binding per input, the tensors behind those, and the slab of what was sent for this call alone.

        Lasting inputs whose bindings were known are the caller's own, and not among the tensors.
        """
        session = self._session
        session.evict()
        if self._evictions == session.evictions:
            addresses = [arguments[position].data_ptr() for position in self._positions]
            if addresses == self._addresses:
                bindings = self._known.copy()
                given = self._tensors(arguments, self._passing)
                return bindings, given, self._fill(given, bindings)
        bindings = [None] * len(self._arguments)
        given = self._tensors(arguments, range(len(bindings)))
        sent = self._fill(given, bindings)
        self._learn(bindings, given)
        return bindings, given, sent

    def _learn(self, bindings: Sequence[Any], given: Given) -> None:
        """Keeps the bindings of lasting inputs, if they are the caller's own tensors in host memory."""
        tensors = [given[index] for index in self._lasting]
        if not tensors or any(not own or isinstance(tensor, DeviceTensor) for tensor, own in tensors):
            return
        lasting = set(self._lasting)
        self._known = [binding if index in lasting else None for index, binding in enumerate(bindings)]
        self._addresses = [tensor.data_ptr() for tensor, _ in tensors]
        self._evictions = self._session.evictions

    def _tensors(self, arguments: Sequence[Any], indices: Iterable[int]) -> Given:
        """Returns the tensors in the program's layouts."""
        result: Given = {}
        for index in indices:
            argument = self._arguments[index]
            if argument.draws:
                result[index] = (drawn_seed(), False)
                continue
            tensor = argument.tensor if argument.tensor is not None else arguments[argument.position]
            if isinstance(tensor, DeviceTensor):
                if tensor.held.session is self._session and tensor.lies == argument.layout:
                    result[index] = (tensor, True)
                    continue
                tensor = tensor.materialise()
            result[index] = in_layout(tensor, argument.layout)
        return result

    def _fill(self, given: Given, bindings: list[Any]) -> Slab | None:
        """Adds the bindings of these tensors; returns the slab of those that were sent for this call alone."""
        session, parameters = self._session, self._session.parameters
        cached: dict[int, torch.Tensor] = {}
        fresh: dict[int, torch.Tensor] = {}
        for index, (tensor, own) in given.items():
            if isinstance(tensor, DeviceTensor):
                bindings[index] = tensor.binding
            elif session.maps and not self._arguments[index].draws:  # a drawn seed is nobody else's: gone too soon
                bindings[index] = session.wrap(tensor)
            elif own and (index in self._static or parameters.knows(tensor)):
                cached[index] = tensor
            else:
                fresh[index] = tensor
                if own:
                    parameters.note_return(tensor)
        if cached:
            ahead = [int(self._arguments[index].position in self._counted) for index in cached]
            for index, binding in zip(cached, parameters.bindings(list(cached.values()), ahead), strict=True):
                bindings[index] = binding
        return self._send(fresh, bindings) if fresh else None

    def _send(self, fresh: Mapping[int, torch.Tensor], bindings: list[Any]) -> Slab:
        """Writes tensors into one slab, in one write."""
        places, size = regions({index: byte_count(tensor) for index, tensor in fresh.items()})
        slab = self._session.slab(size)
        data: Bytes = np.zeros(size, np.uint8)
        for index, tensor in fresh.items():
            copy_from(tensor, data, places[index].offset)
            bindings[index] = places[index].of(slab)
        if size:
            self._session.write(slab, 0, data)
        return slab
