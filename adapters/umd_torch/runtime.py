"""Calls of a compiled graph: bind, submit, read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import umd_core as umd
from umd_core.device import Binding
from umd_torch.graphs import Layout, Lowered
from umd_torch.handles import DeviceTensor, from_bytes
from umd_torch.host import Bytes, byte_count, copy_from, drawn_seed
from umd_torch.memory import Slab, regions
from umd_torch.session import Session

_NOTHING: Bytes = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True)
class Roles:
    """What the positions of a graph mean.

    Attributes:
        static: placeholders that are parameters or buffers of the module, the same tensors in every call.
        resident: results, by position, that only the device needs again.
    """

    static: frozenset[int] = frozenset()
    resident: frozenset[int] = frozenset()


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


class Executable:
    """A graph translated for one device and one set of sizes."""

    def __init__(self, session: Session, lowered: Lowered, roles: Roles) -> None:
        self._session = session
        self._arguments, self._results, self._roles = lowered.arguments, lowered.results, roles
        self._static = {i for i, a in enumerate(self._arguments) if a.position in roles.static or a.tensor is not None}
        self._index = {a.position: i for i, a in enumerate(self._arguments)}
        sizes = {i: o.desc.byte_size for i, o in enumerate(lowered.graph.outputs) if o.desc is not None}
        returned = {r.output for i, r in enumerate(self._results) if i not in roles.resident}
        self._returned, self._returned_size = regions({i: s for i, s in sizes.items() if i in returned})
        self._kept, self._kept_size = regions({i: s for i, s in sizes.items() if i not in returned})
        self._count = len(sizes)
        self.command_buffer = umd.translate(lowered.graph, caps=session.caps)
        self._program = session.load(self.command_buffer) if self._count else None

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Returns the graph's results: CPU tensors, and handles for what stays on the device."""
        if self._program is None:
            return [r.value if r.argument < 0 else arguments[r.argument] for r in self._results]
        with self._session.lock:
            return self._run(arguments)

    def _run(self, arguments: Sequence[Any]) -> list[Any]:
        session = self._session
        tensors = self._tensors(arguments)
        bindings, sent = self._bind(tensors)
        back, kept = session.slab(self._returned_size), session.slab(self._kept_size)
        for output in range(self._count):
            region = self._returned.get(output)
            bindings.append(region.of(back) if region else self._kept[output].of(kept))
        ticket = session.submit(self._program, bindings)
        source = session.read(back, 0, self._returned_size, ticket) if self._returned_size else _NOTHING
        return self._collect(arguments, bindings, sent, (back, kept), source)

    def _tensors(self, arguments: Sequence[Any]) -> list[tuple[torch.Tensor, bool]]:
        """Returns a tensor per input in the program's layout, and whether it is the caller's own."""
        result: list[tuple[torch.Tensor, bool]] = []
        for argument in self._arguments:
            if argument.draws:
                result.append((drawn_seed(), False))
                continue
            tensor = argument.tensor if argument.tensor is not None else arguments[argument.position]
            if isinstance(tensor, DeviceTensor):
                if tensor.held.session is self._session and tensor.lies == argument.layout:
                    result.append((tensor, True))
                    continue
                tensor = tensor.materialise()
            result.append(in_layout(tensor, argument.layout))
        return result

    def _bind(self, tensors: Sequence[tuple[torch.Tensor, bool]]) -> tuple[list[Binding], Slab | None]:
        """Returns a binding per input, and the slab of those that were sent for this call alone."""
        session, parameters = self._session, self._session.parameters
        bindings: list[Any] = [None] * len(tensors)
        cached: dict[int, torch.Tensor] = {}
        fresh: dict[int, torch.Tensor] = {}
        for index, (tensor, own) in enumerate(tensors):
            if isinstance(tensor, DeviceTensor):
                bindings[index] = tensor.binding
            elif (
                session.maps and not self._arguments[index].draws
            ):  # a seed is nobody else's: it would be gone too soon
                bindings[index] = session.wrap(tensor)
            elif own and (index in self._static or parameters.knows(tensor)):
                cached[index] = tensor
            else:
                fresh[index] = tensor
        if cached:
            for index, binding in zip(cached, parameters.bindings(list(cached.values())), strict=True):
                bindings[index] = binding
        slab = self._send(fresh, bindings) if fresh else None
        return bindings, slab

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

    def _collect(
        self,
        arguments: Sequence[Any],
        bindings: Sequence[Binding],
        sent: Slab | None,
        slabs: tuple[Slab, Slab],
        source: Bytes,
    ) -> list[Any]:
        """Returns what torch gets, in the order of the graph's results."""
        collected: list[Any] = []
        for position, result in enumerate(self._results):
            resident = position in self._roles.resident
            if result.argument >= 0:
                index = self._index.get(result.argument, -1)
                if resident and sent is not None and index >= 0 and bindings[index].buffer is sent.buffer:
                    _, offset, size = bindings[index]
                    collected.append(DeviceTensor(sent, offset, size, self._arguments[index].layout))
                else:
                    collected.append(arguments[result.argument])
            elif result.layout is None:
                collected.append(result.value)
            else:
                region = self._returned.get(result.output)
                if resident:
                    slab, place = (slabs[0], region) if region else (slabs[1], self._kept[result.output])
                    collected.append(DeviceTensor(slab, place.offset, place.size, result.layout))
                elif region:
                    collected.append(from_bytes(source, region.offset, result.layout))
        return collected
