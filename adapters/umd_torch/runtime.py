"""Calls of a compiled graph: bind, submit, read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import umd_core as umd
from umd_core.device import Binding
from umd_torch.graphs import Lowered
from umd_torch.handles import DeviceTensor, from_bytes
from umd_torch.host import Bytes
from umd_torch.inputs import Inputs, Roles
from umd_torch.layouts import Layout
from umd_torch.memory import Slab, regions
from umd_torch.overwrites import Overwrites
from umd_torch.session import Session

_NOTHING: Bytes = np.empty(0, np.uint8)


class Executable:
    """A graph translated for one device and one set of sizes.

    Attributes:
        command_buffer: the program.
        inputs: what it is bound to.
    """

    def __init__(self, session: Session, lowered: Lowered, roles: Roles) -> None:
        self._session = session
        self._arguments, self._results, self._roles = lowered.arguments, lowered.results, roles
        self._index = {a.position: i for i, a in enumerate(self._arguments)}
        self._overwrites = Overwrites(session, lowered)
        self.inputs = Inputs(session, lowered.arguments, roles, self._overwrites.inputs)
        sizes = {i: o.desc.byte_size for i, o in enumerate(lowered.graph.outputs) if o.desc is not None and not o.alias}
        returned = {r.output for i, r in enumerate(self._results) if i not in roles.resident}
        returned |= self._overwrites.sent
        self._returned, self._returned_size = regions({i: s for i, s in sizes.items() if i in returned})
        self._kept, self._kept_size = regions({i: s for i, s in sizes.items() if i not in returned})
        self._count = len(lowered.graph.outputs)
        self.command_buffer = umd.translate(lowered.graph, caps=session.caps)
        self._program = session.load(self.command_buffer) if self._count else None

    @property
    def bytes_down(self) -> int:
        """Bytes that a call reads back, aligned as they lie."""
        return self._returned_size

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Returns the graph's results: CPU tensors, and handles for what stays on the device."""
        if self._program is None:
            return [r.value if r.argument < 0 else arguments[r.argument] for r in self._results]
        self._session.check_process()
        with self._session.lock:
            return self._run(arguments)

    def _run(self, arguments: Sequence[Any]) -> list[Any]:
        session = self._session
        bindings, given, sent = self.inputs.bind(arguments)
        back = session.slab(self._returned_size)
        kept = session.slab(self._kept_size) if self._kept else back
        for output in range(self._count):
            region = self._returned.get(output)
            if region:
                bindings.append(region.of(back))
            elif output in self._kept:
                bindings.append(self._kept[output].of(kept))
            else:
                bindings.append(bindings[self._overwrites.input_of(output)])
        self._overwrites.before(given)
        ticket = session.submit(self._program, bindings)
        source = session.read(back, 0, self._returned_size, ticket) if self._returned_size else _NOTHING
        self._overwrites.after(arguments, given, lambda n, layout: self._result(source, n, layout))
        return self._collect(arguments, bindings, sent, (back, kept), source)

    def _result(self, source: Bytes, output: int, layout: Layout) -> torch.Tensor:
        return from_bytes(source, self._returned[output].offset, layout)

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


__all__ = ["Executable", "Roles"]
