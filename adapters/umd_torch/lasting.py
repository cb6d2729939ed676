"""Inputs that are the same tensors in every call: bound once, and again when something about them has changed."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch

from umd_core.device import Binding
from umd_torch.handles import DeviceTensor
from umd_torch.host import fingerprint
from umd_torch.parameters import Entry
from umd_torch.session import Session

Given = dict[int, tuple[torch.Tensor, bool]]
"""Per input the tensor that the program is given, in its layout, and whether it is the caller's own."""


class Place(NamedTuple):
    """An input: its number in the program, its position in the graph, and by how much torch's count runs ahead."""

    number: int
    position: int
    ahead: int


class Lasting(Protocol):
    """What is known of lasting inputs. torch has checked, before a call, that shapes and strides are what they were."""

    def known(self, arguments: Sequence[Any]) -> list[Any] | None:
        """Returns the bindings found before, None for every other input; None where they may not be used any more."""
        ...

    def learn(self, bindings: Sequence[Any], given: Given) -> None:
        """Keeps bindings, if all are of the caller's own tensors."""
        ...

    def same_bytes(self, arguments: Sequence[Any]) -> bool:
        """Returns whether the bytes behind the bindings are those of the tensors; where not, it is noted."""
        ...


class Mapped:
    """Lasting inputs on a device that sees host memory: bindings hold as long as the addresses do."""

    def __init__(self, session: Session, places: Sequence[Place]) -> None:
        self._session, self._places = session, tuple(places)
        self._bindings: list[Any] = []
        self._addresses: list[int] = []
        self._evictions = -1

    def known(self, arguments: Sequence[Any]) -> list[Any] | None:
        """See `Lasting`."""
        if self._evictions != self._session.evictions:
            return None
        addresses = [arguments[place.position].data_ptr() for place in self._places]
        return self._bindings.copy() if addresses == self._addresses else None

    def learn(self, bindings: Sequence[Any], given: Given) -> None:
        """See `Lasting`."""
        tensors = _own(self._places, given)
        if tensors:
            self._bindings = _only(self._places, bindings)
            self._addresses = [tensor.data_ptr() for tensor in tensors]
            self._evictions = self._session.evictions

    def same_bytes(self, arguments: Sequence[Any]) -> bool:
        """Returns True: they are the same memory."""
        return True


class Sent:
    """Lasting inputs that were sent: bindings hold as long as the copies and torch's counts of changes do.

    What changes bytes without a count is found by `same_bytes`, which takes long: while the device works already.
    """

    def __init__(self, session: Session, places: Sequence[Place]) -> None:
        self._session, self._places = session, tuple(places)
        self._bindings: list[Any] = []
        self._copies: list[tuple[weakref.ref[Entry], int, int, int]] = []

    def known(self, arguments: Sequence[Any]) -> list[Any] | None:
        """See `Lasting`."""
        for copy, address, position, ahead in self._copies:
            entry, tensor = copy(), arguments[position]
            if entry is None or entry.gone() or tensor.data_ptr() != address or not entry.has_seen(tensor, ahead):
                return None
        return self._bindings.copy() if self._copies else None

    def learn(self, bindings: Sequence[Any], given: Given) -> None:
        """See `Lasting`."""
        self._copies = []
        tensors = _own(self._places, given)
        entries = [self._session.parameters.entry(tensor) for tensor in tensors]
        if all(entry is not None and not entry.made for entry in entries):
            self._bindings = _only(self._places, bindings)
            self._copies = [
                (weakref.ref(entry), tensor.data_ptr(), place.position, place.ahead)
                for entry, tensor, place in zip(entries, tensors, self._places, strict=False)
                if entry is not None
            ]

    def same_bytes(self, arguments: Sequence[Any]) -> bool:
        """See `Lasting`. The copies that differ are sent again with their next use."""
        same = True
        for copy, _, position, _ in self._copies:
            entry, tensor = copy(), arguments[position]
            if entry is not None and fingerprint(tensor) != entry.mark:
                self._session.parameters.note_stale(entry, tensor)
                same = False
        return same


def _own(places: Sequence[Place], given: Given) -> list[torch.Tensor]:
    """Returns the tensors if all of them are the caller's own and in host memory, else none."""
    tensors = [given[place.number] for place in places]
    own = all(own and not isinstance(tensor, DeviceTensor) for tensor, own in tensors)
    return [tensor for tensor, _ in tensors] if own else []


def _only(places: Sequence[Place], bindings: Sequence[Any]) -> list[Binding | None]:
    """Returns the bindings of these inputs, None for every other."""
    numbers = {place.number for place in places}
    return [binding if number in numbers else None for number, binding in enumerate(bindings)]
