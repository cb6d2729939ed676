"""Calls of a compiled graph: bind, submit, read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

import umd_core as umd
from umd_core.encoding import decode
from umd_core.errors import UmdError
from umd_core.ops import CHECKS
from umd_core.passes import DEFAULT, optimise
from umd_torch.graphs import Lowered
from umd_torch.host import Bytes
from umd_torch.inputs import Bound, Inputs, Roles
from umd_torch.mutations import Landing, Outputs
from umd_torch.overwrites import Overwrites
from umd_torch.results import Call, Results
from umd_torch.session import Session

_NOTHING: Bytes = np.empty(0, np.uint8)


class Executable:
    """A graph cleaned up by these passes, and translated for one device and one set of sizes.

    Attributes:
        inputs: what the program is bound to.
    """

    def __init__(self, session: Session, lowered: Lowered, roles: Roles, passes: Collection[str] = DEFAULT) -> None:
        self._session = session
        outputs = Outputs(lowered.graph)
        landing = Landing(outputs)
        self._overwrites = Overwrites(session, lowered, outputs, landing)
        self.inputs = Inputs(session, lowered.arguments, roles, self._overwrites.inputs)
        self._results = Results(session, lowered, roles, outputs, self._overwrites.sent, landing)
        self._plain = lowered.results
        self._count = len(lowered.graph.outputs)
        runs = bool(self._count) or any(node.op in CHECKS for node in lowered.graph.nodes)
        graph = optimise(lowered.graph, passes, descs=lowered.descs).graph if passes else lowered.graph
        command_buffer = umd.translate(graph, caps=session.caps)
        self._program = session.load(command_buffer) if runs else None
        self._encoded = bytes(command_buffer)  # as objects its commands would be there twice: the program has them

    @property
    def command_buffer(self) -> umd.CommandBuffer:
        """The program, decoded."""
        return decode(self._encoded)

    @property
    def bytes_down(self) -> int:
        """Bytes that a call reads back, aligned as they lie."""
        return self._results.read_size

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Returns the graph's results: CPU tensors, and handles for what stays on the device."""
        if self._program is None:
            return [r.value if r.argument < 0 else arguments[r.argument] for r in self._plain]
        self._session.check_process()
        with self._session.lock:
            return self._run(arguments)

    def _run(self, arguments: Sequence[Any]) -> list[Any]:
        bound = self.inputs.bind(arguments)
        done = self._tried(arguments, bound)
        if done is None:  # torch's tensors are as they were: it can be done again
            bound = self.inputs.bind_again(arguments, bound)
            call, wait = self._start(arguments, bound)
            done = call, wait()
        call, source = done
        self._results.land(source)
        self._overwrites.after(arguments, bound.given, lambda wanted: self._results.fetched(source, wanted))
        return self._results.collect(arguments, call, source)

    def _tried(self, arguments: Sequence[Any], bound: Bound) -> tuple[Call, Bytes] | None:
        """Returns what a call gave, None where the program was given something else than torch has.

        That is found out while the device works; what it gives or raises then says nothing.
        """
        is_true: bool | None = None
        try:
            call, wait = self._start(arguments, bound)
            is_true = self.inputs.is_true(arguments, bound)
            source = wait()
        except UmdError:
            if is_true is None:
                is_true = self.inputs.is_true(arguments, bound)
            if is_true:
                raise
            return None
        return (call, source) if is_true else None

    def _start(self, arguments: Sequence[Any], bound: Bound) -> tuple[Call, Callable[[], Bytes]]:
        """Submits the program; returns what waits for the bytes that are read."""
        session, results = self._session, self._results
        back = session.slab(results.read_size)
        kept = session.slab(results.kept_size) if results.kept_size else back
        bindings = bound.bindings.copy()
        for output in range(self._count):
            place = results.place(output, back, kept)
            bindings.append(place[1].of(place[0]) if place else bindings[self._overwrites.input_of(output)])
        self._overwrites.before(arguments, bound.given)
        ticket = session.submit(self._program, bindings)
        wait = session.start_read(back, 0, results.read_size, ticket) if results.read_size else lambda: _NOTHING
        return Call(bindings, bound.sent, back, kept), wait


__all__ = ["Executable", "Roles"]
