"""What a program returns, as torch gets it: read, joined on the host, left on the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from umd_core.device import Binding
from umd_torch.graphs import Lowered, Result
from umd_torch.handles import DeviceTensor, from_bytes
from umd_torch.host import Bytes, byte_count
from umd_torch.inputs import Roles
from umd_torch.memory import Region, Slab, regions
from umd_torch.mutations import Landing, Outputs, Wanted
from umd_torch.session import Session


class Call(NamedTuple):
    """One call's bindings, the slab of what was sent for it, and those of its outputs."""

    bindings: Sequence[Binding]
    sent: Slab | None
    read: Slab
    kept: Slab


class Results:
    """What one program returns, and where its outputs lie: in one slab those that are read, in another the rest.

    A result that has come back as an input before stays on the device too, and so does what the host joins.

    Attributes:
        read_size, kept_size: bytes of both slabs.
    """

    def __init__(
        self,
        session: Session,
        lowered: Lowered,
        roles: Roles,
        outputs: Outputs,
        also_read: set[int],
        landing: Landing,
    ) -> None:
        self._session, self._roles, self._outputs = session, roles, outputs
        self._results, self._arguments = lowered.results, lowered.arguments
        self._index = {a.position: i for i, a in enumerate(lowered.arguments)}
        visible = {i: r for i, r in enumerate(self._results) if i not in roles.resident}
        joins = roles.plain and not session.maps
        whole = also_read | {r.output for r in visible.values() if not (joins and r.joined)}
        self._joined = {i: r.joined for i, r in visible.items() if r.joined and r.output not in whole}
        read = whole | {outputs.number(wanted) for joined in self._joined.values() for wanted in joined.wanted}
        sizes = {n: o.desc.byte_size for n, o in enumerate(lowered.graph.outputs) if o.desc is not None and not o.alias}
        self._read, self.read_size = regions({n: size for n, size in sizes.items() if n in read})
        self._kept, self.kept_size = regions({n: size for n, size in sizes.items() if n not in read})
        self._joins = {i: joined.filler(landing) for i, joined in self._joined.items()}
        self._landing = [(self._read[output], memory) for output, memory in landing.memory()]
        self._own = () if session.maps else tuple(self._own_bytes(visible))

    def _own_bytes(self, visible: dict[int, Result]) -> Iterator[int]:
        """Yields the results whose bytes no other result shares, so that they may be changed on the device."""
        shared = Counter(result.output for result in self._results)
        for position, result in visible.items():
            if result.output >= 0 and shared[result.output] == 1 and result.layout is not None and result.layout.dense:
                yield position

    def place(self, output: int, read: Slab, kept: Slab) -> tuple[Slab, Region] | None:
        """Returns where an output lies, None where it overwrites an input."""
        if output in self._read:
            return read, self._read[output]
        return (kept, self._kept[output]) if output in self._kept else None

    def land(self, source: Bytes) -> None:
        """Fills the tensors that the host works with from what was read."""
        for region, memory in self._landing:
            memory[:] = source[region.offset : region.offset + region.size]

    def fetched(self, source: Bytes, wanted: Wanted) -> torch.Tensor:
        """Returns a tensor that was read."""
        return from_bytes(source, self._read[self._outputs.number(wanted)].offset, wanted.layout)

    def collect(self, arguments: Sequence[Any], call: Call, source: Bytes) -> list[Any]:
        """Returns what torch gets, in the order of the graph's results; `source` is what was read."""
        collected = [self._collected(i, result, arguments, call, source) for i, result in enumerate(self._results)]
        if self._own:
            self._keep(collected, call)
        return collected

    def _collected(self, position: int, result: Result, arguments: Sequence[Any], call: Call, source: Bytes) -> Any:
        if result.argument >= 0:
            return self._argument(position, result, arguments, call)
        if result.layout is None:
            return result.value
        if position in self._roles.resident:
            slab, region = self._placed(result, call)
            return DeviceTensor(slab, region.offset, region.size, result.layout)
        joined = self._joined.get(position)
        if joined is None:
            return from_bytes(source, self._read[result.output].offset, result.layout)
        with torch.no_grad():
            tensor = joined.change(*self._joins[position](arguments))
            if tensor.stride() == result.layout.strides:
                return tensor
            return torch.empty_strided(tensor.shape, result.layout.strides, dtype=tensor.dtype).copy_(tensor)

    def _argument(self, position: int, result: Result, arguments: Sequence[Any], call: Call) -> Any:
        """Returns an argument as it is, or where only the device needs it a handle of what was sent."""
        index = self._index.get(result.argument, -1)
        if position in self._roles.resident and call.sent is not None and index >= 0:
            buffer, offset, size = call.bindings[index]
            if buffer is call.sent.buffer:
                return DeviceTensor(call.sent, offset, size, self._arguments[index].layout)
        return arguments[result.argument]

    def _placed(self, result: Result, call: Call) -> tuple[Slab, Region]:
        found = self.place(result.output, call.read, call.kept)
        assert found is not None  # a result is no output that overwrites an input
        return found

    def _keep(self, collected: Sequence[Any], call: Call) -> None:
        """Leaves on the device what is likely to come back, and looks out for the rest."""
        parameters = self._session.parameters
        staying: list[tuple[torch.Tensor, Slab, int]] = []
        for position in self._own:
            tensor: torch.Tensor = collected[position]
            if not byte_count(tensor):
                continue
            if position in self._joined or position in self._roles.returning:
                slab, region = self._placed(self._results[position], call)
                staying.append((tensor, slab, region.offset))
            else:
                parameters.watch(tensor, self._roles.returning, position)
        if staying:
            parameters.keep(staying)


__all__ = ["Call", "Results"]
