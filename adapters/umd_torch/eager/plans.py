"""A call that was seen before: a program, what is bound to it, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import umd_core as umd
from umd_core.device import Binding
from umd_core.ops import CHECKS
from umd_torch.eager.devices import EagerDevice
from umd_torch.eager.slots import Draft
from umd_torch.eager.tensors import extent, new_storage, over, slab_of
from umd_torch.host import drawn_seed
from umd_torch.memory import Slab

_TENSOR, _NUMBER, _SEED = range(3)
_KINDS = {"tensor": _TENSOR, "number": _NUMBER, "seed": _SEED}


class Plan:
    """A program for one op and one kind of arguments, on one device.

    A call binds, submits and waits for nothing; what it returns is made at once, its elements come when they come.

    Attributes:
        program: as the device has loaded it; None where nothing is computed.
    """

    __slots__ = ("_home", "_inputs", "_outputs", "_returns", "_single", "program")

    def __init__(self, home: EagerDevice, draft: Draft) -> None:
        self._home = home
        graph = draft.graph
        self._inputs = [
            (_KINDS[s.kind], s.which, s.dtype, s.dtype.size, desc.byte_size)
            for s, desc in zip(draft.sources, graph.inputs.values(), strict=True)
        ]
        self._outputs: list[Any] = []
        for (target, layout), output in zip(draft.made, graph.outputs, strict=True):
            itemsize, bound = layout.dtype.itemsize, output.desc.byte_size if output.desc else 0
            size = extent(layout.shape, layout.strides) * itemsize
            self._outputs.append((target, size, layout.shape, layout.strides, layout.dtype, itemsize, bound))
        self._returns, self._single = draft.returns, draft.single
        self.program: Any = None
        if graph.outputs or any(node.op in CHECKS for node in graph.nodes):
            self.program = home.session.load(umd.translate(graph, caps=home.session.caps))

    def __call__(self, tensors: Sequence[Any], numbers: Sequence[Any]) -> Any:
        """Returns what the call returns; arguments that it writes are written.

        Raises:
            UmdError: what the device says at once (in process: an index out of range, for example).
        """
        home = self._home
        with home.session.lock:
            made: list[Any] = []
            bindings, seed = self._bind(tensors, numbers)
            for target, size, shape, strides, dtype, itemsize, bound in self._outputs:
                if target < 0:
                    storage = new_storage(home, size)
                    made.append(over(storage, shape, strides, dtype))
                    bindings.append(Binding(slab_of(storage).buffer, 0, bound))
                else:
                    tensor = tensors[target]
                    made.append(tensor)
                    buffer = slab_of(tensor.untyped_storage()).buffer
                    bindings.append(Binding(buffer, tensor.storage_offset() * itemsize, bound))
            if self.program is not None:
                home.session.submit(self.program, bindings)
            del seed  # its bytes may be used again now: what comes later has its turn later
        if self._single:
            return _returned(self._returns[0], tensors, made)
        return tuple([_returned(item, tensors, made) for item in self._returns])

    def _bind(self, tensors: Sequence[Any], numbers: Sequence[Any]) -> tuple[list[Binding], Slab | None]:
        """Returns a binding per input, and the bytes that hold the seed."""
        bindings: list[Binding] = []
        seed: Slab | None = None
        for kind, which, dtype, itemsize, size in self._inputs:
            if kind == _TENSOR:
                tensor = tensors[which]
                buffer = slab_of(tensor.untyped_storage()).buffer
                bindings.append(Binding(buffer, tensor.storage_offset() * itemsize, size))
            elif kind == _NUMBER:
                bindings.append(self._home.scalar(numbers[which], dtype))
            else:
                seed = self._seed()
                bindings.append(Binding(seed.buffer, 0, size))
        return bindings, seed

    def _seed(self) -> Slab:
        """Returns bytes that hold a seed drawn from torch's generator."""
        seed = int(drawn_seed().item())
        slab = self._home.session.slab(8)
        self._home.session.write(slab, 0, seed.to_bytes(8, "little", signed=True))
        return slab


def _returned(item: tuple[str, Any], tensors: Sequence[Any], made: Sequence[Any]) -> Any:
    kind, value = item
    if kind == "made":
        return made[value]
    return tensors[value] if kind == "target" else value
