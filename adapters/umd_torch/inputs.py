"""What a program's inputs are bound to in one call: host memory, a parameter's copy, bytes sent along, a handle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from umd_torch.graphs import Argument
from umd_torch.handles import DeviceTensor
from umd_torch.host import Bytes, byte_count, copy_from, drawn_seed
from umd_torch.lasting import Given, Lasting, Mapped, Place, Sent
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


class Bound(NamedTuple):
    """The inputs of one call.

    Attributes:
        bindings: one per input.
        given: the tensors behind them; not those of lasting inputs that were bound before, which are the caller's own.
        sent: the slab of what was sent for this call alone.
        checked: whether every byte that was sent before is known to be still the same.
    """

    bindings: list[Any]
    given: Given
    sent: Slab | None
    checked: bool


class Inputs:
    """The inputs of one program. Parameters are the same tensors in every call: `Lasting`."""

    def __init__(self, session: Session, arguments: Sequence[Argument], roles: Roles, changed: frozenset[int]) -> None:
        self._session, self._arguments, self._counted = session, arguments, roles.counted
        held = {i for i, a in enumerate(arguments) if a.tensor is not None}
        lasting = {i for i, a in enumerate(arguments) if a.position in roles.static or i in changed} - held
        self._static = lasting | held
        places = [Place(i, arguments[i].position, self._ahead(i)) for i in sorted(lasting)]
        self._lasting: Lasting | None = None
        if session.maps:
            self._lasting = Mapped(session, places)
        elif roles.plain:  # else one of them might be a handle, of which there is no other copy
            self._lasting = Sent(session, places)
        self._passing = [i for i in range(len(arguments)) if i not in lasting]

    def _ahead(self, index: int) -> int:
        return int(self._arguments[index].position in self._counted)

    @property
    def bytes_kept(self) -> int:
        """Bytes of parameters, buffers and other inputs that are sent once and stay."""
        return sum(self._arguments[index].layout.desc.byte_size for index in self._static)

    @property
    def bytes_up(self) -> int:
        """Bytes of what is sent with every call, as far as it is not on the device already."""
        passing = (a for index, a in enumerate(self._arguments) if index not in self._static)
        return sum(argument.layout.desc.byte_size for argument in passing)

    def bind(self, arguments: Sequence[Any]) -> Bound:
        """Returns what the program is given. Bytes of lasting inputs may have changed: `is_true` tells."""
        self._session.evict()
        known = self._lasting.known(arguments) if self._lasting else None
        if known is None:
            return self._bind(arguments, self._tensors(arguments, range(len(self._arguments))))
        given = self._tensors(arguments, self._passing)
        return Bound(known, given, self._fill(given, known), checked=False)

    def bind_again(self, arguments: Sequence[Any], bound: Bound) -> Bound:
        """Returns what the program is given once every byte has been compared, and sent where it was another."""
        missing = [index for index in range(len(self._arguments)) if index not in bound.given]
        return self._bind(arguments, bound.given | self._tensors(arguments, missing))

    def is_true(self, arguments: Sequence[Any], bound: Bound) -> bool:
        """Returns whether a call was given what torch has; where not, `bind_again`."""
        return bound.checked or self._lasting is None or self._lasting.same_bytes(arguments)

    def _bind(self, arguments: Sequence[Any], given: Given) -> Bound:
        bindings: list[Any] = [None] * len(self._arguments)
        sent = self._fill(given, bindings)
        if self._lasting:
            self._lasting.learn(bindings, given)
        return Bound(bindings, given, sent, checked=True)

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
            ahead = [self._ahead(index) for index in cached]
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
